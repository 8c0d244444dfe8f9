"""Clients that send but do not read: they are disconnected in time, memory is bounded, other clients are served."""

import contextlib
import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.services import SCORE, faulty_service, made_up_registry, wait_until

SEND_TIMEOUT_S = 1.5
UNSENT_BYTES = 24 << 20
_ESTABLISHED = 1
LARGE = {"texts": [" ".join(["cat"] * 31)] * 4000, "detail": "token"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    return made_up_registry(tmp_path_factory.mktemp("slow"), endless=True)


@pytest.fixture(scope="module")
def service(registry, tmp_path_factory):
    settings = {
        "GRAMOPHONE_SEND_TIMEOUT_S": str(SEND_TIMEOUT_S),
        "GRAMOPHONE_KEEP_ALIVE_TIMEOUT_S": "1",
        "GRAMOPHONE_MAX_NEW_TOKENS": "60000",
        "GRAMOPHONE_REQUEST_TIMEOUT_MS": "20000",
    }
    with faulty_service(registry, tmp_path_factory.mktemp("slow"), **settings) as service:
        yield service


@pytest.fixture(scope="module")
def patient(registry, tmp_path_factory):
    """Run a service with a long send timeout and a small limit on unsent bytes."""
    settings = {"GRAMOPHONE_SEND_TIMEOUT_S": "600", "GRAMOPHONE_MAX_UNSENT_BYTES": str(UNSENT_BYTES)}
    with faulty_service(registry, tmp_path_factory.mktemp("patient"), **settings) as service:
        yield service


def asking(url, path, body, headers=""):
    """Send a request over a connection with a small window, without reading."""
    parts, content = urlsplit(url), json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((parts.hostname, parts.port))
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def is_cut(connection):
    """True if the connection is closed; it is checked without reading."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED


def is_idle(service):
    return service.metric("gramophone_num_requests_running") == 0


@pytest.mark.parametrize("headers", ["", "connection: close\r\n"], ids=["kept", "closed"])
def test_an_answer_that_nobody_takes_is_not_kept(service, headers):
    with asking(service.url, "/v1/score", LARGE, headers) as connection:
        wait_until(lambda: is_cut(connection), seconds=40)
    assert service.serves_newcomers()


def test_a_stream_that_nobody_reads_frees_its_slot_and_its_connection(service):
    endless = {"prompt": "the", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    time.sleep(2.5)  # idle connections of earlier tests have timed out
    before = service.files()
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(asking(service.url, "/v1/generate", endless))
        wait_until(lambda: not is_idle(service))
        wait_until(lambda: is_idle(service), seconds=90)  # their time is over
        wait_until(lambda: service.files() <= before)
    assert service.serves_newcomers()


def test_slow_steady_reader_gets_the_whole_reply(service):
    length = len(httpx.post(f"{service.url}/v1/score", json=LARGE, timeout=60).content)
    with asking(service.url, "/v1/score", LARGE) as connection:
        received, began_s, rests = bytearray(), time.monotonic(), 0
        while len(received) < length:
            received += connection.recv(1 << 17)
            if len(received) > rests * length / 40:
                time.sleep(0.1)  # in total longer than the send timeout
                rests += 1
        assert time.monotonic() - began_s > 2 * SEND_TIMEOUT_S
    assert received.startswith(b"HTTP/1.1 200")


def test_answers_that_nobody_takes_have_bounded_memory(patient):
    httpx.post(f"{patient.url}/v1/score", json=LARGE, timeout=60)
    before_bytes = patient.resident_bytes()
    with contextlib.ExitStack() as stack, httpx.Client(base_url=patient.url, timeout=60) as other:
        slow = []
        for _ in range(24):
            slow.append(stack.enter_context(asking(patient.url, "/v1/score", LARGE)))
            wait_until(lambda: is_idle(patient))
            assert other.post("/v1/score", json=SCORE).status_code == 200
        assert patient.resident_bytes() - before_bytes < UNSENT_BYTES + (64 << 20)
        cut = [is_cut(connection) for connection in slow]
        assert cut == sorted(cut, reverse=True)  # the slowest first
        assert 8 < sum(cut) < 24


def test_rows_that_nobody_reads_take_little_memory(tmp_path):
    """Regression: each request held up to 32 undelivered events of half a megabyte, which no limit counted."""
    registry = made_up_registry(tmp_path, extra_words=2000)
    body, headers = {"context": [[3]] * 4000}, "accept: application/octet-stream\r\n"
    with (
        faulty_service(
            registry, tmp_path, drains=False, GRAMOPHONE_MAX_UNSENT_BYTES=str(UNSENT_BYTES)
        ) as service,
        contextlib.ExitStack() as stack,
    ):
        before = service.resident_bytes()
        for _ in range(60):
            stack.enter_context(contextlib.closing(asking(service.url, "/v1/next-token", body, headers)))
        wait_until(lambda: service.metric("gramophone_num_requests_waiting") == 0)
        time.sleep(3)
        assert service.resident_bytes() - before < 400 << 20
        assert httpx.post(f"{service.url}/v1/score", json=SCORE, timeout=20).status_code == 200
