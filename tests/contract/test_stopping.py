"""Stopping a service that is at work: who still gets an answer, and when it ends."""

import json
import signal
import threading
import time

import httpx
import pytest

from tests.processes import running_process

STREAM = {"prompt": "the", "max_tokens": 40, "seed": 1, "stream": True}


@pytest.fixture
def start(registry, tmp_path):
    """Starts a service with so much time to drain."""

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


def test_what_takes_longer_than_the_drain_is_told_so(start):
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
            status = 503  # nobody listens any more
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
