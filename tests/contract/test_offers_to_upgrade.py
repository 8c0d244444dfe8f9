"""Requests that offer another protocol: they are answered as if they had not (RFC 9110, section 7.8)."""

import logging

import pytest

from tests.raw_http import answers, connect

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
    """The same bytes in segments: one, two after the head, two within it, one for each byte."""
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
    """Behind a proxy that passes offers on, its sender could have put answers before those to others."""
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
