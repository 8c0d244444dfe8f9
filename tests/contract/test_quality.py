"""POST /v1/quality over HTTP, as one object and as lines."""

import asyncio
import json

import pytest

from service.client import AsyncClient, Client
from service.schemas.replies import ErrorBody


def ask(http, texts, **body):
    response = http.post("/v1/quality", json={"texts": texts, **body})
    assert response.status_code == 200, response.text
    return response.json()


def lines(http, content, **query):
    response = http.post(
        "/v1/quality", content=content, params=query, headers={"content-type": "application/x-ndjson"}
    )
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.removesuffix("\n").split("\n")]


def test_figures_are_those_of_score(http):
    text = "the cat sat on the zebra"
    reply = ask(http, [text])
    (result,) = reply["results"]
    scored = http.post("/v1/score", json={"texts": [text]}).json()["results"][0]
    assert (reply["model"], reply["against"]) == ("mixture@1", None)
    assert result["perplexity"] == scored["perplexity"]
    assert result["bits_per_byte"] == scored["bits_per_byte"]
    assert result["bits_per_word"] == pytest.approx(scored["bits_per_byte"] * len(text) / 7)
    assert (result["num_words"], result["num_oov"], result["difference"]) == (6, 1, None)


def test_the_difference_is_that_of_bits_per_word(http):
    """The two models need not have the same tokens."""
    own = ask(http, ["a cat sat"], model="mixture")["results"][0]
    other = ask(http, ["a cat sat"], model="chars")["results"][0]
    reply = ask(http, ["a cat sat"], model="mixture", against="chars")
    assert reply["against"] == "chars@1"
    assert reply["results"][0]["difference"] == pytest.approx(own["bits_per_word"] - other["bits_per_word"])
    assert ask(http, ["a cat sat"], against="mixture")["results"][0]["difference"] == 0


def test_texts_may_have_names(http):
    results = ask(http, [{"id": "first", "text": "the cat"}, "the cat"])["results"]
    assert [result.pop("id") for result in results] == ["first", None]
    assert results[0] == results[1]


def test_lines_are_answered_in_order_and_one_bad_line_fails_alone(http):
    asked = [b'{"text":"the cat","id":"1"}', b'{"text":""}', b"no json", b'{"text":"a","x":1}', b""]
    content = b"\n".join([*asked, '{"text":"a \u2028 dog","id":"\u05e9"}'.encode()])
    answers = lines(http, content, against="chars")
    assert answers[0] == ask(http, [{"text": "the cat", "id": "1"}], against="chars")["results"][0]
    assert [answer["error"]["param"] for answer in answers[1:5]] == ["text", None, "x", None]
    assert answers[5]["id"] == "\u05e9"
    assert len(answers) == 6


def test_many_lines_are_rated_as_each_alone(http):
    texts = [f"the {'cat ' * (n % 7)}sat" for n in range(700)]
    content = "\n".join(json.dumps({"text": text}) for text in texts)
    answers = lines(http, content)
    assert answers[:7] * 100 == answers
    assert answers[:7] == ask(http, texts[:7])["results"]


def test_a_line_that_is_too_long_fails_alone(http):
    content = b'{"text":"' + b"the " * 1001 + b'"}\n{"text":"the cat"}'
    long, fine = lines(http, content)
    assert long["error"]["code"] == "context_length_exceeded"
    assert fine["num_words"] == 2


@pytest.mark.parametrize(
    ("body", "parameter", "said"),
    [
        ({}, "texts", "required"),
        ({"texts": []}, "texts", "[]"),
        ({"texts": ["a", ""]}, "texts[1]", "empty"),
        ({"texts": [5]}, "texts[0]", "5"),
        ({"texts": [{"id": "a"}]}, "texts[0].text", "required"),
        ({"texts": ["a"], "against": 5}, "against", "5"),
        ({"texts": ["a"] * 101}, "texts", "101 entries; at most 100"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(http, body, parameter, said):
    response = http.post("/v1/quality", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == parameter
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [{"model": "nobody"}, {"against": "nobody"}])
def test_an_unknown_model_is_not_found(http, body):
    response = http.post("/v1/quality", json={"texts": ["a"], **body})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_options_of_lines_are_checked(http):
    headers = {"content-type": "application/x-ndjson"}
    response = http.post("/v1/quality?detail=word", content=b"{}", headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "detail"


def test_a_failure_on_the_way_is_the_last_line(http, server):
    engine = server.app.state.services.engine
    content = "\n".join(json.dumps({"text": text}) for text in ["the"] * 256 + ["the " * 20] * 600)
    patient, engine._request_timeout_s = engine._request_timeout_s, 0.4
    try:
        answers = lines(http, content.encode(), model="slow")
    finally:
        engine._request_timeout_s = patient
    assert answers[-1]["error"]["code"] == "deadline_exceeded"
    assert 256 < len(answers) < 856


def test_both_clients_rate_lines_in_order(server):
    items = [{"text": "the cat", "id": "1"}, {"text": ""}, {"text": "a dog"}]

    async def in_async():
        async with AsyncClient(server.url) as client:
            found = [one async for one in client.quality_lines(items, against="chars")]
            return found, await client.quality(["the cat"])

    with Client(server.url) as client:
        outcomes = list(client.quality_lines(items, against="chars"))
        reply = client.quality(["the cat"])
    assert (outcomes, reply) == asyncio.run(in_async())
    assert isinstance(outcomes[1], ErrorBody)
    assert outcomes[0].id == "1"
