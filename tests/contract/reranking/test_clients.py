"""Re-ranking with the typed clients."""

import asyncio

import pytest

from service.client import AsyncClient, BadRequestError, Client
from service.schemas.replies import ErrorBody

LISTS = [
    {
        "id": "u",
        "candidates": [{"text": "w3 w5", "features": {"am": -1.0}}, {"text": "w9", "features": {"am": 0.0}}],
    },
    {"candidates": [{"text": "w\u2028 w5", "features": {"am": 0.5}}], "context": "w3"},
]
OPTIONS = {
    "mixture": [{"model": "new", "weight": 0.25}, {"model": "lstm", "weight": 0.75}],
    "models": [{"model": "old@1", "name": "o", "weight": -0.5}, {"model": "chars", "name": "c"}],
    "weights": {"lm": 0.7, "am": 1.0, "words": 0.1},
    "length_exponent": 0.5,
    "mbr": "chrf",
    "confidences": True,
    "detail": "word",
}


@pytest.fixture(scope="module")
def client(reranking_server):
    with Client(reranking_server.url) as client:
        yield client


def test_lines_are_what_one_request_gives(client):
    assert list(client.rerank_lines(LISTS, **OPTIONS)) == client.rerank(LISTS, **OPTIONS).lists


def test_both_clients_give_the_same(reranking_server, client):
    async def ask():
        async with AsyncClient(reranking_server.url) as other:
            whole = await other.rerank(LISTS, **OPTIONS)
            return whole, [line async for line in other.rerank_lines(LISTS, **OPTIONS)]

    assert asyncio.run(ask()) == (
        client.rerank(LISTS, **OPTIONS),
        list(client.rerank_lines(LISTS, **OPTIONS)),
    )


def test_a_wrong_line_is_an_error_in_its_place(client):
    good, wrong, again = client.rerank_lines([LISTS[0], {"candidates": []}, LISTS[0]])
    assert isinstance(wrong, ErrorBody)
    assert wrong.param == "candidates"
    assert good == again


def test_a_weight_beside_a_model_counts_without_others(client):
    options = {"models": [{"model": "old", "name": "o", "weight": -0.5}]}
    (line,) = client.rerank_lines(LISTS[:1], **options)
    reply = client.rerank(LISTS[:1], **options)
    assert reply.weights == {"lm": 1.0, "lm:o": -0.5}
    assert [line] == reply.lists


def test_a_weight_beside_a_model_does_not_undo_a_profile(client):
    """Lines were ranked by the language model alone, whatever the profile said."""
    options = {"models": [{"model": "old", "name": "o", "weight": -0.5}], "profile": "speech"}
    with pytest.raises(BadRequestError, match="profile") as raised:
        next(client.rerank_lines(LISTS[:1], **options))
    assert raised.value.param == "models"


def test_a_session_goes_from_list_to_list(client):
    first = client.rerank([{"candidates": [{"text": "w3"}], "commit": "w1"}]).lists[0]
    second = client.rerank(
        [{"candidates": [{"text": "w5"}], "session": first.session, "commit": "w3"}]
    ).lists[0]
    whole = client.rerank([{"candidates": [{"text": "w5"}], "context": "w1 w3"}]).lists[0]
    assert second.ranking[0].total == pytest.approx(whole.ranking[0].total)


def test_the_contract_documents_its_example(http):
    schema = http.get("/openapi.json").json()["components"]["schemas"]["RerankRequest"]
    (example,) = schema["examples"]
    names = example["models"][0]
    reply = http.post("/v1/rerank", json=example | {"models": [names | {"model": "old"}]})
    assert reply.status_code == 200, reply.text
    assert set(example) <= set(schema["properties"])
    assert all("description" in about for name, about in schema["properties"].items() if name != "timeout_ms")
