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
from tests.support.fake_models import FakeModel, fake_vocabulary

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
