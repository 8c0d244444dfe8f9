"""Reading server-sent events."""

import pytest

from service.bench.connection import Event, EventSplitter, error_message, parse_event

STREAM = b': hello\n\ndata: {"a": 1}\n\nevent: x\ndata: one\ndata: two\n\ndata:last\n\n'


@pytest.mark.parametrize("stream", [STREAM, STREAM.replace(b"\n", b"\r\n")])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_found_however_they_are_cut(stream, size):
    splitter = EventSplitter()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [event for piece in pieces for event in splitter.push(piece)] == [
        b'{"a": 1}',
        b"one\ntwo",
        b"last",
    ]


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
    assert parse_event(payload).num_tokens == num_tokens


def test_the_usage_is_read():
    assert parse_event(b'{"choices": [], "usage": {"completion_tokens": 7}}') == Event(usage_tokens=7)


def test_an_error_in_the_middle_is_read():
    assert parse_event(b'{"error": {"message": "out of\\ntime"}}') == Event(error="out of time")


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
