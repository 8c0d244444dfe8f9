"""A real service with a small real model, and a real browser."""

import contextlib
import functools
import http.server
import re
import shutil
import threading
import time

import pytest
from playwright.sync_api import expect, sync_playwright

from models.checkpoint import load
from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import Vocabulary
from models.tokenizers import WordTokenizer
from service.app import create_app
from service.hosting.loaded_model import LoadState
from service.http_server import DrainingServer, listen
from service.settings import Settings
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.http import free_port
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

TABS = ("write", "generate", "rerank", "check", "models")
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
WAIT_MS = 30_000
"""Timeout of an expectation: a busy machine needs ten seconds for the first view of the API page."""

expect.set_options(timeout=WAIT_MS)
EVIL = "<img/src=x/onerror=pwned=1>"
"""Markup that runs if a page inserts it as HTML; the model reads it as one word, since it has no space."""

SENTENCES = (
    "the cat sat on the mat",
    "the cat sat on the sofa",
    "the dog ran after the cat",
    "the dog sat on the mat",
    "return the number of items in the list",
    "return the name of the list",
    "return a new list of names",
    f"the page shows {EVIL} as text",
)
CARD = """# words

Made for tests.

| split | perplexity |
|---|---|
| valid | 12.50 |

- one item

![Curve](curve.png)

[Report](report.html)
"""
REPORT = "<!doctype html><title>Report</title><style>h1 { color: green }</style><h1>Report</h1>"
REPORT += "<script>pwned = 1</script>"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


def _description():
    return CheckpointDescription(
        "2026-01-01T00:00:00+00:00", {"valid": {"perplexity": 12.5}}, {}, [[3, 4]], {}
    )


def _publish(registry, name, model, tokenizer):
    """Publish a version with a card, a picture and a report."""

    def write(folder):
        (folder / "MODEL_CARD.md").write_text(CARD)
        (folder / "report.html").write_text(REPORT)
        _draw(folder / "curve.png")
        write_checkpoint(folder, model, tokenizer, _description())

    return registry.publish(name, write)


def _draw(path):
    from matplotlib.figure import Figure

    Figure(figsize=(1, 1)).savefig(path)


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """Yield `words`, an n-gram model of the sentences, and `slow`, which is slow and never predicts the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(load.FAMILIES, "fake", ("tests.support.fake_models", "FakeModel"))
        registry = LocalRegistry(tmp_path_factory.mktemp("browser") / "registry", create=True)
        tokenizer = WordTokenizer(Vocabulary(sorted({word for line in SENTENCES for word in line.split()})))
        lines = [tokenizer.encode(line) for line in 3 * SENTENCES]
        corpus = EncodedCorpus.from_sentences(lines, num_words=sum(map(len, lines)), num_bytes=1000)
        model = estimate(corpus, tokenizer.vocabulary, order=3, progress=Progress()).model
        _publish(registry, "words", model, tokenizer)
        slow = WordTokenizer(fake_vocabulary())
        _publish(registry, "slow", FakeModel(slow.vocabulary, endless=True), slow)
        yield registry


@contextlib.contextmanager
def serving_at(settings):
    """Run the service at the settings' port during the block, with its models loaded."""
    app = create_app(settings)
    server, listening = DrainingServer(app, settings), listen(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        host = app.state.services.host
        while not server.started or any(one.state == LoadState.LOADING for one in host.models.values()):
            assert thread.is_alive()
            time.sleep(0.005)
        if "slow@1" in host.models:
            host.resolve("slow").model.delay_s = 0.02
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def serving_files(folder, headers=None):
    """Serve a folder during the block, as another origin than the service's, with further headers."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        """Serves files without a log."""

        def end_headers(self):
            for header in (headers or {}).items():
                self.send_header(*header)
            super().end_headers()

        def log_message(self, *_):
            """Log nothing."""

    (folder / "favicon.ico").touch()  # browsers request it
    handler = functools.partial(Handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def url(registry):
    settings = Settings(
        registry=registry.root, default_model="words", port=0, wordlists=registry.root.with_name("wordlists")
    )
    with serving_at(settings) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("the browser tests need Chromium: apt-get install -y chromium", pytrace=False)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=_FLAGS)
        yield chromium
        chromium.close()


class Watched:
    """Records problems of a page: errors, warnings, failed requests, requests to other hosts."""

    def __init__(self, page, *urls):
        self.said = []
        page.on("console", lambda line: line.type in {"error", "warning"} and self.said.append(line.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("requestfailed", self._failed)
        page.on(
            "request", lambda asked: asked.url.startswith((*urls, "blob:")) or self.said.append(asked.url)
        )

    def _failed(self, asked):
        if asked.failure != "net::ERR_ABORTED":  # aborted for a newer keystroke
            self.said.append(f"{asked.url}: {asked.failure}")


@pytest.fixture
def open_page(browser, url):
    """Open pages, each in a context of its own; at the end only messages that match `allowed` may have been logged."""
    opened = []

    def run(place="", *, at=url, allowed=None, scheme="light", size=WIDE, **options):
        context = browser.new_context(color_scheme=scheme, viewport=size, **options)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        opened.append((context, Watched(page, at), allowed))
        page.goto(f"{at}/{place}")
        return page

    yield run
    for context, watched, allowed in opened:
        context.close()
        assert [said for said in watched.said if not (allowed and re.search(allowed, said))] == []


def editor(page):
    """Return the text area of the visible view."""
    return page.locator("section:not([hidden]) textarea").first


def middle_of(page, selector, text):
    """Return the centre of the element with exactly this text, once it is visible."""
    find = """([selector, text]) => {
        const found = [...document.querySelectorAll(selector)].find(e => e.textContent === text);
        const box = found?.getBoundingClientRect();
        return box?.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
    }"""
    return page.wait_for_function(find, arg=[selector, text]).json_value()


def picker(page):
    """Return the model selector."""
    return page.get_by_role("combobox", name="Model", exact=True)


def hold_requests(page, address, times=None):
    """Hold the requests of a page to an address, or the first `times`; return a function.

    The function waits for a request, of a text if given, and returns its route. A request is told of before its route
    is, so `expect_request` alone does not say that there is a route.
    """
    held = []

    def hold(route):
        held.append(route)

    def held_route(text=None):
        while not (routes := [one for one in held if text in (None, one.request.post_data_json.get("text"))]):
            page.wait_for_timeout(10)
        return routes[-1]

    page.route(address, hold, times=times)
    return held_route


def write(page, text):
    """Replace the text with a new one, key by key."""
    editor(page).focus()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.type(text)
