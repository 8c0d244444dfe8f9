"""Weights that hold on other lists too."""

import numpy as np
import pytest

from models.reranking.candidates import run_steps
from models.reranking.ranking import MAX_WEIGHT
from models.reranking.tuning.fitting import (
    FIRST_PASS_WEIGHTS,
    ProblemVariant,
    TuningSettings,
    fit_feature_weights,
)
from tests.tuning_problems import informative, problem, uninformative

QUICK = TuningSettings(restarts=2, resamples=6, bootstrap_samples=200)


def fitted(*problems, settings=QUICK):
    shapes = tuple(ProblemVariant(float(i), one) for i, one in enumerate(problems))
    return run_steps(fit_feature_weights(shapes, np.arange(problems[0].num_lists), settings))


def test_weights_are_for_features_as_they_were():
    one = informative()
    stretched = problem(one.statistics[:, 0], one.features * [1, 1024, 1], [5] * 60, one.names)
    plain, other = fitted(one), fitted(stretched)
    assert other.weights == pytest.approx(plain.weights * [1024, 1, 1024])
    assert np.array_equal(other.chosen(stretched), plain.chosen(one))


def test_no_weight_is_larger_than_one_that_may_be_given():
    one = informative(noise=2.0)
    stretched = problem(one.statistics[:, 0], one.features * [1, 2.0**40, 1], [5] * 60, one.names)
    plain, other = fitted(one), fitted(stretched)
    assert np.count_nonzero(plain.weights) > 1
    assert np.abs(other.weights).max() == pytest.approx(MAX_WEIGHT)
    assert np.abs(other.weights).max() <= MAX_WEIGHT
    assert np.array_equal(other.chosen(stretched), plain.chosen(one))


def test_the_feature_that_decides_most_has_weight_one():
    assert fitted(informative()).weights[1] == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_the_first_pass_stands_where_features_are_noise(seed):
    assert fitted(uninformative(seed=seed)) == FIRST_PASS_WEIGHTS


def test_a_feature_that_tells_no_candidates_apart_has_no_weight():
    one = informative()
    constant = np.column_stack([one.features, np.full(300, 7.0)])
    assert fitted(problem(one.statistics[:, 0], constant, [5] * 60)).weights[3] == 0.0


def test_where_no_feature_tells_candidates_apart_the_first_pass_stands():
    assert fitted(problem([1, 0, 3, 2], np.ones((4, 1)), [2, 2])) == FIRST_PASS_WEIGHTS


def test_another_shape_must_be_significantly_better_than_the_simplest():
    one = informative(noise=3.0)
    assert fitted(one, one).shape == 0
    better = problem(one.statistics[:, 0], -one.statistics[:, :1], [5] * 60)
    assert (fitted(one, better).shape, fitted(one, better).length_exponent) == (1, 1.0)


def test_equal_seeds_give_equal_weights():
    one, other = fitted(informative()), fitted(informative())
    assert one.weights.tolist() == other.weights.tolist()
