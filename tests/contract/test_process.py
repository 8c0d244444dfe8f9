"""The program as an operator runs it: a process of its own, its log, its signals."""

import json
import signal
import threading
import time

import httpx
import pytest

from service.security.keys import create_key
from tests.processes import running_process

PRIVATE = "cat sat on the mat"


@pytest.fixture
def process(registry, tmp_path):
    """A running service: its process, its URL and its log."""
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
    assert child.wait(timeout=10) == -signal.SIGTERM  # ended by the signal, as uvicorn has it
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
