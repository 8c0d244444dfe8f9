"""Versions change under load: no request fails, and no reply mixes two versions."""

import collections
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.hosting.loaded_model import LoadedModel
from service.local.ask import LocalCall, ask
from service.settings import Settings
from tests.contract.conftest import publish
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running

SCORE = {"texts": ["the cat sat on the mat", "a dog"]}
GENERATE = {"prompt": "the", "max_tokens": 12, "seed": 5}
CLIENTS, REQUESTS, VERSIONS = 6, 90, 8


@pytest.fixture
def registry(fake_family, tmp_path):
    registry = LocalRegistry(tmp_path)
    add_version(registry)
    registry.set_alias("moving", "champion", 1)
    return registry


def add_version(registry):
    words = WordTokenizer(fake_vocabulary())
    seed = len(registry.versions("moving"))
    return publish(registry, "moving", FakeModel(words.vocabulary, seed=seed, endless=True), words)


def answers_of(registry, number):
    """Return a version's replies by path, computed in this process."""
    version = registry.resolve(f"moving@{number}")
    loaded = LoadedModel.of(version.address, load_checkpoint(version.path))
    call = LocalCall(registry.root, lambda *_, **__: loaded)
    return {
        path: ask(call, path, given) for path, given in (("/v1/score", SCORE), ("/v1/generate", GENERATE))
    }


def essence(answer):
    """Return the part of a reply that differs between versions but not between replies of one version."""
    if "results" in answer:
        return [result["logprob"] for result in answer["results"]]
    return [choice["token_ids"] for choice in answer["choices"]]


def test_swapping_under_load_fails_no_request_and_mixes_no_versions(registry):
    settings = Settings(registry=registry.root, watch_interval_s=0.02)
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=20) as client:

        def ask_service(number):
            path, body = [("/v1/score", SCORE), ("/v1/generate", GENERATE)][number % 2]
            time.sleep(0.003)
            return path, client.post(path, json=body)

        with ThreadPoolExecutor(CLIENTS) as pool:
            asked = [pool.submit(ask_service, number) for number in range(CLIENTS * REQUESTS)]
            for number in range(2, VERSIONS + 1):
                add_version(registry)
                registry.set_alias("moving", "champion", number)
                done = sum(future.done() for future in asked)
                while sum(f.done() for f in asked) < min(done + 50, len(asked)):
                    time.sleep(0.005)
            replies = [future.result() for future in asked]
        assert {reply.status_code for _, reply in replies} == {200}
        expected = {number: answers_of(registry, number) for number in range(1, VERSIONS + 1)}
        seen = collections.Counter()
        for path, reply in replies:
            number = int(reply.json()["model"].partition("@")[2])
            seen[number] += 1
            assert essence(reply.json()) == essence(expected[number][path])
        assert len(seen) >= 4
        wait_for(lambda: client.post("/v1/score", json=SCORE).json()["model"] == f"moving@{VERSIONS}")
        host = server.app.state.services.host
        wait_for(lambda: not host._unloading)
        assert list(host.models) == [f"moving@{VERSIONS}"]


def test_a_version_that_is_copied_file_by_file_is_never_served_before_it_is_whole(registry):
    """Other writers may copy the manifest first, and the weights in pieces."""
    source = add_version(registry).path
    outside = registry.root.parent / "outside"
    source.rename(outside)
    try:
        copy_slowly_while_asking(registry, outside, source)
    finally:
        for path in sorted(outside.glob("*")):
            path.unlink()
        outside.rmdir()


def copy_slowly_while_asking(registry, whole, target):
    settings = Settings(registry=registry.root, watch_interval_s=0.01)
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        host = server.app.state.services.host
        host._clock = lambda: time.monotonic() * 1000  # waits of milliseconds, not of seconds
        target.mkdir()
        files = sorted(whole.iterdir(), key=lambda path: path.name != "manifest.json")
        (registry.root / "moving" / "aliases.json").unlink()  # the bare name now means the newest version
        for path in files:
            content = path.read_bytes()
            for end in (0, len(content) // 2, len(content)):
                (target / path.name).write_bytes(content[:end])
                time.sleep(0.03)
                if path is not files[-1]:
                    assert client.post("/v1/score", json=SCORE).json()["model"] == "moving@1"
        wait_for(lambda: client.post("/v1/score", json=SCORE).json()["model"] == "moving@2")
        answer = client.post("/v1/score", json=SCORE).json()
        assert essence(answer) == essence(answers_of(registry, 2)["/v1/score"])


def test_a_stream_ends_with_the_version_that_it_began_with(registry):
    add_version(registry)
    expected = answers_of(registry, 1)["/v1/generate"]
    with running(Settings(registry=registry.root, watch_interval_s=0.01)) as server:
        server.app.state.services.host.resolve("moving").model.delay_s = 0.02
        body = {**GENERATE, "stream": True}
        with (
            httpx.Client(base_url=server.url, timeout=20) as client,
            client.stream("POST", "/v1/generate", json=body) as stream,
        ):
            lines = stream.iter_lines()
            first = next(lines)
            registry.set_alias("moving", "champion", 2)
            wait_for(lambda: httpx.post(f"{server.url}/v1/score", json=SCORE).json()["model"] == "moving@2")
            rest = [line for line in lines if line.startswith("data: {")]
    events = [line for line in [first, *rest] if line.startswith("data: {")]
    assert all('"model":"moving@1"' in event for event in events)
    ids = [token for event in events for token in ids_of(event)]
    assert ids[: GENERATE["max_tokens"]] == expected["choices"][0]["token_ids"]


def ids_of(event):
    import json

    return json.loads(event.removeprefix("data: "))["choices"][0]["token_ids"]


def test_many_threads_never_resolve_to_nothing_while_routes_are_replaced(registry):
    """The table is replaced atomically: a served address always resolves."""
    for _ in range(3):
        add_version(registry)
    with running(Settings(registry=registry.root, watch_interval_s=0)) as server:
        host, stop, misses = server.app.state.services.host, threading.Event(), []

        def look():
            while not stop.is_set():
                try:
                    host.resolve("moving"), host.resolve("moving@champion"), host.resolve(None)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is a miss
                    misses.append(error)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in (2, 3, 4, 1, 2, 3):
            registry.set_alias("moving", "champion", number)
            server.app.state.services.reloader._thread.submit(host.refresh).result()
        stop.set()
        for thread in threads:
            thread.join()
    assert misses == []


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come about")
