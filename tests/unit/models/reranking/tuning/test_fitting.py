"""Fitting of weights: regularisation, folds, posterior scale, settings."""

from dataclasses import replace

import numpy as np
import pytest

from models.calls import run_to_completion
from models.errors import InputError
from models.reranking.ranking import MAX_POSTERIOR_SCALE, MAX_WEIGHT
from models.reranking.tuning.fitting import (
    FIRST_PASS_WEIGHTS,
    PosteriorResult,
    TuningSettings,
    assign_folds,
    fit_feature_weights,
    fit_posterior_scale,
)
from tests.support.nbest_lists import candidate_list, informative, problem, uninformative

QUICK = TuningSettings(restarts=2, resamples=6, bootstrap_samples=200)


def fitted(*problems, settings=QUICK):
    shapes = tuple(replace(one, length_exponent=float(i)) for i, one in enumerate(problems))
    return run_to_completion(fit_feature_weights(shapes, np.arange(problems[0].num_lists), settings))


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


def test_constant_features_keep_the_first_pass():
    assert fitted(problem([1, 0, 3, 2], np.ones((4, 1)), [2, 2])) == FIRST_PASS_WEIGHTS


def test_another_shape_must_be_significantly_better_than_the_simplest():
    one = informative(noise=3.0)
    assert fitted(one, one).shape == 0
    better = problem(one.statistics[:, 0], -one.statistics[:, :1], [5] * 60)
    assert (fitted(one, better).shape, fitted(one, better).length_exponent) == (1, 1.0)


def test_equal_seeds_give_equal_weights():
    one, other = fitted(informative()), fitted(informative())
    assert one.weights.tolist() == other.weights.tolist()


def lists(count):
    return [candidate_list("x", reference=f"r{i}") for i in range(count)]


def test_folds_have_about_as_many_lists_each():
    assert sorted(np.bincount(assign_folds(lists(11), folds=3, seed=0)).tolist()) == [3, 4, 4]


def test_lists_of_the_same_reference_are_in_one_fold():
    some = [candidate_list("x", reference=f"r{i // 4}") for i in range(24)]
    folds = assign_folds(some, folds=2, seed=0).reshape(6, 4)
    assert (folds == folds[:, :1]).all()


def test_equal_seeds_give_equal_folds_and_others_do_not():
    one, same, other = (assign_folds(lists(40), folds=2, seed=seed).tolist() for seed in (1, 1, 2))
    assert one == same != other


def scaled(errors, totals, sizes):
    return run_to_completion(
        fit_posterior_scale(
            problem(errors, np.zeros((len(errors), 1)), sizes), np.asarray(totals, dtype=float)
        )
    )


def test_the_scale_makes_posteriors_as_sure_as_the_totals_are_right():
    """The first total exceeds the other by 1 and is right in three of four lists, so the odds are 3."""
    scale, found = scaled([0, 5] * 3 + [5, 0], [1, 0] * 4, [2] * 4)
    assert scale == pytest.approx(np.log(3), rel=1e-3)
    assert found.cross_entropy == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25), rel=1e-3)
    assert found.cross_entropy_uniform == pytest.approx(np.log(2))


def test_totals_twice_as_large_have_half_the_scale():
    rng = np.random.default_rng(0)
    errors, totals = rng.integers(0, 5, 300), rng.standard_normal(300)
    totals -= 0.5 * errors
    (one, _), (other, _) = scaled(errors, totals, [5] * 60), scaled(errors, 2 * totals, [5] * 60)
    assert one == pytest.approx(2 * other, rel=1e-6)


def test_lists_of_equally_good_candidates_say_nothing():
    assert scaled([2, 2, 3, 3], [1, 0, 4, 9], [2, 2]) == (1.0, PosteriorResult(0.0, 0.0))


def test_totals_that_are_all_alike_stay_as_they_are():
    assert scaled([0, 2], [3, 3], [2])[0] == 1.0


def test_a_scale_is_one_that_a_request_may_ask_for():
    """The best candidate of every list has the greatest total, by a tiny margin."""
    scale, found = scaled([0, 5] * 9, [1e-6, 0] * 9, [2] * 9)
    assert 1e5 < scale <= MAX_POSTERIOR_SCALE
    assert found.cross_entropy < found.cross_entropy_uniform


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("folds", 1),
        ("folds", 21),
        ("seed", -1),
        ("restarts", 1001),
        ("resamples", 0),
        ("max_p_value", 1.5),
        ("bootstrap_samples", 99),
        ("length_exponents", ()),
        ("length_exponents", (0.0, 5.0)),
        ("max_p_value", float("nan")),
    ],
)
def test_values_outside_their_limits_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"^{field}.* is .*; it must be from") as caught:
        TuningSettings(**{field: value})
    assert caught.value.param.startswith(field)


@pytest.mark.parametrize(
    ("num_distinct", "problem"), [(1, "one distinct reference"), (2, "2 distinct references")]
)
def test_lists_with_equal_references_cannot_fill_the_folds(num_distinct, problem):
    some = [replace(one, references=(str(i % num_distinct),)) for i, one in enumerate(lists(30))]
    with pytest.raises(InputError, match=f"folds is 3, but 30 lists have {problem}"):
        assign_folds(some, folds=3, seed=0)
