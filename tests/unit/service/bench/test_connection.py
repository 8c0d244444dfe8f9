"""Target addresses, request bytes, and server-sent events."""

import pytest

from models.errors import InputError
from service.bench.connection import Reply, error_message, split_events
from service.bench.plan import Request, Target


def path(url, request_path=""):
    return Target.parse(url).path_of(Request(request_path))


def test_a_url_says_where_and_how():
    target = Target.parse("https://example.org/lm/")
    assert (target.host, target.port, target.tls, target.path) == ("example.org", 443, True, "/lm")
    assert Target.parse("http://[::1]:8000").host == "::1"
    assert Target.parse("http://b\u00fccher.example").host == "xn--bcher-kva.example"


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://h",
        "http://",
        "http://h:port",
        "http://u:p@h",
        "http://[::1",
        "",
        "http://a..b",
    ],
)
def test_other_urls_are_refused(url):
    with pytest.raises(InputError, match="URL is"):
        Target.parse(url)


def test_paths_are_joined_and_nothing_stands_there_twice():
    for url in ("http://h", "http://h/", "http://h/v1", "http://h/v1/score"):
        assert path(url, "/v1/score") == "/v1/score"
    assert path("http://h/lm/v1/", "/v1/score") == "/lm/v1/score"
    assert path("http://h/score?a=b c", "") == "/score?a=b%20c"
    assert path("http://h") == "/"


def test_a_request_is_plain_http():
    data = Target.parse("http://h:80/x", "secret").encode(Request("/y", b'{"a": 1}'))
    head, body = data.split(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /x/y HTTP/1.1"
    assert {b"host: h:80", b"content-length: 8", b"authorization: Bearer secret"} < set(lines)
    assert body == b'{"a": 1}'


@pytest.mark.parametrize("key", ["a\r\nx: y", "schlüssel"])
def test_a_key_cannot_smuggle_headers(key):
    with pytest.raises(InputError, match="API key"):
        Target.parse("http://h", key)


STREAM = b': hello\n\ndata: {"a": 1}\n\nevent: x\ndata: one\ndata: two\n\ndata:last\n\n'


@pytest.mark.parametrize("stream", [STREAM, STREAM.replace(b"\n", b"\r\n")])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_found_however_they_are_cut(stream, size):
    found, rest = [], b""
    for start in range(0, len(stream), size):
        events, rest = split_events(rest + stream[start : start + size])
        found += events
    assert found == [b'{"a": 1}', b"one\ntwo", b"last"]
    assert not rest


def reply_of(payload):
    reply = Reply(200, streamed=True)
    reply.push(b"data: %s\n\n" % payload, 1.0)
    return reply


@pytest.mark.parametrize(
    ("payload", "num_tokens"),
    [
        (b'{"choices": [{"text": "", "token_ids": [5, 6]}], "usage": null}', 2),
        (b'{"choices": [{"text": "!", "token_ids": [], "finish_reason": "stop"}]}', 0),
        (b'{"choices": [{"text": " a"}, {"text": " b"}]}', 2),
        (b'{"choices": [{"text": "", "finish_reason": "stop"}]}', 0),
        (b'{"choices": [{"delta": {"content": "hi"}}]}', 1),
        (b'{"choices": [{"delta": {"role": "assistant"}}]}', 0),
        (b'{"token": {"id": 5}}', 1),
        (b"plain text", 1),
        (b"[DONE]", 0),
    ],
)
def test_tokens_are_counted_in_everybodys_events(payload, num_tokens):
    assert reply_of(payload).num_tokens == num_tokens
    assert len(reply_of(payload).token_times_s) == (num_tokens > 0)


def test_the_usage_is_read():
    reply = reply_of(b'{"choices": [], "usage": {"completion_tokens": 7}}')
    assert (reply.num_tokens, reply.error, list(reply.token_times_s)) == (7, None, [])


def test_an_error_in_the_middle_is_read():
    reply = reply_of(b'{"error": {"message": "out of\\ntime"}}')
    assert (reply.num_tokens, reply.error, list(reply.token_times_s)) == (0, "out of time", [])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no"}}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>\n bad gateway</html>", "<html> bad gateway</html>"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"", ""),
        (b"[" * 100_000, "[" * 200),
    ],
)
def test_errors_are_told_in_a_line(body, message):
    assert error_message(body) == message
