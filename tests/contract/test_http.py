"""HTTP/1.0 clients, half-closed connections, offers to upgrade (RFC 9110, section 7.8), and clients that disconnect."""

import asyncio
import gc
import json
import logging
import random
import socket
import struct
import time

import pytest

from models.calls import StateView
from tests.support.http import answers, connect

LINES = b'{"text": "a"}\n{"text": "the cat"}\n'


def post(path, body, *, version="1.1", kind="application/json", more=""):
    """Return the bytes of a request; a body other than bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: a\r\ncontent-type: {kind}\r\n{more}"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def generate(tokens, **options):
    return {"model": "slow", "max_tokens": tokens, "ignore_eos": True, **options}


def half_closed(server, data):
    """Send data, close the sending side at once, and return all replies."""
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
@pytest.mark.parametrize("tokens", [1, 20])  # answered before and after the check for a closed connection
def test_half_closed_connection_is_answered(server, version, tokens):
    (got,) = half_closed(server, post("/v1/generate", generate(tokens), version=version))
    assert (got.status, got.headers["connection"]) == (200, "close")
    assert json.loads(got.body)["usage"]["completion_tokens"] == tokens


def test_half_closed_connection_gets_the_whole_stream(server):
    (got,) = half_closed(server, post("/v1/generate", generate(20, stream=True)))
    assert got.body.count(b"data: ") == 22
    assert got.body.endswith(b"0\r\n\r\n")


def test_half_closed_connection_gets_all_pipelined_replies(server):
    """With a body that fills the buffers, and pipelined requests behind it."""
    large = post("/v1/generate", json.dumps(generate(20)).encode() + b" " * 90_000)
    got = half_closed(server, large + post("/v1/generate", generate(5)) + post("/nowhere", {}))
    assert [one.status for one in got] == [200, 200, 404]


@pytest.mark.parametrize(
    "rest", [b"", b"POST /v1/sco", b"POST /v1/score HTTP/1.1\r\nhost: a\r\n"], ids=["none", "line", "head"]
)
def test_pipelined_operations_are_answered_before_a_part_of_the_next_head(server, rest):
    texts = ["the cat", "a dog", "the cat sat"]
    with connect(server.url) as connection:
        connection.sendall(b"".join(post("/v1/score", {"texts": [text]}) for text in texts) + rest)
        got = b""
        while got.count(b"HTTP/1.1 200") < len(texts):  # or the time limit of the connection
            got += connection.recv(65536)


@pytest.mark.parametrize(
    "after",
    [b"\0garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhos"],
    ids=["garbage", "fault", "part"],
)
@pytest.mark.parametrize("close", [False, True])
def test_invalid_bytes_after_a_request_leave_its_reply_complete(server, after, close):
    """The connection closes after the reply."""
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
    """A closed connection looks half-closed until the service writes to it."""
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
    assert time.monotonic() - before < 2  # of 18 s of work


BODY = b'{"context": "the"}'
POST = b"POST /v1/next-token HTTP/1.1\r\nHost: a\r\n"
LIVE = b"GET /health/live HTTP/1.1\r\nHost: a\r\n"
LAST = LIVE + b"Connection: close\r\n\r\n"
OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "TLS": b"UPGRADE: TLS/1.0\r\nCONNECTION: UPGRADE\r\n",
    "websocket": b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n",
    "two": b"Upgrade: h2c\r\nUpgrade: TLS/1.0, x\r\nConnection: upgrade\r\n",
}
COUNTED = b"Content-Length: %d\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
FRAMED = {
    "counted": (COUNTED % len(BODY), BODY),
    "chunked": (CHUNKED, b"5\r\n%b\r\n%x\r\n%b\r\n0\r\nX: y\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])),
}


def cuts(head, rest):
    """Split the same bytes into segments: one, at the end of the head, within the head, and single bytes."""
    yield (head + rest,)
    yield head, rest
    yield head[:60], head[60:] + rest
    yield tuple(bytes([byte]) for byte in head + rest)


def exchanged(server, *segments):
    with connect(server.url) as connection:
        return answers(connection, *segments, pause_s=0.02 if len(segments) < 9 else 0.0005)


@pytest.mark.parametrize("frame", FRAMED)
@pytest.mark.parametrize("offer", OFFERS)
def test_body_and_next_request_are_read_however_they_come(server, caplog, offer, frame):
    caplog.set_level(logging.WARNING)
    length, body = FRAMED[frame]
    for segments in cuts(POST + OFFERS[offer] + length, body + LAST):
        asked, live = exchanged(server, *segments)
        assert (asked.status, live.status) == (200, 200), segments
        assert b'"candidates"' in asked.body
        assert b'"ok"' in live.body
    assert not caplog.records


@pytest.mark.parametrize("frame", [COUNTED % len(LIVE + b"\r\n"), CHUNKED])
def test_a_body_is_never_the_next_request(server, frame):
    """Otherwise, behind a proxy that forwards offers, its sender could inject replies to other clients."""
    smuggled = LIVE + b"\r\n"
    body = smuggled if b"Length" in frame else b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    for segments in cuts(POST + OFFERS["h2c"] + frame, body + LAST):
        refused, live = exchanged(server, *segments)
        assert (refused.status, refused.error["code"]) == (400, "invalid_value")
        assert (live.status, live.headers["connection"]) == (200, "close")


def test_requests_that_follow_on_a_get_are_answered(server):
    segment = b"".join(LIVE + offer + b"\r\n" for offer in OFFERS.values()) + LAST
    assert [got.status for got in exchanged(server, segment)] == [200] * 5


def test_a_body_that_is_to_be_asked_for_is_asked_for(server):
    with connect(server.url) as connection:
        connection.sendall(POST + OFFERS["h2c"] + b"Expect: 100-continue\r\n" + COUNTED % len(BODY))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        asked, _ = answers(connection, BODY + LAST)
    assert asked.status == 200


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_connection_that_is_to_be_closed_is_closed(server, version):
    head = POST.replace(b"1.1", version) + b"Connection: close, upgrade\r\nUpgrade: h2c\r\n"
    (got,) = exchanged(server, head + COUNTED % len(BODY), BODY)
    assert (got.status, got.headers["connection"]) == (200, "close")


REQUESTS = 400


def bodies(generator):
    """Yield requests of every kind, short and long."""
    words = " ".join(
        generator.choice(["the", "cat", "a", "dog", "ran"]) for _ in range(generator.randrange(1, 60))
    )
    yield (
        "/v1/generate",
        {"prompt": words, "max_tokens": 200, "stream": True, "model": "chars", "ignore_eos": True},
    )
    yield "/v1/generate", {"prompt": words, "max_tokens": 100, "ignore_eos": True}
    yield "/v1/score", {"texts": [words] * 50, "detail": "token"}
    yield "/v1/rerank", {"lists": [{"candidates": [{"text": words}, {"text": words + " on"}] * 40}]}
    yield "/v1/next-token", {"context": words}


async def ask(url, path, body, patience_s):
    """Send a request and read the reply until a timeout."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    try:
        return await asyncio.wait_for(reader.read(), patience_s)
    except TimeoutError:
        return None
    finally:
        writer.close()


async def crowd(url):
    """Send many requests, abandoning three in ten; return the replies to the others."""
    generator = random.Random(0)
    places = asyncio.Semaphore(24)

    async def one(path, body, patience_s):
        async with places:
            return await ask(url, path, body, patience_s)

    tasks = []
    for _ in range(REQUESTS // 5):
        for path, body in bodies(generator):
            hangs_up = generator.random() < 0.3
            tasks.append(one(path, body, generator.expovariate(200) if hangs_up else 60))
    return await asyncio.gather(*tasks)


def test_nothing_is_left_of_those_who_hang_up(server):
    scheduler = server.app.state.services.engine.scheduler
    answers = asyncio.run(crowd(server.url))
    assert sum(answer is None for answer in answers) > REQUESTS / 10
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers if answer)
    until = time.monotonic() + 10
    while len(scheduler) and time.monotonic() < until:
        time.sleep(0.01)
    assert (len(scheduler), scheduler.admission.num_waiting, scheduler.admission.num_tokens.used) == (0, 0, 0)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, StateView)]
