"""Features, totals and what weights may name, over HTTP."""

import math

import pytest

TEXTS = ("w3 w5 w9", "w3 w5", "w1", "w3 zzz w9 zzz")
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
    candidates = [{"text": text, "features": {"am": -0.31 * i}} for i, text in enumerate(TEXTS)]
    reply = rerank({"candidates": candidates}, weights=weights, model=model, length_exponent=exponent)
    assert reply["weights"] == weights
    for c in reply["lists"][0]["ranking"]:
        assert c["total"] == pytest.approx(weighted_sum(c, weights), abs=1e-9)


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_lm_tokens_and_unk_are_those_of_score(rerank, score, texts, by_index, model):
    for c in by_index(rerank(texts(*TEXTS), model=model)["lists"][0]):
        told = score(c["text"], model=model)
        assert c["features"]["lm"] == pytest.approx(told["logprob"], abs=1e-4)
        assert (c["features"]["tokens"], c["features"]["unk"]) == (told["num_tokens"], told["num_oov"])
        assert c["features"]["words"] == len(c["text"].split())


def test_the_normalised_score_is_a_feature_beside_the_sum(rerank, texts):
    whole = rerank(texts(*TEXTS))["lists"][0]["ranking"]
    divided = rerank(texts(*TEXTS), length_exponent=0.5)["lists"][0]["ranking"]
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
        ({"lm:other": 1.0}, "weights.lm:other", "no model is called 'other'"),
        ({"lm_sum": 1.0}, "weights.lm_sum", "without length_exponent"),
        ({"rank:square": 1.0}, "weights", "rank:log"),
        ({"lm": 1e7}, "weights.lm", "from -1e+06 to 1e+06"),
        ({"big": 1.0}, "lists[0].candidates[0].features.big", "from -1e+12 to 1e+12"),
        ({"bad*words": 1.0}, "lists[0].candidates[0].features", "has no 'bad'"),
    ],
)
def test_what_cannot_be_weighed_is_named(refused, weights, param, said):
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
