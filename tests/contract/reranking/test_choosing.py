"""How the best candidate is chosen, and how sure the list is of it."""

import numpy as np
import pytest

from models.reranking.mbr import expected_utilities, word_confidences

TEXTS = ("w3 w5 w9", "w3 w5 w8", "w3 w5 w9", "w1 w5 w9 w2", "w20")


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_posteriors_have_a_scale(rerank, texts, scale):
    reply = rerank(texts(*TEXTS), posterior_scale=scale)
    assert reply["posterior_scale"] == scale
    ranking = reply["lists"][0]["ranking"]
    mass = np.exp(scale * np.array([c["total"] for c in ranking]))
    assert [c["posterior"] for c in ranking] == pytest.approx(mass / mass.sum())


@pytest.mark.parametrize("utility", ["wer", "chrf", "bleu"])
def test_minimum_risk_orders_by_expected_utility(rerank, texts, by_index, utility):
    (ranked,) = rerank(texts(*TEXTS), mbr=utility, posterior_scale=0.3)["lists"]
    given = by_index(ranked)
    want = expected_utilities(TEXTS, np.array([c["posterior"] for c in given]), utility)
    assert [c["expected_utility"] for c in given] == pytest.approx(want)
    utilities = [c["expected_utility"] for c in ranked["ranking"]]
    assert utilities == sorted(utilities, reverse=True)
    assert ranked["unchanged"] == (ranked["ranking"][0]["index"] == 0)


def test_totals_stay_what_they_are_beside_the_risk(rerank, texts, by_index):
    plain, risk = (by_index(rerank(texts(*TEXTS), **more)["lists"][0]) for more in ({}, {"mbr": "wer"}))
    assert [c["total"] for c in plain] == [c["total"] for c in risk]
    assert "expected_utility" not in plain[0]


def test_the_best_candidates_words_have_confidences(rerank, texts, by_index):
    (ranked,) = rerank(texts(*TEXTS), confidences=True)["lists"]
    best = ranked["ranking"][0]
    posteriors = [c["posterior"] for c in by_index(ranked)]
    ((*want,),) = word_confidences(TEXTS, posteriors, chosen=[best["index"]])
    told = ranked["confidences"]
    assert [(c["text"], c["start"], c["end"]) for c in told] == [(w.word, w.start, w.end) for w in want]
    assert [c["confidence"] for c in told] == pytest.approx([w.confidence for w in want])


def test_ties_keep_first_pass_order(rerank, texts):
    (ranked,) = rerank(texts(*TEXTS), weights={})["lists"]
    assert [c["index"] for c in ranked["ranking"]] == [0, 1, 2, 3, 4]
    assert ranked["unchanged"]


def test_duplicates_may_be_dropped(rerank, texts):
    (ranked,) = rerank(texts(*TEXTS), drop_duplicates=True)["lists"]
    assert sorted(c["index"] for c in ranked["ranking"]) == [0, 1, 3, 4]
    assert sum(c["posterior"] for c in ranked["ranking"]) == pytest.approx(1)


def test_only_the_best_are_told_if_so_asked(rerank, texts):
    whole = rerank(texts(*TEXTS))["lists"][0]["ranking"]
    assert rerank(texts(*TEXTS), top=2)["lists"][0]["ranking"] == whole[:2]
    assert rerank(texts(*TEXTS), top=100)["lists"][0]["ranking"] == whole


def test_the_list_may_vote_by_a_consensus_feature(rerank, texts, by_index):
    (ranked,) = rerank(texts(*TEXTS), weights={"consensus:wer": 1.0})["lists"]
    want = expected_utilities(TEXTS, np.full(5, 0.2), "wer")
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
def test_what_makes_no_sense_is_refused(refused, texts, options, param):
    assert refused(texts("w3"), **options)["param"] == param
