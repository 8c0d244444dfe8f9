"""Totals, orders and posteriors of candidates."""

import math

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.reranking.log_linear import LogLinearModel, ModelScore, Scored
from models.reranking.ranking import rank


def features(text="a b", logprob=-6.0, num_tokens=3, **given):
    return Scored(text, logprob, num_tokens, given).all_features()


def test_the_total_is_the_weighted_sum_of_given_and_computed_features():
    model = LogLinearModel(weights={"lm": 0.5, "am": -1.0, "words": 2.0, "tokens": 0.1})
    assert model.totals([features(am=4.0)])[0] == pytest.approx(0.5 * -6 - 4 + 2 * 2 + 0.1 * 3)


def test_the_length_exponent_turns_the_sum_into_a_mean():
    assert LogLinearModel(length_exponent=1.0).totals([features()])[0] == pytest.approx(-2.0)


def test_a_probability_of_zero_gives_a_finite_total():
    assert LogLinearModel().totals([features(logprob=-math.inf)])[0] == -9999.0


def test_a_weight_without_its_feature_is_refused():
    with pytest.raises(InvalidInputError, match="no 'am', but weights"):
        LogLinearModel(weights={"am": 2.0}).check_features({}, parameter="features")


def test_a_computed_feature_cannot_be_given():
    with pytest.raises(InvalidInputError, match="words is computed"):
        LogLinearModel().check_features({"words": 1.0}, parameter="features")


def two_models(big, small, **given):
    models = {"small": ModelScore(small, 4)}
    return Scored("a b", big, 3, given, models).all_features()


def test_the_scores_of_several_models_are_combined_with_signed_weights():
    model = LogLinearModel(weights={"lm": 0.52, "lm:small": -0.26, "am": 1.0})
    candidates = [two_models(-6.0, -5.0, am=-1.0), two_models(-6.5, -9.0, am=-1.0)]
    expected = [0.52 * -6.0 + 0.26 * 5.0 - 1.0, 0.52 * -6.5 + 0.26 * 9.0 - 1.0]
    assert model.totals(candidates) == pytest.approx(expected)
    assert rank(model.totals(candidates)).order.tolist() == [1, 0]
    assert model.models == {"small"}


def test_each_models_sum_becomes_a_mean_over_its_own_tokens():
    model = LogLinearModel(weights={"lm": 1.0, "lm:small": 1.0}, length_exponent=1.0)
    assert model.totals([two_models(-6.0, -6.0)])[0] == pytest.approx(-6 / 3 - 6 / 4)


def test_a_weight_of_a_model_that_does_not_score_is_refused():
    model = LogLinearModel(weights={"lm:small": 1.0})
    model.check_features({}, parameter="features", models=["small"])
    with pytest.raises(InvalidInputError, match="no 'lm:small', but weights"):
        model.check_features({}, parameter="features", models=["other"])


def test_a_feature_that_a_model_computes_cannot_be_given():
    with pytest.raises(InvalidInputError, match="lm:small is computed"):
        LogLinearModel().check_features({"lm:small": 1.0}, parameter="features", models=["small"])


def test_a_feature_may_have_a_colon_in_its_name():
    assert LogLinearModel(weights={"am:x": 2.0}).totals([features(**{"am:x": 3.0})])[0] == 6.0


@pytest.mark.parametrize(
    "options", [{"weights": {"lm": math.nan}}, {"weights": {"lm": -1e7}}, {"length_exponent": -1.0}]
)
def test_weights_and_exponent_have_limits(options):
    with pytest.raises(InvalidInputError):
        LogLinearModel(**options)


@pytest.mark.parametrize("value", [1e300, -math.inf, math.nan])
def test_a_feature_beyond_its_limits_is_refused(value):
    with pytest.raises(InvalidInputError, match=r"features\.am is"):
        LogLinearModel().check_features({"am": value}, parameter="features")


def test_equal_totals_keep_the_order_they_came_in():
    assert rank(np.array([1.0, 2.0, 2.0, 1.0])).order.tolist() == [1, 2, 0, 3]


def test_a_list_is_unchanged_if_its_first_stays_first():
    assert rank(np.array([2.0, 0.0, 1.0])).unchanged
    assert not rank(np.array([1.0, 2.0])).unchanged
