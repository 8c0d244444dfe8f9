"""Log-linear totals, orders and posteriors."""

import math

import numpy as np
import pytest

from models.errors import InputError
from models.reranking.ranking import LogLinearModel, rank_by, scaled_posteriors


def test_the_total_is_the_weighted_sum_of_the_features():
    model = LogLinearModel(weights={"lm": 0.5, "am": -1.0, "words": 2.0})
    assert model.totals(np.array([[-6.0, 4.0, 2.0], [0.0, 1.0, 0.0]])).tolist() == [-3.0, -1.0]


def test_without_weights_all_totals_are_alike():
    assert LogLinearModel(weights={}).totals(np.zeros((3, 0))).tolist() == [0, 0, 0]


def test_a_total_does_not_depend_on_company():
    values = np.random.default_rng(0).normal(size=(50, 7)) * 1e3
    model = LogLinearModel(weights={f"f{i}": 0.1 * i - 0.3 for i in range(7)})
    assert [model.totals(values[i : i + 1])[0] for i in range(50)] == model.totals(values).tolist()


def test_features_that_must_be_given_are_those_that_nobody_computes():
    weights = dict.fromkeys(["lm", "lm:old", "words", "am", "rank", "am*words", "tm*tokens", "lm_sum"], 1.0)
    assert LogLinearModel(weights=weights, length_exponent=1.0).given == ("am", "tm")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"lm:small": 1.0}, "there is no model 'small'; models: other"),
        ({"unk:small": 1.0}, "there is no model 'small'"),
        ({"lm_sum": 1.0}, "without it, the sum is the feature lm"),
        ({"rank:square": 1.0}, "there is no feature 'rank:square'"),
    ],
)
def test_weights_of_what_nobody_computes_are_refused(weights, said):
    with pytest.raises(InputError, match=said):
        LogLinearModel(weights=weights).check(["other"])


def test_weights_of_what_can_be_computed_or_given_are_accepted():
    names = ["lm", "lm:small", "tokens:small", "rank", "rank:log", "am*words", "am:x", "anything"]
    LogLinearModel(weights=dict.fromkeys(names, 1.0)).check(["small"])


@pytest.mark.parametrize(
    "options", [{"weights": {"lm": math.nan}}, {"weights": {"lm": -1e7}}, {"length_exponent": -1.0}]
)
def test_weights_and_exponent_have_limits(options):
    with pytest.raises(InputError):
        LogLinearModel(**options)


def ranked(totals):
    return rank_by(np.array(totals)).tolist()


def test_equal_totals_keep_the_order_they_came_in():
    assert ranked([1.0, 2.0, 2.0, 1.0]) == [1, 2, 0, 3]


def test_posteriors_have_a_scale():
    totals = np.array([-1.0, -3.0])
    assert scaled_posteriors(totals, 0.0).tolist() == [0.5, 0.5]
    assert scaled_posteriors(totals, 2.0) == pytest.approx([1 / (1 + math.exp(-4)), 1 / (1 + math.exp(4))])
    assert scaled_posteriors(np.array([-1e18, 1e18]), 1e6).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("weight", "total"), [(1.0, -math.inf), (-1.0, -math.inf), (0.0, 0.0)])
@pytest.mark.parametrize("other", [-1e12, 1e12])
def test_an_impossible_feature_makes_the_total_impossible_unless_its_weight_is_zero(weight, total, other):
    model = LogLinearModel(weights={"lm": weight, "am": 1.0})
    assert model.totals(np.array([[-math.inf, other], [-2.0, 0.5]])).tolist() == [
        total + other,
        0.5 - 2 * weight,
    ]


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("totals", "possible"),
    [([-math.inf, -2e4], [1]), ([-1.0, -math.inf, -1.0], [0, 2]), ([-math.inf] * 3, [0, 1, 2])],
)
def test_impossible_candidates_have_no_mass_unless_all_are(totals, possible, scale):
    posteriors = scaled_posteriors(np.array(totals), scale)
    expected = [1 / len(possible) if index in possible else 0.0 for index in range(len(totals))]
    assert posteriors.tolist() == pytest.approx(expected)


def test_impossible_candidates_come_last_in_their_order():
    assert rank_by(np.array([-math.inf, -2e4, -math.inf, -1e4])).tolist() == [3, 1, 0, 2]
