"""Bytes that are almost HTTP: wrong heads, truncated bodies, invalid chunks, garbage."""

import json
import socket

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.asking import DOCUMENT, check_error, read_json
from tests.fuzz.served import many
from tests.support.http import answer, answers, connect

TIMEOUT_S = 10
"""Longer than the service waits for a request."""

BODY = json.dumps({"texts": ["the cat sat"] * 3, "model": "ngram"}).encode()
TARGETS = [
    *("/v1/score", "/v1/next-token", "/v1/generate", "/v1/states", "/metrics", "/openapi.json", "/", "/docs"),
    *(
        "/static/style.css",
        "/static/../service/app.py",
        "/v1/models/..%2f..%2fetc",
        "/v1/models/%00",
        "//",
        "*",
    ),
    *("http://elsewhere/v1/score", "/v1/score?model=%ff&bos=%", "/" + "a" * 40_000, "/%zz", "/health/live#x"),
]
METHODS = ["GET", "POST", "HEAD", "PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "PRI", "X" * 300, ""]
FRAMES = {
    "right": (b"content-length: %d\r\n" % len(BODY), BODY),
    "short": (b"content-length: %d\r\n" % (len(BODY) + 9), BODY),
    "long": (b"content-length: %d\r\n" % (len(BODY) - 9), BODY),
    "negative": (b"content-length: -1\r\n", BODY),
    "huge": (b"content-length: 99999999999999999999999999\r\n", BODY),
    "no number": (b"content-length: ten\r\n", BODY),
    "two lengths": (b"content-length: 5\r\ncontent-length: 6\r\n", BODY),
    "both": (b"content-length: 5\r\ntransfer-encoding: chunked\r\n", b"5\r\nabcde\r\n0\r\n\r\n"),
    "chunked": (b"transfer-encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "cut chunk": (b"transfer-encoding: chunked\r\n", b"%x\r\n%b" % (len(BODY), BODY[:-9])),
    "no last chunk": (b"transfer-encoding: chunked\r\n", b"%x\r\n%b\r\n" % (len(BODY), BODY)),
    "wrong chunk": (b"transfer-encoding: chunked\r\n", b"zz\r\nab\r\n0\r\n\r\n"),
    "huge chunk": (b"transfer-encoding: chunked\r\n", b"fffffffffffffffff\r\nab"),
    "coding": (b"transfer-encoding: gzip, chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
    "nothing": (b"", b""),
    "upgrade": (b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n", b""),
    "http2": (b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n", b""),
    "expect": (b"expect: 100-continue\r\ncontent-length: %d\r\n" % len(BODY), b""),
    "pipelined": (
        b"content-length: %d\r\n" % len(BODY),
        BODY + b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n" * 20,
    ),
}
OFFERS = [b"", *(FRAMES[name][0] for name in ("upgrade", "http2"))]
FIELDS = [
    *(
        b"",
        b"x: y\r\n",
        b"x : y\r\n",
        b": y\r\n",
        b"x\r\n",
        b"x: \x00\r\n",
        b"x: a\r\n b\r\n",
        b"x: \xff\r\n",
        b"\r",
    ),
    *(b"x: " + b"y" * 40_000 + b"\r\n", b"x: y\r\n" * 2000, b"x: y\n", b"x-request-id: \x1b[31m\r\n"),
    *(b"authorization: Bearer \r\n", b"authorization: Bearer \xff\r\n", b"host:\r\n", b"range: bytes=0-\r\n"),
    b"traceparent: 00-zz-zz-01\r\n",
]


def sent(service, data, *, cut_off):
    """Send bytes; return the reply, or nothing if the connection is closed."""
    with connect(service.url, TIMEOUT_S) as connection:
        try:
            connection.sendall(data)
            if cut_off:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before the end
        return answer(connection)


def check(got):
    """Check that a refusal has the common shape and is no internal error."""
    assert got.status < 500 or got.status in {501, 505}, got  # an unknown transfer coding, version
    if got.status >= 400 and got.body:
        check_error(DOCUMENT, got.status, got.headers, read_json(got.body))


@many
@given(
    method=st.sampled_from(METHODS[:2]) | st.sampled_from(METHODS),
    target=st.sampled_from(TARGETS[:4]) | st.sampled_from(TARGETS),
    field=st.sampled_from(FIELDS),
    frame=st.sampled_from(sorted(FRAMES)),
    version=st.sampled_from([b"HTTP/1.1"] * 5 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"http/1.1"]),
)
def test_a_head_that_lies_is_refused_or_answered(guarded, method, target, field, frame, version):
    length, body = FRAMES[frame]
    key = f"authorization: {guarded.headers['authorization']}\r\n".encode()
    first = b"%b %b %b\r\n" % (method.encode(), target.encode(), version)
    data = first + b"host: x\r\nconnection: close\r\n" + key + field + length + b"\r\n" + body
    check(sent(guarded, data, cut_off=True))


@many
@given(
    offers=st.lists(st.sampled_from(OFFERS), min_size=1, max_size=4),
    frames=st.lists(st.sampled_from(["right", "chunked"]), min_size=4, max_size=4),
    places=st.lists(st.integers(0, 900), max_size=6),
)
def test_requests_are_told_apart_wherever_they_are_cut(guarded, offers, frames, places):
    key = f"authorization: {guarded.headers['authorization']}\r\n".encode()
    data = b""
    for number, (offer, frame) in enumerate(zip(offers, frames, strict=False), 1):
        length, body = FRAMES[frame]
        end = b"x-close: \r\n" if number < len(offers) else b"connection: close\r\n"
        data += b"POST /v1/score HTTP/1.1\r\nhost: x\r\n" + key + offer + end + length + b"\r\n" + body
    ends = [*sorted({place for place in places if place < len(data)}), len(data)]
    segments = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    with connect(guarded.url, TIMEOUT_S) as connection:
        got = answers(connection, *segments, pause_s=0.001)
    assert [one.status for one in got] == [200] * len(offers)


@many
@given(
    data=st.binary(max_size=400),
    start=st.sampled_from([b"", b"GET ", b"POST / HTTP/1.1\r\n", b"\x16\x03\x01"]),
)
def test_garbage_is_refused_or_closed(guarded, data, start):
    check(sent(guarded, start + data, cut_off=True))


def test_a_body_that_stays_away_is_refused_in_time(guarded):
    head = b"POST /v1/score HTTP/1.1\r\nhost: x\r\n"
    key = f"authorization: {guarded.headers['authorization']}\r\n".encode()
    for frame in ("short", "cut chunk", "no last chunk"):
        length, body = FRAMES[frame]
        got = sent(guarded, head + key + length + b"\r\n" + body, cut_off=False)
        check(got)
        assert got.status == 408
