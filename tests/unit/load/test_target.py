"""Where requests go, and as what bytes."""

import pytest

from models.errors import InvalidInputError
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
    with pytest.raises(InvalidInputError, match="URL is"):
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
    with pytest.raises(InvalidInputError, match="API key"):
        Target.parse("http://h", key)
