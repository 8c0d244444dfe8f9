"""Requests that no library sends: bodies that are almost JSON, and bytes that are almost HTTP."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.asking import DOCUMENT, check_reply
from tests.fuzz.served import JSON, LINES, settings
from tests.support.openapi import examples_in

WITH_BODY = [example for example in examples_in(DOCUMENT) if example.body is not None]
NASTY = [
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"1e-999",
        b"9" * 400,
        b"-0",
        b"-",
        b"00",
        b"1.",
    ),
    *(b"true", b"null", b"{}", b"[]", b'""', b"'a'", b"0x1F"),
    *(b"[" * 3000, b'{"a":' * 3000, b"[" * 300 + b"]" * 300, b'"' + b"a" * 210_000 + b'"'),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\x41"', b'"a', b'"\n"', b"/**/", b",", b"\x00"),
    *(b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf5\x80\x80\x80"', b"\xef\xbb\xbf"),
]
"""Replacements for a JSON value."""

MEDIA_TYPES = [
    *(
        JSON,
        LINES,
        "text/plain",
        "application/json; charset=utf-16",
        "APPLICATION/JSON",
        "application/x-ndjsonx",
    ),
    *("multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ";", ""),
    *("text/x-moses-nbest", "text/x-kaldi-nbest", "text/x-srilm-nbest"),
    *("application/x-mlm-scoring+json", "application/x-hyporadise+json"),
    *(
        "application/x-vosk+json",
        "application/x-whisper+json",
        "application/x-azure+json",
        "application/x-aws+json",
        "text/x-fairseq-nbest",
    ),
]
ACCEPTED = ["*/*", JSON, LINES, "application/octet-stream", "text/event-stream", "nonsense", ""]
CODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7"]


def written(example):
    """Return the body of an example as bytes."""
    body = example.body
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


def target_of(example):
    """Return an example's path, with its parameters' own examples."""
    operation, path = DOCUMENT["paths"][example.path][example.method], example.path
    for param in operation.get("parameters", ()):
        path = path.replace(f"{{{param['name']}}}", str(param.get("example", "")))
    return path


def places(value, path=()):
    """Yield the paths of all parts of a JSON value."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in parts:
        yield from places(part, (*path, step))


def replaced(value, path, part):
    """Return the value with another part at a path."""
    if not path:
        return part
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], part)
    return copy


@st.composite
def damaged(draw, example):
    """Draw an example's body with one kind of damage."""
    body = written(example)
    way = draw(st.sampled_from(["value", "cut", "spliced", "coded", "twice", "garbage"]))
    if way == "value" and not isinstance(example.body, str):
        path = draw(st.sampled_from(list(places(example.body))))
        there = json.dumps(replaced(example.body, path, "(here)"), ensure_ascii=False).encode()
        return there.replace(b'"(here)"', draw(st.sampled_from(NASTY)))
    if way == "coded":
        return body.decode().encode(draw(st.sampled_from(CODINGS)))
    if way == "twice":
        return b'{"model":"ngram","text":"a","model":"lstm",' + body[1:]
    if way == "garbage":
        return draw(st.binary(max_size=200))
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(body))] * 2)))
    if way == "cut":
        return body[:first]
    return body[:first] + draw(st.sampled_from(NASTY) | st.binary(max_size=8)) + body[last:]


@pytest.mark.parametrize("example", WITH_BODY, ids=str)
@settings
@given(data=st.data())
def test_a_damaged_body_is_answered_as_documented(guarded_client, example, data):
    headers = {
        "content-type": data.draw(st.just(example.media_type) | st.sampled_from(MEDIA_TYPES)),
        "accept": data.draw(st.sampled_from(ACCEPTED)),
    }
    if data.draw(st.integers(0, 9)) == 0:
        headers["content-encoding"] = data.draw(st.sampled_from(["gzip", "br", "identity", "x"]))
    content = data.draw(damaged(example))
    got = guarded_client.request(example.method, target_of(example), content=content, headers=headers)
    operation = DOCUMENT["paths"][example.path][example.method]
    check_reply(DOCUMENT, operation, got.status_code, got.headers, got.content)
