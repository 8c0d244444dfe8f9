"""POST /v1/rerank over HTTP."""

import math

import pytest


def ask(http, lists, **options):
    response = http.post("/v1/rerank", json={"lists": lists, **options})
    assert response.status_code == 200, response.text
    return response.json()["lists"]


def texts(*candidates, **rest):
    return {"candidates": [{"text": text} for text in candidates], **rest}


def whole(http, text, context=""):
    body = {"texts": [text], "context": context}
    return http.post("/v1/score", json=body).json()["results"][0]


def test_the_lm_feature_is_the_whole_sentences_score(http):
    (ranked,) = ask(http, [texts("the cat sat", "a dog ran")])
    for candidate in ranked["ranking"]:
        score = whole(http, candidate["text"])
        assert candidate["features"]["lm"] == pytest.approx(score["logprob"])
        assert candidate["features"]["tokens"] == score["num_tokens"]
        assert candidate["total"] == pytest.approx(score["logprob"])


def test_totals_can_be_rebuilt_from_the_features(http):
    candidates = [
        {"text": "the cat", "features": {"am": -2.0}},
        {"text": "a dog ran", "features": {"am": -9.5}},
    ]
    weights = {"lm": 0.7, "am": -0.3, "words": 1.5}
    (ranked,) = ask(http, [{"candidates": candidates}], weights=weights, length_exponent=0.5)
    for c in ranked["ranking"]:
        f = c["features"]
        assert c["total"] == pytest.approx(0.7 * f["lm"] - 0.3 * f["am"] + 1.5 * f["words"])
        assert f["lm"] == pytest.approx(f["lm_sum"] / math.sqrt(f["tokens"]))
        assert f["am"] == candidates[c["index"]]["features"]["am"]


def test_order_posteriors_and_ids_of_several_lists(http):
    lists = ask(http, [texts("the cat", "cat the", id="u1"), texts("a dog", context="the cat")])
    assert [one["id"] for one in lists] == ["u1", None]
    for one in lists:
        totals = [c["total"] for c in one["ranking"]]
        assert totals == sorted(totals, reverse=True)
        assert sum(c["posterior"] for c in one["ranking"]) == pytest.approx(1)
        assert one["unchanged"] == (one["ranking"][0]["index"] == 0)


def test_ties_keep_first_pass_order(http):
    (ranked,) = ask(http, [texts("the cat", "a dog", "the cat")], weights={})
    assert [c["index"] for c in ranked["ranking"]] == [0, 1, 2]
    assert ranked["unchanged"]


def test_candidates_of_the_same_text_are_scored_once(http, server):
    def scored():
        return server.app.state.services.host.resolve("mixture").model.num_advances

    ask(http, [texts("the dog ran")])
    before = scored()
    ask(http, [texts("the dog ran")])
    single = scored() - before
    ask(http, [texts(*["the dog ran"] * 50)])
    assert scored() - before == 2 * single


@pytest.mark.parametrize(("context", "text"), [("the", "cat"), ("the ", "cat"), ("the", " cat")])
def test_one_space_stands_between_context_and_candidate(http, context, text):
    (ranked,) = ask(http, [texts(text, context=context)])
    want = whole(http, " cat", context="the")
    assert ranked["ranking"][0]["features"]["lm"] == pytest.approx(want["logprob"])


def test_a_missing_feature_is_named(http):
    body = {"lists": [texts("the")], "weights": {"am": 1.0}}
    error = http.post("/v1/rerank", json=body).json()["error"]
    assert error["param"] == "lists[0].candidates[0].features"
    assert "'am'" in error["message"]
