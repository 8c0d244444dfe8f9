"""Clients of HTTP/1.0, and such as close their side once they have asked."""

import json
import socket
import struct
import time

import pytest

from tests.raw_http import answers, connect

LINES = b'{"text": "a"}\n{"text": "the cat"}\n'


def post(path, body, *, version="1.1", kind="application/json", more=""):
    """The bytes of a request; a body that is no bytes is JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: a\r\ncontent-type: {kind}\r\n{more}"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def generate(tokens, **options):
    return {"model": "slow", "max_tokens": tokens, "ignore_eos": True, **options}


def half_closed(server, data):
    """All that is answered to who closes its side at once."""
    with connect(server.url) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return answers(connection)


@pytest.mark.parametrize("more", ["", "connection: keep-alive\r\n"])
@pytest.mark.parametrize(
    ("path", "body", "kind", "end"),
    [
        ("/v1/generate", {"max_tokens": 2, "stream": True}, "application/json", b"\n\ndata: [DONE]\n\n"),
        ("/v1/score", LINES, "application/x-ndjson", b"}\n"),
        ("/v1/next-token", {"context": "a"}, "application/json", b"}"),
    ],
)
def test_http_1_0_has_no_chunks(server, path, body, kind, end, more):
    with connect(server.url) as connection:
        (got,) = answers(connection, post(path, body, version="1.0", kind=kind, more=more))
    assert (got.status, got.headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in got.headers
    assert got.body.startswith((b"{", b"data: {"))
    assert got.body.endswith(end)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    "tokens", [1, 20]
)  # answered before it is looked whether the client has gone, and after
def test_who_sends_no_more_is_answered(server, version, tokens):
    (got,) = half_closed(server, post("/v1/generate", generate(tokens), version=version))
    assert (got.status, got.headers["connection"]) == (200, "close")
    assert json.loads(got.body)["usage"]["completion_tokens"] == tokens


def test_who_sends_no_more_gets_all_of_a_stream(server):
    (got,) = half_closed(server, post("/v1/generate", generate(20, stream=True)))
    assert got.body.count(b"data: ") == 22
    assert got.body.endswith(b"0\r\n\r\n")


def test_who_sends_no_more_gets_all_answers(server):
    """Of a body that fills the buffers, and of requests that wait for it."""
    large = post("/v1/generate", json.dumps(generate(20)).encode() + b" " * 90_000)
    got = half_closed(server, large + post("/v1/generate", generate(5)) + post("/nowhere", {}))
    assert [one.status for one in got] == [200, 200, 404]


@pytest.mark.parametrize(
    "after",
    [b"\0garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhos"],
    ids=["garbage", "fault", "part"],
)
@pytest.mark.parametrize("close", [False, True])
def test_what_is_wrong_after_a_request_takes_nothing_of_its_answer(server, after, close):
    """The connection ends after it."""
    if not close and after.endswith(b"hos"):
        after += b"t\r\n\r\n"
    data = post("/v1/generate", generate(20)) + after
    if close:
        (got,) = half_closed(server, data)
    else:
        with connect(server.url) as connection:
            (got,) = answers(connection, data)
    assert (got.status, got.headers["connection"]) == (200, "close")
    assert json.loads(got.body)["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_the_work_of_who_has_gone_ends(server, version, stream, reset):
    """Closing a connection looks like sending no more, until something is sent."""
    scheduler = server.app.state.services.engine.scheduler
    with connect(server.url) as connection:
        connection.sendall(post("/v1/generate", generate(900, stream=stream), version=version))
        if stream:
            assert connection.recv(65536)
        while not len(scheduler):
            time.sleep(0.001)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    before = time.monotonic()
    while len(scheduler) and time.monotonic() - before < 10:
        time.sleep(0.001)
    assert time.monotonic() - before < 2  # of the 18 s that the work takes
