"""Phrases in re-ranking over HTTP: names that the model does not know."""

import json
import math

import pytest

from gramophone_client import Client

LINES = {"content-type": "application/x-ndjson"}
NAMES = [{"text": "Jaan Tamm"}, {"text": "w3 kask", "weight": 3.0, "class": "street"}]


def test_a_new_name_wins(rerank, texts):
    candidates = texts("w1 john w2", "w1 jaan tamm w2")
    assert rerank(candidates)["lists"][0]["ranking"][0]["index"] == 0
    reply = rerank(candidates, phrases=NAMES)
    assert reply["weights"] == {"lm": 1.0, "phrases": 10.0, "phrases:street": 10.0}
    assert reply["lists"][0]["ranking"][0]["index"] == 1


def test_features_are_the_weights_of_the_phrases_in_a_candidate(rerank, texts, by_index):
    spoken = texts("w1", "Jaan Tamm, jaan tamm!", "W3 Kask", "jaan w3 tamm kask")
    ranked = by_index(rerank(spoken, phrases=NAMES)["lists"][0])
    assert [c["features"]["phrases"] for c in ranked] == [0, 2, 0, 0]
    assert [c["features"]["phrases:street"] for c in ranked] == [0, 0, 3, 0]


@pytest.mark.parametrize("model", ["new", "lstm", "pieces", "chars"])
def test_unknown_words_of_a_phrase_share_the_probability_of_unk_and_are_not_counted(
    rerank, texts, by_index, model
):
    spoken = texts("w1 jaan tamm", "w3 kask")
    plain = by_index(rerank(spoken, model=model)["lists"][0])
    named = by_index(rerank(spoken, model=model, phrases=NAMES)["lists"][0])
    # weights of the words: jaan 1, tamm 1, w3 3, kask 3
    for before, after, share in zip(plain, named, (math.log(1 / 8) * 2, math.log(3 / 8)), strict=True):
        unknown = before["features"]["unk"] > 0
        assert after["features"]["unk"] == 0
        lm = before["features"]["lm"] + (share if unknown else 0)
        assert after["features"]["lm"] == pytest.approx(lm)


def test_further_models_know_words_of_their_own(rerank, texts):
    (ranked,) = rerank(
        texts("w1 jaan tamm"), model="chars", models=[{"name": "b", "model": "backward"}], phrases=NAMES
    )["lists"]
    assert ranked["ranking"][0]["features"]["unk:b"] == 0


def test_a_query_that_is_scored_after_a_candidate_is_not_the_candidate(rerank, texts):
    given = {**texts("w1 jaan tamm", "w1"), "continuation": "w2 jaan"}
    plain, named = (rerank(given, **more)["lists"][0]["ranking"] for more in ({}, {"phrases": NAMES}))
    assert sorted(c["features"]["lm"] for c in plain) == sorted(c["features"]["lm"] for c in named)
    assert {c["features"]["phrases"] for c in named} == {0.0, 1.0}


@pytest.mark.parametrize("model", ["new", "lstm"])
def test_a_list_without_phrases_has_the_same_bytes_as_without_any(http, texts, model):
    lists = [texts(f"w{i} jaan", "tamm w3 w5", "kask") for i in range(30)]
    body = "\n".join(map(json.dumps, lists)).encode()
    query = {"weights": "lm=0.7,unk=-2,words=0.1", "model": model}
    more = {"phrases": json.dumps(NAMES), "weights": query["weights"] + ",phrases=4,phrases:street=0.3"}
    plain = http.post("/v1/rerank", content=body, headers=LINES, params=query)
    named = http.post("/v1/rerank", content=body, headers=LINES, params=query | more)
    assert plain.status_code == 200
    assert named.content == plain.content


def test_lines_have_phrases_in_the_query_as_lists_have_them_in_the_body(http, rerank, texts):
    query = {"phrases": json.dumps(NAMES), "weights": "lm=1,phrases=4"}
    line = http.post("/v1/rerank", content=json.dumps(texts("w1", "jaan tamm")), headers=LINES, params=query)
    asked = rerank(texts("w1", "jaan tamm"), phrases=NAMES, weights={"lm": 1, "phrases": 4})
    assert line.json() == asked["lists"][0]


def test_the_client_sends_phrases_with_lists_and_lines(reranking_server, texts):
    given = texts("w1 john w2", "w1 jaan tamm w2")
    models = [{"name": "old", "model": "old", "weight": 0.5}]
    with Client(reranking_server.url) as client:
        whole = client.rerank([given], phrases=NAMES, models=models).lists[0]
        (line,) = client.rerank_lines([given], phrases=NAMES, models=models)
    assert whole.ranking == line.ranking
    assert {c.features["phrases"] for c in whole.ranking} == {0.0, 1.0}


def test_weights_of_absent_phrases_change_nothing(rerank, texts):
    weights = {"lm": 1.0, "phrases": 5.0, "phrases:town": 2.0}
    plain = rerank(texts("w1 w2", "w3"), weights={"lm": 1.0})
    assert rerank(texts("w1 w2", "w3"), weights=weights)["lists"] == plain["lists"]


@pytest.mark.parametrize(
    ("phrases", "param", "message"),
    [
        ([{"text": "w " * 1000}], "phrases[0].text", "has 2000 characters; at most 200"),
        ([{"text": "w " * 17}], "phrases[0].text", "17 words; a phrase has from 1 to 16"),
        ([{"text": "w"}, {"text": "W!"}], "phrases[1].text", "has the words of phrases[0].text"),
        ([{"text": "w", "weight": 0}], "phrases[0].weight", "must be above 0 and at most 1000"),
        ([{"text": "w", "weight": "x"}], "phrases[0].weight", "valid number"),
        ([{"text": "w", "class": "a b"}], "phrases[0].class", "pattern"),
        ([{"text": "w", "kind": "a"}], "phrases[0].kind", "unknown parameter"),
        ([{}], "phrases[0].text", "required"),
        ([{"text": f"w{i}"} for i in range(10_001)], "phrases", "has 10001 entries; at most 10000"),
        ("jaan", "phrases", "valid array"),
    ],
)
def test_bad_phrases_are_refused_with_field_limit_and_value(refused, texts, phrases, param, message):
    error = refused(texts("w1"), phrases=phrases)
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("jaan", "phrases"),
        ("[{]", "phrases"),
        ("", "phrases"),
        ('["jaan"]', "phrases[0]"),
        ('[{"text": "a"}], "x": 1', "x"),
        ('[{"text": "a", "weight": 0}]', "phrases[0].weight"),
    ],
)
def test_phrases_in_the_query_are_a_json_array(http, texts, given, param):
    reply = http.post("/v1/rerank", content=json.dumps(texts("w1")), headers=LINES, params={"phrases": given})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_given_feature_with_the_name_of_a_computed_one_is_refused(refused):
    error = refused({"candidates": [{"text": "w1", "features": {"phrases:street": 1.0}}]})
    assert error["param"] == "lists[0].candidates[0].features.phrases:street"
