"""The page as a whole, the tab of models, the API page, and the copied requests."""

import subprocess
import sys
from dataclasses import asdict

import httpx
import pytest
from playwright.sync_api import Error, expect

from models.training_status import TrainingStatus
from service.api_keys import create_key
from service.settings import Settings
from tests.browser.conftest import PHONE, TABS, WIDE, editor, picker, serving_at

FULL = "[document.documentElement.scrollWidth, innerWidth]"
VIOLATIONS = """window.violations = [];
addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective));"""


def settled(page):
    """Wait until the view is built and no request is pending."""
    expect(page.locator("main section:not([hidden]) > *").locator("visible=true").first).to_be_visible()
    page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide", "phone"])
def test_every_tab_is_quiet_and_as_wide_as_the_window(open_page, tab, size, scheme):
    """`open_page` checks at the end of each test that the console is empty."""
    page = open_page(f"#{tab}", size=size, scheme=scheme)
    settled(page)
    for summary in page.locator("main details > summary").all():
        if summary.is_visible():
            summary.click()
    page.wait_for_load_state("networkidle")
    full, window = page.evaluate(FULL)
    assert full <= window


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_page_follows_the_colours_of_the_system(open_page, scheme, is_dark):
    page = open_page(scheme=scheme)
    red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(red) < 60) == is_dark


def test_the_policy_is_kept(open_page, url):
    """`open_page` also checks at the end that nothing was loaded from other hosts."""
    page = open_page()
    page.add_init_script(VIOLATIONS)
    for tab in TABS:
        page.goto(f"{url}/?{tab}#{tab}")
        settled(page)
        assert page.evaluate("violations") == [], tab


@pytest.mark.parametrize(
    "script",
    ["document.body.innerHTML = '<b>x</b>'", "document.createElement('script').text = 'x'"],
)
def test_the_policy_forbids_text_that_becomes_markup_or_code(open_page, script):
    page = open_page(allowed="Trusted")
    with pytest.raises(Error, match="Trusted"):
        page.evaluate(f"() => {{ {script} }}")


def test_tabs_are_gone_through_with_the_keyboard(open_page):
    page = open_page("#write")
    page.get_by_role("tab", name="Write").focus()
    for name in ("Generate", "Re-rank", "Check", "Models"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Write")).to_be_focused()


def test_a_text_is_written_generated_and_copied_with_the_keyboard_alone(open_page):
    page = open_page("#write")
    expect(editor(page)).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("return the nu")
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("return the number ")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Copy as curl").locator("visible=true").first).to_be_focused()
    page.get_by_role("tab", name="Write").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Generate")).to_be_visible()
    prompt = page.get_by_label("Prompt")
    for _ in range(3):  # past the model selector, too
        page.keyboard.press("Tab")
        if prompt.evaluate("e => e === document.activeElement"):
            break
    expect(prompt).to_be_focused()
    page.keyboard.type(" of")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".continuation footer")).to_contain_text("score")


def test_the_tab_is_remembered_in_the_address(open_page):
    page = open_page()
    page.get_by_role("tab", name="Check").click()
    assert page.url.endswith("#check")
    page.reload()
    expect(page.get_by_role("tab", name="Check")).to_have_attribute("aria-selected", "true")
    page.go_back()
    expect(page.get_by_role("tab", name="Write")).to_have_attribute("aria-selected", "true")


def test_reduced_motion_disables_animations(open_page):
    page = open_page("#write", reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.querySelector('main > section')).animationName") == "none"


def test_controls_have_names(open_page):
    """A screen reader needs a name for every control."""
    page = open_page()
    for tab in TABS:
        page.goto(page.url.split("#")[0] + f"#{tab}")
        settled(page)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('main section:not([hidden]) :is(input, select, textarea, button)')]
            .filter(e => e.checkVisibility() && !e.labels?.length && !e.ariaLabel && !e.textContent.trim())
            .map(e => e.outerHTML)"""
        )
        assert nameless == [], tab


@pytest.fixture
def page(open_page):
    return open_page("#models")


def test_all_models_are_listed_and_the_default_is_shown(page):
    entries = page.get_by_role("group", name="Models").get_by_role("button")
    expect(entries).to_have_count(2)
    expect(entries.filter(has_text="default")).to_contain_text("words@1")
    expect(page.get_by_role("heading", name="words@1")).to_be_visible()


def test_the_card_is_rendered_with_its_picture(page):
    card = page.get_by_role("article", name="Model card")
    expect(card.get_by_role("heading", name="words")).to_be_visible()
    expect(card.get_by_role("cell", name="12.50")).to_be_visible()
    expect(card.get_by_role("listitem")).to_have_text(["one item"])
    picture = card.get_by_role("img", name="Curve")
    picture.scroll_into_view_if_needed()
    page.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())


def test_a_report_opens_with_its_style_and_runs_nothing(page):
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Report", exact=True).click()
    report = opened.value
    report.wait_for_load_state()
    heading = report.get_by_role("heading", name="Report")
    assert heading.evaluate("e => getComputedStyle(e).color") == "rgb(0, 128, 0)"
    assert report.evaluate("window.pwned") is None


def test_another_model_is_used_from_then_on(page):
    page.get_by_role("group", name="Models").get_by_role("button", name="slow@1").click()
    page.get_by_role("button", name="Use this model").click()
    expect(picker(page)).to_have_value("slow@1")
    page.get_by_role("tab", name="Write").click()
    expect(page.locator("aside .model")).to_have_text("slow@1")


def test_the_api_page_is_linked_and_shows_every_endpoint(open_page, url):
    page = open_page()
    page.get_by_role("link", name="API").click()
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    wanted = sorted(f"{method.upper()} {path}" for path, methods in paths.items() for method in methods)
    expect(page.locator(".opblock")).to_have_count(len(wanted))
    heads = page.locator(".opblock-summary").evaluate_all(
        """all => all.map(e => e.querySelector('.opblock-summary-method').textContent
        + ' ' + e.querySelector('[data-path]').dataset.path)"""
    )
    assert sorted(heads) == wanted


SCORING = "docs#/Score/score_texts_v1_score_post"
SWAGGER_WARNING = "deep link whitespace"
"""Console warning of Swagger UI for every address with an underscore."""


def tried(page, body, media_type="application/json"):
    """Send a body to /v1/score from the API page; return its table of replies."""
    page.add_init_script(VIOLATIONS)
    page.reload()
    operation = page.locator(".opblock.is-open")
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_label("Request content type").select_option(media_type)
    operation.locator("textarea.body-param__text").fill(body)
    operation.get_by_role("button", name="Execute").click()
    reply = operation.locator(".live-responses-table")
    expect(reply).to_be_visible()
    assert page.evaluate("violations") == []
    return reply


def test_a_request_is_tried_on_the_api_page(open_page):
    page = open_page(SCORING, allowed=SWAGGER_WARNING)
    reply = tried(page, '{"texts": ["the cat sat"]}')
    expect(reply.locator(".response-col_status").nth(1)).to_have_text("200")
    expect(reply).to_contain_text('"model": "words@1"')


def test_lines_are_tried_on_the_api_page(open_page):
    page = open_page(SCORING, allowed=SWAGGER_WARNING)
    reply = tried(page, """{"text": "the cat's mat"}\n{"text": "the dog"}\n""", "application/x-ndjson")
    expect(reply).to_contain_text("200")
    assert reply.text_content().count('"logprob"') == 2


def test_invalid_body_is_explained_on_the_api_page(open_page):
    page = open_page(SCORING, allowed=f"status of 400|{SWAGGER_WARNING}")
    expect(tried(page, '{"texts": []}')).to_contain_text("texts is []")


def test_the_api_page_asks_for_a_key_and_shows_none(open_page, registry):
    key = create_key("page", ["infer"])
    settings = Settings(
        registry=registry.root, models=("words",), default_model="words", port=0, api_keys=(key.key.line,)
    )
    with serving_at(settings) as at:
        page = open_page(SCORING, at=at, allowed=f"status of 401|{SWAGGER_WARNING}")
        page.get_by_label("API key").fill(key.secret)
        page.get_by_role("button", name="Use key").click()
        expect(page.get_by_role("button", name="Authorize")).to_be_visible()
        reply = tried(page, '{"texts": ["the cat sat"]}')
        expect(reply).to_contain_text('"model": "words@1"')
        operation = page.locator(".opblock.is-open")
        expect(operation.locator(".curl-command")).to_contain_text("Bearer $GRAMOPHONE_API_KEY")
        page.get_by_role("button", name="Authorize").click()
        page.get_by_role("button", name="Remove authorization").click()
        page.get_by_role("button", name="Close").click()
        operation.get_by_role("button", name="Execute").click()
        expect(reply).to_contain_text("invalid_api_key")
        page.get_by_role("button", name="Authorize").click()
        page.get_by_label("auth-bearer-value").fill(key.secret)
        page.get_by_role("button", name="Apply credentials").click()
        page.get_by_role("button", name="Close").click()
        operation.get_by_role("button", name="Execute").click()
        expect(reply).to_contain_text('"model": "words@1"')
        assert key.secret not in page.content()


def copied(page, name):
    """Click a button of the visible view; return the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("main section:not([hidden])").get_by_role("button", name=name).locator(
        "visible=true"
    ).first.click()
    expect(page.get_by_role("button", name="Copied").locator("visible=true").first).to_be_visible()
    return page.evaluate("navigator.clipboard.readText()")


PROMPT = 'it\'s "the" dog\\n $HOME `x`\nÉ 🎺'


@pytest.mark.parametrize(
    ("tab", "told"), [("write", "completions"), ("rerank", "ranking"), ("check", "issues")]
)
def test_a_copied_command_works(open_page, tab, told):
    page = open_page(f"#{tab}")
    page.wait_for_load_state("networkidle")
    done = subprocess.run(
        ["sh", "-c", copied(page, "Copy as curl")], capture_output=True, text=True, check=True
    )
    assert f'"{told}"' in done.stdout


def test_a_copied_program_works(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_label("Stream").uncheck()
    page.get_by_label("seed").fill("3")
    program = copied(page, "Copy as Python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert '"choices"' in done.stdout


def test_streams_are_copied_as_streams(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_label("max tokens").fill("3")
    command = copied(page, "Copy as curl")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("data: [DONE]")
    program = copied(page, "Copy as Python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "data: [DONE]" in done.stdout


@pytest.mark.parametrize("tab", TABS)
def test_a_request_can_be_copied_everywhere(open_page, tab):
    page = open_page(f"#{tab}")
    for name in ("Copy as curl", "Copy as Python"):
        expect(page.get_by_role("button", name=name).locator("visible=true")).to_have_count(1)


def test_running_trainings_are_shown_until_they_end(open_page):
    status = TrainingStatus("mixture", "training the lstm network", 0.42, 40.6)
    page = open_page()
    settled(page)
    expect(page.locator("#training")).to_be_hidden()

    def answer(route):
        reply = route.fetch()
        route.fulfill(response=reply, json=reply.json() | {"training": [asdict(status)] if running else []})

    running = True
    page.route("**/v1/models", answer)
    page.reload()
    said = "In training: mixture (training the lstm network, 42 %, 41 s left)"
    expect(page.locator("#training")).to_have_text(said)
    running = False
    expect(page.locator("#training")).to_be_hidden()
