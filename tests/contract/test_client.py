"""The typed client, synchronous and asynchronous, against the real service and made-up replies."""

import asyncio
import math

import httpx
import pytest

from gramophone_client import (
    AsyncClient,
    BadRequestError,
    Client,
    NotFoundError,
    OverloadedError,
    ServerError,
    UnreachableError,
)
from gramophone_client.types import ErrorBody
from service.settings import Settings
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running

MODEL = FakeModel(fake_vocabulary())
GENERATE = {"prompt": "the", "model": "slow", "seed": 3, "max_tokens": 5, "logprobs": True}
LISTS = [{"id": "u", "candidates": [{"text": "the cat"}, {"text": "a \u2028 dog"}]}]
LINES = [{"text": "the cat"}, {"text": ""}, {"text": "a \u2028 dog"}]


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as client:
        yield client


def in_async(server, use):
    """Return the result of an asynchronous client."""

    async def main():
        async with AsyncClient(server.url) as client:
            return await use(client)

    return asyncio.run(main())


async def gathered(stream):
    return [item async for item in stream]


@pytest.mark.parametrize(
    ("call", "arguments", "options"),
    [
        ("next_token", (["the", ""],), {"top_k": 3}),
        ("score", (["the cat"],), {"context": "a", "detail": "token", "eos": False}),
        ("score", (), {"token_ids": [[3, 4]]}),
        ("rerank", (LISTS,), {"weights": {"lm": 1, "words": 0.5}}),
        ("generate", (), GENERATE),
        ("model", ("mixture@champion",), {}),
        ("models", (), {}),
    ],
)
def test_both_clients_give_the_same_typed_reply(server, client, call, arguments, options):
    reply = getattr(client, call)(*arguments, **options)
    assert reply == in_async(server, lambda c: getattr(c, call)(*arguments, **options))


def test_both_clients_stream_the_same_tokens(server, client):
    pieces = list(client.stream(**GENERATE))
    assert pieces == in_async(server, lambda c: gathered(c.stream(**GENERATE)))
    assert "".join(p.choices[0].text for p in pieces) == client.generate(**GENERATE).choices[0].text
    assert pieces[-1].usage.completion_tokens == 5


def test_both_clients_score_lines_in_order(server, client):
    outcomes = list(client.score_lines(LINES, eos=False))
    assert outcomes == in_async(server, lambda c: gathered(c.score_lines(LINES, eos=False)))
    assert isinstance(outcomes[1], ErrorBody)
    assert outcomes[2] == client.score([LINES[2]["text"]], eos=False).results[0]


@pytest.fixture(scope="module")
def listing(registry, tmp_path_factory):
    """A service with word lists of its own."""
    folder = tmp_path_factory.mktemp("lists")
    settings = Settings(registry=registry.root, models=("mixture",), wordlists=folder)
    with running(settings) as server:
        yield server


ENTRIES = ["Jaan Tamm", ("Ülle\u2028Kask", 2), {"text": "zoë"}, {"text": "zoë", "weight": 3}]


def test_a_word_list_is_stored_described_exported_copied_and_deleted(listing):
    with Client(listing.url) as client:
        stored = client.wordlists.put("names", iter(ENTRIES), casing="exact", language="et")
        assert (stored.name, stored.version, stored.casing, stored.language) == ("names", 1, "exact", "et")
        assert client.wordlists.get("names") == stored
        exported = list(client.wordlists.entries("names"))
        assert {one.text: one.weight for one in exported} == {"Jaan Tamm": 1, "Ülle Kask": 2, "zoë": 4}
        copied = client.wordlists.put("copy", client.wordlists.entries("names"))
        assert (copied.entries, copied.casing, copied.language) == (3, "ignore", None)
        assert client.wordlists.list().wordlists == [copied, stored]
        assert client.wordlists.put("copy", ["a"]).version == 2
        assert [client.wordlists.delete(name) for name in ("names", "copy", "copy")] == [True, True, False]
        assert client.wordlists.list().wordlists == []


def test_both_clients_store_and_export_the_same_list(listing):
    async def use(client):
        stored = await client.wordlists.put("both", ENTRIES)
        entries = await gathered(client.wordlists.entries("both"))
        listed = (await client.wordlists.list()).wordlists
        assert await client.wordlists.get("both") == stored == listed[0]
        assert await client.wordlists.delete("both")
        return stored, entries

    with Client(listing.url) as client:
        stored = client.wordlists.put("both", ENTRIES)
        entries = list(client.wordlists.entries("both"))
        assert client.wordlists.delete("both")
    assert (stored, entries) == in_async(listing, use)


def test_requests_name_a_word_list(listing):
    phrases = [{"wordlist": "animals", "class": "animal"}]
    candidates = [{"text": "the cat"}, {"text": "the zebra"}]
    with Client(listing.url) as client:
        client.wordlists.put("animals", [("zebra", 2)])
        offered = client.autocomplete("the ze", dictionary=["zest", {"wordlist": "animals"}]).completions
        assert {one.text for one in offered} == {"zebra", "zest"}
        blocked = client.autocomplete("the ze", dictionary=["zebra"], blocklist=[{"wordlist": "animals"}])
        assert blocked.completions == []
        assert client.check("the zebra", dictionary=[{"wordlist": "animals"}]).words
        whole = client.rerank([{"candidates": candidates}], phrases=phrases).lists[0]
        further = [{"name": "b", "model": "mixture", "weight": 1.0}]
        (line,) = client.rerank_lines([{"candidates": candidates}], phrases=phrases, models=further)
        assert {one.features["phrases:animal"] for one in whole.ranking} == {0.0, 2.0}
        assert {one.features["phrases:animal"] for one in line.ranking} == {0.0, 2.0}
        assert client.generate("the", phrases=phrases, max_tokens=2).choices
        (opened,) = client.states.open("the", phrases=phrases).states
        client.states.free([opened.state])
        client.wordlists.delete("animals")
        with pytest.raises(NotFoundError) as caught:
            client.autocomplete("the ze", blocklist=[{"wordlist": "animals"}])
    assert (caught.value.code, caught.value.param) == ("unknown_word_list", "blocklist[0].wordlist")


@pytest.mark.parametrize(
    ("entries", "options", "param", "told"),
    [
        (["a", ("b", 0)], {}, "body", "line 2: weight is 0"),
        (["a", ("b", math.nan)], {}, "body", "line 2: weight is nan"),
        (["a", "\ud800"], {}, "body", "line 2: not JSON in UTF-8"),
        ([], {}, "body", "has no entries"),
        (["a"], {"casing": "lower"}, "casing", "'exact' or 'ignore'"),
        (["a"], {"language": "?"}, "language", "pattern"),
    ],
)
def test_a_wrong_word_list_is_an_error_that_says_where(listing, entries, options, param, told):
    with Client(listing.url) as client:
        with pytest.raises(BadRequestError, match=told) as caught:
            client.wordlists.put("wrong", entries, **options)
        assert caught.value.param == param
        with pytest.raises(NotFoundError):
            list(client.wordlists.entries("wrong"))


def test_whole_distributions_are_floats_by_row(client):
    rows = client.log_probs(["the", "the cat"])
    assert rows.shape == (2, 13)
    assert math.isclose(rows[1, 5], float(MODEL.table[4, 5]))


def test_errors_are_typed_and_say_where(client):
    with pytest.raises(BadRequestError, match="99") as caught:
        client.next_token("a", top_k=99)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "top_k", "invalid_value")
    assert caught.value.request_id
    with pytest.raises(NotFoundError):
        client.score(["a"], model="nobody")


def test_a_failure_in_mid_stream_is_raised(server, client):
    model = server.app.state.services.host.resolve("slow").model
    stream = client.stream(model="slow", max_tokens=50)
    next(stream)
    model.fails = True
    try:
        with pytest.raises(ServerError):
            list(stream)
    finally:
        model.fails = False


def answering(*responses):
    """Return a transport with these replies in order, and the list of its requests."""
    pending, asked = list(responses), []

    def answer(request):
        asked.append(request)
        return pending.pop(0)

    return httpx.MockTransport(answer), asked


BUSY = {"error": {"message": "busy", "type": "rate_limit_error", "param": None, "code": "overloaded"}}


def test_overload_is_retried_after_what_was_asked_for(monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    busy = httpx.Response(429, json=BUSY, headers={"retry-after": "3"})
    transport, asked = answering(busy, httpx.Response(200, json={"object": "list", "data": []}))
    assert Client("http://x", transport=transport).models().data == []
    assert (len(asked), waited) == (2, [3.0])


def test_retries_are_bounded_and_waits_grow(monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    transport, asked = answering(*[httpx.Response(429, json=BUSY)] * 3)
    with pytest.raises(OverloadedError, match="busy"):
        Client("http://x", transport=transport).models()
    assert (len(asked), waited) == (3, [0.5, 1.0])


def test_a_bad_request_is_not_retried():
    transport, asked = answering(httpx.Response(400, json=BUSY))
    with pytest.raises(BadRequestError):
        Client("http://x", transport=transport).models()
    assert len(asked) == 1


def test_an_answer_of_somebody_else_is_an_error_of_ours():
    transport, _ = answering(httpx.Response(502, text="<html>bad gateway</html>"))
    with pytest.raises(ServerError, match="bad gateway") as caught:
        Client("http://x", transport=transport).models()
    assert caught.value.status == 502


def test_no_answer_is_an_error_of_ours():
    reason = r"^no reply from http://127\.0\.0\.1:1/v1/models: ConnectError: "
    with Client("http://user:secret@127.0.0.1:1") as client, pytest.raises(UnreachableError, match=reason):
        client.models()
