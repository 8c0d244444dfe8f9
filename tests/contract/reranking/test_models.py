"""Several models in one request, mixed at every token or with weights of their own; other directions of scoring."""

import numpy as np
import pytest

TEXTS = ("w3 w5 w9", "w9 w3", "w1 zzz")
OLD = {"model": "old", "name": "old"}


def logprobs(score, text, **options):
    return np.array([token["logprob"] for token in score(text, **options)["tokens"]])


def test_further_models_have_features_with_signed_weights(rerank, score, texts):
    weights = {"lm": 1.0, "lm:old": -0.4, "tokens:old": 0.1, "unk:old": -1.0}
    reply = rerank(texts(*TEXTS), models=[OLD], weights=weights)
    assert (reply["model"], reply["models"]) == ("new@1", {"old": "old@1"})
    for c in reply["lists"][0]["ranking"]:
        f = c["features"]
        assert f["lm:old"] == pytest.approx(score(c["text"], model="old")["logprob"], abs=1e-4)
        assert c["total"] == pytest.approx(sum(w * f[name] for name, w in weights.items()), abs=1e-9)


def test_a_weight_may_stand_with_its_model(rerank, texts):
    apart = rerank(texts(*TEXTS), models=[OLD], weights={"lm": 1.0, "lm:old": -0.4})
    beside = rerank(texts(*TEXTS), models=[OLD | {"weight": -0.4}], weights={"lm": 1.0})
    assert apart == beside


def test_further_models_may_have_other_tokens(rerank, score, texts):
    further = [{"model": "chars", "name": "c"}, {"model": "pieces", "name": "p"}]
    (ranked,) = rerank(texts(*TEXTS), models=further)["lists"]
    for c in ranked["ranking"]:
        assert c["features"]["tokens:c"] == len(c["text"]) + 1
        assert c["features"]["lm:p"] == pytest.approx(score(c["text"], model="pieces")["logprob"], abs=1e-4)


@pytest.mark.parametrize("other", ["old", "lstm"])
def test_a_mixture_mixes_probabilities_at_every_token(rerank, score, texts, other):
    mixture = [{"model": "new", "weight": 0.7}, {"model": other, "weight": 0.3}]
    reply = rerank(texts(*TEXTS), mixture=mixture, detail="token")
    assert reply["model"] == f"0.7 new@1 + 0.3 {other}@1"
    for c in reply["lists"][0]["ranking"]:
        mixed = 0.7 * np.exp(logprobs(score, c["text"])) + 0.3 * np.exp(
            logprobs(score, c["text"], model=other)
        )
        assert [t["logprob"] for t in c["tokens"]] == pytest.approx(np.log(mixed), abs=1e-4)
        assert c["features"]["lm"] == pytest.approx(np.log(mixed).sum(), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "param", "said"),
    [
        (
            {"mixture": [{"model": "new", "weight": 0.7}, {"model": "old", "weight": 0.7}]},
            "mixture",
            "sum to 1",
        ),
        (
            {"mixture": [{"model": "new", "weight": 0.5}, {"model": "chars", "weight": 0.5}]},
            "mixture[1].model",
            "vocab",
        ),
        (
            {"mixture": [{"model": "new", "weight": 0.5}, {"model": "backward", "weight": 0.5}]},
            "mixture[1].model",
            "dir",
        ),
        ({"mixture": [{"model": "new", "weight": 1.0}], "model": "new"}, "mixture", "either"),
        ({"mixture": []}, "mixture", "at least 1"),
        ({"models": [OLD, OLD]}, "models[1].name", "as another model is called"),
        ({"models": [{"model": "old", "name": "a b"}]}, "models[0].name", "letters"),
        ({"models": [{"model": "old", "name": f"m{i}"} for i in range(9)]}, "models", "at most 8"),
        ({"models": [OLD | {"weight": 1.0}], "weights": {"lm:old": 1.0}}, "models", "given twice"),
    ],
)
def test_models_that_cannot_score_together_are_refused(refused, texts, options, param, said):
    error = refused(texts("w3"), **options)
    assert error["param"] == param
    assert said in error["message"]


def test_a_model_that_is_not_there_is_not_found(refused, texts):
    assert refused(texts("w3"), models=[{"model": "nosuch", "name": "x"}])["code"] == "model_not_found"


def test_query_likelihood_scores_one_text_after_each_candidate(rerank, score, texts):
    reply = rerank(texts(*TEXTS, continuation="w10 w12"), eos=False)
    for c in reply["lists"][0]["ranking"]:
        told = score(" w10 w12", context=c["text"], eos=False)
        assert c["features"]["lm"] == pytest.approx(told["logprob"], abs=1e-4)
        assert (c["features"]["tokens"], c["features"]["words"]) == (2, len(c["text"].split()))


def test_query_likelihood_takes_a_context_before_the_candidate(rerank, score, texts):
    (ranked,) = rerank(texts("w5", "w9", context="w3", continuation="w10"), model="lstm")["lists"]
    for c in ranked["ranking"]:
        told = score(" w10", context=f"w3 {c['text']}", model="lstm")
        assert c["features"]["lm"] == pytest.approx(told["logprob"], abs=1e-4)


def test_a_backward_model_scores_beside_a_forward_one(rerank, score, texts):
    (ranked,) = rerank(texts(*TEXTS), models=[{"model": "backward", "name": "b"}], detail="token")["lists"]
    for c in ranked["ranking"]:
        assert c["features"]["lm:b"] == pytest.approx(score(c["text"], model="backward")["logprob"], abs=1e-4)
    (ranked,) = rerank(texts(*TEXTS), model="backward", detail="token")["lists"]
    assert ranked["ranking"][0]["tokens"] == score(ranked["ranking"][0]["text"], model="backward")["tokens"]


@pytest.mark.parametrize("rest", [{"context": "w4"}, {"continuation": "w4"}, {"commit": "w4"}])
def test_a_backward_model_takes_nothing_before_a_text(refused, texts, rest):
    error = refused(texts("w3", **rest), model="backward")
    assert error["code"] == "unsupported_parameter"
    assert "backward@1 reads from right to left" in error["message"]


@pytest.mark.parametrize("model", ["new", "lstm", "chars", "pieces"])
def test_answers_do_not_depend_on_company(rerank, texts, model):
    lists = [texts(f"w{i} w3 w9", f"w{i} w3", "w1", context="w2" * (i % 2)) for i in range(9)]
    together = rerank(*lists, model=model)
    alone = [rerank(one, model=model)["lists"][0] for one in lists]
    for one, other in zip(together["lists"], alone, strict=True):
        assert [c["index"] for c in one["ranking"]] == [c["index"] for c in other["ranking"]]
        totals = [[c["total"] for c in ranked["ranking"]] for ranked in (one, other)]
        assert totals[0] == pytest.approx(totals[1], abs=0 if model != "lstm" else 1e-5)
