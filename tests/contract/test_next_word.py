"""POST /v1/next-token with unit word."""

import math

import pytest


def ask(http, **body):
    response = http.post("/v1/next-token", json={"unit": "word", **body})
    assert response.status_code == 200, response.text
    return response.json()["results"]


def refused(http, **body):
    response = http.post("/v1/next-token", json={"unit": "word", **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("context", ["", "the", "the cat", "the cat "])
def test_where_tokens_are_words_both_are_told_alike(http, context):
    tokens = http.post("/v1/next-token", json={"context": context, "top_k": 10}).json()["results"][0]
    told = [c for c in tokens["candidates"] if not c["text"].startswith("<")]
    (words,) = ask(http, context=context, top_k=5)
    assert [word["text"] for word in words["candidates"]] == [c["text"] for c in told[:5]]
    assert [word["logprob"] for word in words["candidates"]] == pytest.approx(
        [c["logprob"] for c in told[:5]], abs=1e-6
    )
    assert words["unexplored_mass"] == pytest.approx(0, abs=1e-6)


def test_a_batch_is_answered_as_each_alone(http):
    together = ask(http, context=["the", "a dog", ""], top_k=3)
    assert together == [ask(http, context=one, top_k=3)[0] for one in ("the", "a dog", "")]


def test_words_are_put_together_from_characters(http):
    (found,) = ask(http, context="the ", top_k=20, model="chars")
    total = sum(math.exp(word["logprob"]) for word in found["candidates"])
    assert all(word["text"].isalpha() for word in found["candidates"])
    assert 0 < total <= 1
    assert 0 <= found["unexplored_mass"] < 1


def test_token_ids_have_no_word_to_come(http):
    error = refused(http, context=[3, 4])
    assert error["param"] == "context"
    assert "must be a text" in error["message"]


def test_too_many_words_are_refused(http):
    error = refused(http, context="the", top_k=101)
    assert error["param"] == "top_k"
    assert "at most 100" in error["message"]
