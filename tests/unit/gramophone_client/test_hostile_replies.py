"""Replies of any content, to every method of both clients: a valid result or a GramophoneError, in linear time."""

import asyncio
import gzip
import itertools
import json
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramophone_client import AsyncClient, Client, GramophoneError, ServerError, calls, kenlm
from gramophone_client.calls import Call

LISTS, LINE = [{"candidates": [{"text": "a"}]}], [{"text": "a"}]
METHODS = {
    "next_token": lambda client: client.next_token("a"),
    "next_text": lambda client: client.next_text(["a", "b"], ["c"]),
    "next_word": lambda client: client.next_word("a"),
    "log_probs": lambda client: client.log_probs("a"),
    "score": lambda client: client.score(["a", "b"]),
    "score_lines": lambda client: client.score_lines(LINE),
    "rerank": lambda client: client.rerank(LISTS),
    "rerank_lines": lambda client: client.rerank_lines(LISTS),
    "correct": lambda client: client.correct(["rain"]),
    "correct_lines": lambda client: client.correct_lines([{"text": "rain"}]),
    "rescore": lambda client: client.rescore([{"confusions": [[{"text": "rain"}]]}]),
    "rescore_lines": lambda client: client.rescore_lines([{"confusions": [[{"text": "rain"}]]}]),
    "restore": lambda client: client.restore(["rain"]),
    "restore_lines": lambda client: client.restore_lines([{"text": "rain"}]),
    "tune": lambda client: client.tune(LISTS),
    "generate": lambda client: client.generate("a"),
    "stream": lambda client: client.stream("a"),
    "autocomplete": lambda client: client.autocomplete("a"),
    "check": lambda client: client.check("a"),
    "quality": lambda client: client.quality(["a"]),
    "quality_lines": lambda client: client.quality_lines(LINE),
    "models": lambda client: client.models(),
    "model": lambda client: client.model("m"),
    "states.open": lambda client: client.states.open("a"),
    "states.advance": lambda client: client.states.advance([{"state": "a"}]),
    "states.next": lambda client: client.states.next(["a"]),
    "states.log_probs": lambda client: client.states.log_probs(["a"]),
    "states.free": lambda client: client.states.free(["a"]),
    "users.accept": lambda client: client.users.accept("u", "a"),
    "users.export": lambda client: client.users.export("u"),
    "users.restore": lambda client: client.users.restore("u", []),
    "users.forget": lambda client: client.users.forget("u"),
    "users.forget_word": lambda client: client.users.forget_word("u", "a"),
    "wordlists.put": lambda client: client.wordlists.put("w", ["a"]),
    "wordlists.list": lambda client: client.wordlists.list(),
    "wordlists.get": lambda client: client.wordlists.get("w"),
    "wordlists.entries": lambda client: client.wordlists.entries("w"),
    "wordlists.delete": lambda client: client.wordlists.delete("w"),
}
ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": null}}'
SCORE = {"logprob": -1.0, "num_tokens": 1, "num_oov": 0, "perplexity": None, "bits_per_byte": None}
WORD = {"text": "a", "logprob": -1.0, "num_tokens": 1, "is_oov": False}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "model",
        "results",
        "lists",
        "choices",
        "data",
        "error",
        "message",
        "logprob",
        "states",
        "words",
        "wordlists",
        "text",
        "usage",
    ]
)
BODIES = st.one_of(
    st.binary(max_size=40),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(FIELDS, VALUES).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [
            b"",
            b"<html>",
            b"NaN",
            b"9" * 5000,
            b"[" * 10_000,
            b'{"a":' * 10_000,
            b'"\xff"',
            b'"\\ud800"',
            b"\xef\xbb\xbf{}",
            b"\0" * 8,
            ERROR,
            ERROR[:-5],
            b"data: " + ERROR + b"\n\n",
            b"data: {}\n\ndata: [DONE]\n\n",
            gzip.compress(b"{}"),
            b'{"object": "list", "da',
        ]
    ),
)
HEADERS = {
    "content-type": [
        f"text/plain; charset={name}"
        for name in ("hex", "zip", "idna", "undefined", "utf-16", "rot13", "punycode", "none", "\xff")
    ],
    "x-shape": ["1,2", "2,1", "0,2", "-1,-2", "1,2,3", "a", f"{'9' * 5000},1", f"1,{10**25}", "\xff"],
    "location": ["/ok", "http://[", "javascript:1", "http://xn--/", "http://a:99999/", "http:///", "\xff"],
    "retry-after": ["0", "x", "-1", "Wed, 21 Oct 0001 00:00:00 -0000", "0 0 0 0:0:0 0", "\u0663", "\xff"],
    "content-encoding": ["gzip", "deflate", "gzip, deflate", "br", "zstd", "x", "\xff"],
    "x-gramophone-version": ["", "7", "\xff", f"0.{'9' * 5000}"],
    "set-cookie": ["a=b; domain=.; max-age=x", "=", "\xff"],
    "x-request-id": ["", "\xff"],
}
PAIRS = [(name, value) for name, values in HEADERS.items() for value in values]
STATUSES = [200, 201, 204, 206, 299, 301, 302, 307, 308, 304, 400, 404, 409, 413, 429, 500, 503, 599, 999]


def outcome(method, transport):
    """Return the result of a method of both clients, or the error that both raise."""

    async def in_async():
        async with AsyncClient("http://x", transport=transport, max_retries=1) as client:
            asked = METHODS[method](client)
            return [item async for item in asked] if hasattr(asked, "__aiter__") else await asked

    outcomes = []
    with Client("http://x", transport=transport, max_retries=1) as client:
        for ask in (lambda: METHODS[method](client), lambda: asyncio.run(in_async())):
            try:
                asked = ask()
                outcomes.append(list(asked) if hasattr(asked, "__next__") else asked)
            except GramophoneError as error:
                outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1] or isinstance(outcomes[0], memoryview)
    return outcomes[0]


def replying(content, status=200, headers=()):
    """Transport that sends a reply as it is."""
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    return httpx.MockTransport(
        lambda _: httpx.Response(status, headers=encoded, stream=httpx.ByteStream(content))
    )


@pytest.fixture(autouse=True, scope="module")
def no_waiting():
    """Compute the delays before retries, but do not wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "gramophone_client.client.retry_delay_s", lambda *given: 0 * calls.retry_delay_s(*given)
        )
        yield


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=60, deadline=None)
@given(BODIES, st.sampled_from(STATUSES), st.lists(st.sampled_from(PAIRS), max_size=2))
def test_every_reply_gives_a_result_or_the_clients_error(method, content, status, headers):
    outcome(method, replying(content, status, headers))


@pytest.mark.parametrize("header", PAIRS, ids=[f"{name}={value[:20]!a}" for name, value in PAIRS])
def test_every_header_gives_a_result_or_the_clients_error(header):
    for status, method in itertools.product((200, 302, 429, 500), ("models", "log_probs", "score_lines")):
        for content in (ERROR, b"\0" * 8, b"<html>\xff", b""):
            outcome(method, replying(content, status, [header]))


def test_the_table_has_every_method():
    listed = {name.partition(".")[2] or name for name in METHODS}
    defined = {
        name
        for group in (
            Client,
            *(type(made.fget(None)) for made in (Client.states, Client.users, Client.wordlists)),
        )
        for kind in group.__mro__
        for name, value in vars(kind).items()
        if type(value).__name__ in {"Method", "LinesMethod"}
    }
    assert listed == defined


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_errors(value):
    content = f'{{"model": "m", "results": [{{"logprob": {value}}}]}}'.encode()
    with Client("http://x", transport=replying(content)) as client, pytest.raises(ServerError):
        client.score(["a"])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_results_as_texts_are_expected(count):
    content = json.dumps({"model": "m", "logprobs": [[-1.0]] * count}).encode()
    expected = pytest.raises(ServerError, match=f"logprobs has {count} entries for 2 in the request")
    with Client("http://x", transport=replying(content)) as client, expected:
        client.states.next(["a", "b"])


@pytest.mark.parametrize(
    ("context", "count"), [("a", 1), ("", 1), ([], 1), ([3, 4], 1), (["a", "b"], 2), ([[], [3]], 2)]
)
def test_a_state_for_each_context_is_expected(context, count):
    content = json.dumps({"model": "m", "states": [{"state": "s", "num_tokens": 0}] * count}).encode()
    with Client("http://x", transport=replying(content)) as client:
        assert len(client.states.open(context).states) == count


@pytest.mark.parametrize("words", [[], [WORD | {"num_tokens": 2}]])
def test_kenlm_needs_words_with_lengths(monkeypatch, words):
    result = SCORE | {"words": words, "ngram_lengths": [1]}
    corpus = {"logprob": -1.0, "num_tokens": 1, "num_oov": 0, "perplexity": None, "bits_per_byte": None}
    content = json.dumps({"model": "m", "results": [result], "corpus": corpus}).encode()
    monkeypatch.setattr(kenlm, "Client", lambda url, **_options: Client(url, transport=replying(content)))
    with pytest.raises(ServerError, match="lacks words"):
        kenlm.Model("http://x")


class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Body without an end."""

    def __iter__(self):
        return itertools.repeat(b" " * 1000)

    async def __aiter__(self):
        for chunk in self:
            yield chunk


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("status", [200, 500])
def test_a_reply_without_an_end_is_an_error(monkeypatch, method, status):
    monkeypatch.setattr("gramophone_client.calls.MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("gramophone_client.calls.MAX_REPLY_BYTES", 1 << 20)
    endless = httpx.MockTransport(lambda _: httpx.Response(status, stream=Endless()))
    kind, message = outcome(method, endless)
    assert kind is ServerError
    assert status == 500 or "has over 1048576 bytes" in message


def seconds_to_read(chunks):
    reader = calls.ReplyReader(Call("GET", "/", lambda *_: [], last_line=b""), {})
    begin = time.process_time()
    for chunk in chunks:
        list(reader.push(chunk))
    return time.process_time() - begin


def test_a_long_line_takes_time_in_proportion_to_its_length():
    pieces = 4096
    short = seconds_to_read([b"x" * 4095 + b"\n"] * pieces)
    assert seconds_to_read([b"x" * 4096] * pieces) < 50 * (short + 0.01)
