"""Re-ranking over HTTP: features and weights, choice and confidence, several models in one request."""

import math

import numpy as np
import pytest

from models.calls import run_to_completion
from models.reranking.mbr import expected_utilities, word_confidences

FEATURE_TEXTS = ("w3 w5 w9", "w3 w5", "w1", "w3 zzz w9 zzz")
EVERY_MODEL = ["new", "old", "lstm", "chars", "pieces"]


def weighted_sum(candidate, weights):
    return sum(weight * candidate["features"][name] for name, weight in weights.items())


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("model", EVERY_MODEL)
def test_totals_are_the_weighted_sums_of_the_returned_features(rerank, model, exponent):
    weights = {
        "lm": 0.7,
        "am": -0.3,
        "words": 1.5,
        "tokens": 0.1,
        "unk": -2.0,
        "rank": 0.25,
        "am*tokens": 0.01,
    }
    candidates = [{"text": text, "features": {"am": -0.31 * i}} for i, text in enumerate(FEATURE_TEXTS)]
    reply = rerank({"candidates": candidates}, weights=weights, model=model, length_exponent=exponent)
    assert reply["weights"] == weights
    for c in reply["lists"][0]["ranking"]:
        assert c["total"] == pytest.approx(weighted_sum(c, weights), abs=1e-9)


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_lm_tokens_and_unk_are_those_of_score(rerank, score, texts, by_index, model):
    for c in by_index(rerank(texts(*FEATURE_TEXTS), model=model)["lists"][0]):
        told = score(c["text"], model=model)
        assert c["features"]["lm"] == pytest.approx(told["logprob"], abs=1e-4)
        assert (c["features"]["tokens"], c["features"]["unk"]) == (told["num_tokens"], told["num_oov"])
        assert c["features"]["words"] == len(c["text"].split())


def test_the_normalised_score_is_a_feature_beside_the_sum(rerank, texts):
    whole = rerank(texts(*FEATURE_TEXTS))["lists"][0]["ranking"]
    divided = rerank(texts(*FEATURE_TEXTS), length_exponent=0.5)["lists"][0]["ranking"]
    sums = {c["text"]: c["features"]["lm"] for c in whole}
    for c in divided:
        f = c["features"]
        assert f["lm_sum"] == pytest.approx(sums[c["text"]])
        assert f["lm"] == pytest.approx(f["lm_sum"] / math.sqrt(f["tokens"]))
    assert "lm_sum" not in whole[0]["features"]


@pytest.mark.parametrize(("bos", "eos"), [(False, True), (True, False), (False, False)])
def test_sentence_marks_are_as_asked(rerank, score, texts, by_index, bos, eos):
    (ranked,) = rerank(texts("w3 w5", "w9"), bos=bos, eos=eos)["lists"]
    for c in by_index(ranked):
        assert c["features"]["lm"] == pytest.approx(score(c["text"], bos=bos, eos=eos)["logprob"], abs=1e-5)


def test_an_empty_candidate_has_its_end_or_nothing(rerank, texts, by_index):
    first = by_index(rerank(texts("", "w3"))["lists"][0])[0]["features"]
    assert (first["tokens"], first["words"]) == (1, 0)
    nothing = by_index(rerank(texts("", "w3"), eos=False)["lists"][0])[0]["features"]
    assert (nothing["tokens"], nothing["lm"]) == (0, 0)


def test_detail_reports_tokens_or_words(rerank, score, texts):
    (ranked,) = rerank(texts("w3 w5", "zzz w9"), detail="token")["lists"]
    for c in ranked["ranking"]:
        assert c["tokens"] == score(c["text"])["tokens"]
        assert sum(t["logprob"] for t in c["tokens"]) == pytest.approx(c["features"]["lm"])
    (ranked,) = rerank(texts("w3 w5", "zzz w9"), detail="word", model="pieces")["lists"]
    assert [w["text"] for w in ranked["ranking"][0]["words"]][:2] == ranked["ranking"][0]["text"].split()


def test_derived_features_are_told(rerank, by_index):
    candidates = [{"text": text, "features": {"am": -0.5}} for text in ("w3 w5", "w9", "w3 w5")]
    (ranked,) = rerank({"candidates": candidates}, weights={"rank:log": 1, "am*words": 1})["lists"]
    told = [c["features"] for c in by_index(ranked)]
    assert [f["rank:log"] for f in told] == pytest.approx([0, -math.log(2), 0])
    assert [f["am*words"] for f in told] == [-1.0, -0.5, -1.0]


def test_features_without_a_weight_may_differ_between_candidates(rerank):
    candidates = [{"text": "w3", "features": {"x": 1.0}}, {"text": "w5", "features": {"y": 1e300}}]
    (ranked,) = rerank({"candidates": candidates})["lists"]
    assert {"x", "y"} <= {name for c in ranked["ranking"] for name in c["features"]}


@pytest.mark.parametrize(
    ("weights", "param", "said"),
    [
        ({"am": 1.0}, "lists[0].candidates[1].features", "has no 'am'"),
        ({"lm:other": 1.0}, "weights.lm:other", "there is no model 'other'"),
        ({"lm_sum": 1.0}, "weights.lm_sum", "requires length_exponent"),
        ({"rank:square": 1.0}, "weights", "rank:log"),
        ({"lm": 1e7}, "weights.lm", "from -1e+06 to 1e+06"),
        ({"big": 1.0}, "lists[0].candidates[0].features.big", "from -1e+12 to 1e+12"),
        ({"bad*words": 1.0}, "lists[0].candidates[0].features", "has no 'bad'"),
    ],
)
def test_invalid_weight_or_feature_is_named(refused, weights, param, said):
    candidates = [
        {"text": "w3", "features": {"am": 1.0, "big": 1e13}},
        {"text": "w5", "features": {"big": 1.0}},
    ]
    error = refused({"candidates": candidates}, weights=weights)
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize("name", ["lm", "words", "tokens", "unk", "lm_sum", "rank", "am*words", "lm:old"])
def test_a_computed_feature_cannot_be_given(refused, name):
    given = {"candidates": [{"text": "w3", "features": {name: 1.0}}]}
    error = refused(given, models=[{"model": "old", "name": "old"}])
    assert error["param"] == f"lists[0].candidates[0].features.{name}"
    assert "computed by the service" in error["message"]


CHOICE_TEXTS = ("w3 w5 w9", "w3 w5 w8", "w3 w5 w9", "w1 w5 w9 w2", "w20")


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_posteriors_have_a_scale(rerank, texts, scale):
    reply = rerank(texts(*CHOICE_TEXTS), posterior_scale=scale)
    assert reply["posterior_scale"] == scale
    ranking = reply["lists"][0]["ranking"]
    mass = np.exp(scale * np.array([c["total"] for c in ranking]))
    assert [c["posterior"] for c in ranking] == pytest.approx(mass / mass.sum())


@pytest.mark.parametrize("utility", ["wer", "chrf", "bleu"])
def test_minimum_risk_orders_by_expected_utility(rerank, texts, by_index, utility):
    (ranked,) = rerank(texts(*CHOICE_TEXTS), mbr=utility, posterior_scale=0.3)["lists"]
    given = by_index(ranked)
    posteriors = np.array([c["posterior"] for c in given])
    want = run_to_completion(expected_utilities(CHOICE_TEXTS, posteriors, utility))
    assert [c["expected_utility"] for c in given] == pytest.approx(want)
    utilities = [c["expected_utility"] for c in ranked["ranking"]]
    assert utilities == sorted(utilities, reverse=True)
    assert ranked["unchanged"] == (ranked["ranking"][0]["index"] == 0)


def test_totals_stay_what_they_are_beside_the_risk(rerank, texts, by_index):
    plain, risk = (
        by_index(rerank(texts(*CHOICE_TEXTS), **more)["lists"][0]) for more in ({}, {"mbr": "wer"})
    )
    assert [c["total"] for c in plain] == [c["total"] for c in risk]
    assert "expected_utility" not in plain[0]


def test_the_best_candidates_words_have_confidences(rerank, texts, by_index):
    (ranked,) = rerank(texts(*CHOICE_TEXTS), confidences=True)["lists"]
    best = ranked["ranking"][0]
    posteriors = [c["posterior"] for c in by_index(ranked)]
    want = run_to_completion(word_confidences(CHOICE_TEXTS, posteriors, best["index"]))
    told = ranked["confidences"]
    assert [(c["text"], c["start"], c["end"]) for c in told] == [(w.text, w.start, w.end) for w in want]
    assert [c["confidence"] for c in told] == pytest.approx([w.confidence for w in want])


def test_ties_keep_first_pass_order(rerank, texts):
    (ranked,) = rerank(texts(*CHOICE_TEXTS), weights={})["lists"]
    assert [c["index"] for c in ranked["ranking"]] == [0, 1, 2, 3, 4]
    assert ranked["unchanged"]


def test_duplicates_may_be_dropped(rerank, texts):
    (ranked,) = rerank(texts(*CHOICE_TEXTS), drop_duplicates=True)["lists"]
    assert sorted(c["index"] for c in ranked["ranking"]) == [0, 1, 3, 4]
    assert sum(c["posterior"] for c in ranked["ranking"]) == pytest.approx(1)


def test_only_the_best_are_told_if_so_asked(rerank, texts):
    whole = rerank(texts(*CHOICE_TEXTS))["lists"][0]["ranking"]
    assert rerank(texts(*CHOICE_TEXTS), top=2)["lists"][0]["ranking"] == whole[:2]
    assert rerank(texts(*CHOICE_TEXTS), top=100)["lists"][0]["ranking"] == whole


def test_the_list_may_vote_by_a_consensus_feature(rerank, texts, by_index):
    (ranked,) = rerank(texts(*CHOICE_TEXTS), weights={"consensus:wer": 1.0})["lists"]
    want = run_to_completion(expected_utilities(CHOICE_TEXTS, np.full(5, 0.2), "wer"))
    assert [c["total"] for c in by_index(ranked)] == pytest.approx(want)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"mbr": "meteor"}, "mbr"),
        ({"posterior_scale": -1}, "posterior_scale"),
        ({"posterior_scale": 1e7}, "posterior_scale"),
        ({"top": 0}, "top"),
        ({"length_exponent": 5}, "length_exponent"),
    ],
)
def test_invalid_options_are_refused(refused, texts, options, param):
    assert refused(texts("w3"), **options)["param"] == param


MODEL_TEXTS = ("w3 w5 w9", "w9 w3", "w1 zzz")
OLD = {"model": "old", "name": "old"}


def logprobs(score, text, **options):
    return np.array([token["logprob"] for token in score(text, **options)["tokens"]])


def test_further_models_have_features_with_signed_weights(rerank, score, texts):
    weights = {"lm": 1.0, "lm:old": -0.4, "tokens:old": 0.1, "unk:old": -1.0}
    reply = rerank(texts(*MODEL_TEXTS), models=[OLD], weights=weights)
    assert (reply["model"], reply["models"]) == ("new@1", {"old": "old@1"})
    for c in reply["lists"][0]["ranking"]:
        f = c["features"]
        assert f["lm:old"] == pytest.approx(score(c["text"], model="old")["logprob"], abs=1e-4)
        assert c["total"] == pytest.approx(sum(w * f[name] for name, w in weights.items()), abs=1e-9)


def test_a_weight_may_stand_with_its_model(rerank, texts):
    apart = rerank(texts(*MODEL_TEXTS), models=[OLD], weights={"lm": 1.0, "lm:old": -0.4})
    beside = rerank(texts(*MODEL_TEXTS), models=[OLD | {"weight": -0.4}], weights={"lm": 1.0})
    assert apart == beside


def test_further_models_may_have_other_tokens(rerank, score, texts):
    further = [{"model": "chars", "name": "c"}, {"model": "pieces", "name": "p"}]
    (ranked,) = rerank(texts(*MODEL_TEXTS), models=further)["lists"]
    for c in ranked["ranking"]:
        assert c["features"]["tokens:c"] == len(c["text"]) + 1
        assert c["features"]["lm:p"] == pytest.approx(score(c["text"], model="pieces")["logprob"], abs=1e-4)


@pytest.mark.parametrize("other", ["old", "lstm"])
def test_a_mixture_mixes_probabilities_at_every_token(rerank, score, texts, other):
    mixture = [{"model": "new", "weight": 0.7}, {"model": other, "weight": 0.3}]
    reply = rerank(texts(*MODEL_TEXTS), mixture=mixture, detail="token")
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
        ({"models": [OLD, OLD]}, "models[1].name", "the name of an earlier model"),
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
    reply = rerank(texts(*MODEL_TEXTS, continuation="w10 w12"), eos=False)
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
    (ranked,) = rerank(texts(*MODEL_TEXTS), models=[{"model": "backward", "name": "b"}], detail="token")[
        "lists"
    ]
    for c in ranked["ranking"]:
        assert c["features"]["lm:b"] == pytest.approx(score(c["text"], model="backward")["logprob"], abs=1e-4)
    (ranked,) = rerank(texts(*MODEL_TEXTS), model="backward", detail="token")["lists"]
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
