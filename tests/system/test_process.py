"""The service as a process: logs, signals, graceful shutdown under load."""

import json
import shutil
import signal
import threading
import time

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from service.api_keys import create_key
from tests.support.services import running_process

PRIVATE = "cat sat on the mat"


@pytest.fixture
def process(registry, tmp_path):
    """Run a service; yield its process, its URL and its log."""
    log = tmp_path / "log"
    settings = {
        "GRAMOPHONE_MODELS": "slow,damaged",
        "GRAMOPHONE_DEFAULT_MODEL": "slow",
        "GRAMOPHONE_LOG_FORMAT": "json",
    }
    with running_process(registry, log, **settings) as (child, url):
        yield child, url, log


def test_a_signal_lets_requests_finish_then_ends_the_process(process):
    child, url, _ = process
    answers = []
    body = {"prompt": "the", "max_tokens": 40, "seed": 1}
    thread = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/generate", json=body)))
    thread.start()
    while "gramophone_num_requests_running 1.0" not in httpx.get(f"{url}/metrics").text:
        time.sleep(0.005)
    child.send_signal(signal.SIGTERM)
    thread.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 40
    assert child.wait(timeout=10) == -signal.SIGTERM  # ended by the signal, as with uvicorn
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_the_log_is_json_and_never_holds_the_text(process):
    child, url, log = process
    headers = {"x-request-id": "my-id"}
    httpx.post(f"{url}/v1/score", json={"texts": [PRIVATE]}, headers=headers)
    httpx.post(f"{url}/v1/score", json={"texts": [PRIVATE], "bos": 5})
    child.send_signal(signal.SIGTERM)
    child.wait(timeout=10)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    mine = next(line for line in lines if line.get("request_id") == "my-id")
    assert (mine["route"], mine["status"], mine["method"]) == ("/v1/score", 200, "POST")
    assert mine["duration_ms"] > 0
    assert any(line["event"] == "model failed" and "damaged" in line["reason"] for line in lines)
    assert PRIVATE not in log.read_text()


def logged(log, event):
    """Return each log line of an event."""
    return [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == event]


def test_a_restart_serves_the_same_default_after_another_name_was_published_and_says_why(registry, tmp_path):
    copy = LocalRegistry(tmp_path / "registry", create=True)
    model = registry.resolve("mixture@1").path
    settings = {"GRAMOPHONE_LOG_FORMAT": "json", "GRAMOPHONE_WORKERS": "2"}
    told = []
    for name in ("mine", "alpha"):
        copy.publish(name, lambda folder: shutil.copytree(model, folder, dirs_exist_ok=True))
        log = tmp_path / name
        with running_process(copy, log, **settings) as (_, url):
            assert httpx.post(f"{url}/v1/score", json={"texts": ["a"]}).json()["model"] == "mine@1"
        told += [
            (line["worker"], line["url"], line["default"], line["reason"]) for line in logged(log, "serving")
        ]
        assert {line[1:3] for line in told[-2:]} == {(url, "mine@1")}
    assert {line[0::3] for line in told[:2]} == {(0, "it is the only model"), (1, "it is the only model")}
    assert {line[0::3] for line in told[2:]} == {(n, "it is set as the registry's default") for n in (0, 1)}


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({"GRAMOPHONE_HOST": "0.0.0.0", "GRAMOPHONE_WORKERS": "2"}, 1),  # noqa: S104 - as in a container
        ({"GRAMOPHONE_HOST": "0.0.0.0", "GRAMOPHONE_API_KEYS": create_key("a", ["infer"]).key.line}, 0),  # noqa: S104
        ({}, 0),
    ],
)
def test_an_open_service_that_others_reach_is_warned_of_once(registry, tmp_path, settings, warnings):
    log = tmp_path / "log"
    with running_process(registry, log, GRAMOPHONE_MODELS="slow", GRAMOPHONE_LOG_FORMAT="json", **settings):
        found = logged(log, "anyone who can reach this service can use it: no API keys are set")
    assert len(found) == warnings
    assert all("GRAMOPHONE_API_KEYS_FILE" in line["advice"] for line in found)


def test_a_request_to_upgrade_is_answered_like_any_other(process):
    _, url, _ = process
    answer = httpx.get(f"{url}/v1/score", headers={"connection": "upgrade", "upgrade": "websocket"})
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_the_log_says_whose_request_it_was_and_of_which_model(registry, tmp_path):
    key, log = create_key("our-app", ["infer"]), tmp_path / "log"
    settings = {
        "GRAMOPHONE_MODELS": "slow",
        "GRAMOPHONE_LOG_FORMAT": "json",
        "GRAMOPHONE_API_KEYS": key.key.line,
    }
    with running_process(registry, log, **settings) as (child, url):
        headers = {"x-request-id": "my-id", "authorization": f"Bearer {key.secret}"}
        httpx.post(f"{url}/v1/score", json={"texts": [PRIVATE]}, headers=headers)
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=10)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    mine = next(line for line in lines if line.get("request_id") == "my-id")
    assert (mine["key"], mine["model"], mine["scored_tokens"]) == ("our-app", "slow@1", 6)
    assert key.secret not in log.read_text()
    assert "body" not in mine


def test_texts_are_logged_where_that_is_asked_for(registry, tmp_path):
    log = tmp_path / "log"
    settings = {"GRAMOPHONE_MODELS": "slow", "GRAMOPHONE_LOG_FORMAT": "json", "GRAMOPHONE_LOG_TEXTS": "true"}
    with running_process(registry, log, **settings) as (child, url):
        httpx.post(f"{url}/v1/score", json={"texts": [PRIVATE]})
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=10)
    assert any(PRIVATE in line for line in log.read_text().splitlines() if '"body"' in line)


STREAM = {"prompt": "the", "max_tokens": 40, "seed": 1, "stream": True}


@pytest.fixture
def start(registry, tmp_path):
    """Start a service with the given time to drain."""

    def starting(drain_s):
        settings = {
            "GRAMOPHONE_MODELS": "slow",
            "GRAMOPHONE_DRAIN_TIMEOUT_S": str(drain_s),
            "GRAMOPHONE_MAX_NEW_TOKENS": "100000",
            "GRAMOPHONE_REQUEST_TIMEOUT_MS": "600000",
        }
        return running_process(registry, tmp_path / "log", **settings)

    return starting


def events(lines):
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def test_a_stream_under_way_is_finished(start):
    with start(30) as (child, url), httpx.stream("POST", f"{url}/v1/generate", json=STREAM) as response:
        lines = response.iter_lines()
        first = [next(lines)]
        child.send_signal(signal.SIGTERM)
        told = events(first + list(lines))
        assert told[-1] == "[DONE]"
        assert json.loads(told[-2])["usage"]["completion_tokens"] == 40
        assert child.wait(timeout=10) == -signal.SIGTERM


def test_requests_longer_than_the_drain_get_a_draining_error(start):
    answers = []
    endless = {**STREAM, "max_tokens": 100_000}
    with start(1) as (child, url), httpx.stream("POST", f"{url}/v1/generate", json=endless) as stream:
        lines = stream.iter_lines()
        next(lines)
        whole = {**endless, "stream": False}
        thread = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/generate", json=whole)))
        thread.start()
        while "gramophone_num_requests_running 2.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)
        before = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert json.loads(events(list(lines))[-1])["error"]["code"] == "draining"
        thread.join()
        child.wait(timeout=10)
        assert 1 <= time.monotonic() - before < 5
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in answers[0].headers


def test_readiness_fails_as_soon_as_the_signal_comes(start):
    with start(30) as (child, url), httpx.stream("POST", f"{url}/v1/generate", json=STREAM) as response:
        lines = response.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        try:
            status = httpx.get(f"{url}/health/ready").status_code
        except httpx.TransportError:
            status = 503  # it no longer listens
        assert status == 503
        list(lines)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(start, sig):
    endless = {**STREAM, "max_tokens": 100_000}
    with start(60) as (child, url), httpx.stream("POST", f"{url}/v1/generate", json=endless) as response:
        lines = response.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert child.poll() is None
        child.send_signal(sig)
        assert child.wait(timeout=2) == -sig
