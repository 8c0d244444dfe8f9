"""Log-linear totals, orders and posteriors."""

import math

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.reranking.ranking import (
    LogLinearModel,
    rank_by,
    scaled_posteriors,
)


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
    with pytest.raises(InvalidInputError, match=said):
        LogLinearModel(weights=weights).check(["other"])


def test_weights_of_what_can_be_computed_or_given_are_accepted():
    names = ["lm", "lm:small", "tokens:small", "rank", "rank:log", "am*words", "am:x", "anything"]
    LogLinearModel(weights=dict.fromkeys(names, 1.0)).check(["small"])


@pytest.mark.parametrize(
    "options", [{"weights": {"lm": math.nan}}, {"weights": {"lm": -1e7}}, {"length_exponent": -1.0}]
)
def test_weights_and_exponent_have_limits(options):
    with pytest.raises(InvalidInputError):
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
