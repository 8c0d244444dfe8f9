"""The program as an operator runs it: a process of its own, its log, its signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from models.checkpoint import load
load.FAMILIES["fake"] = ("tests.fakes", "SlowFakeModel")
from service.app import serve
from service.settings import read_settings
serve(read_settings())
"""
PRIVATE = "cat sat on the mat"


@pytest.fixture
def process(registry, tmp_path):
    """A running service: its process, its URL and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = {
        "GRAMOPHONE_REGISTRY": str(registry.root),
        "GRAMOPHONE_MODELS": "slow,damaged",
        "GRAMOPHONE_DEFAULT_MODEL": "slow",
        "GRAMOPHONE_PORT": str(port),
        "GRAMOPHONE_LOG_FORMAT": "json",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251
    log = tmp_path / "log"
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env={**environment, **ours}, stderr=file
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_ready(child, url)
            yield child, url, log
        finally:
            child.kill()
            child.wait()


def wait_until_ready(child, url):
    for _ in range(1000):
        assert child.poll() is None
        try:
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.02)
    pytest.fail("the service never became ready")


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
