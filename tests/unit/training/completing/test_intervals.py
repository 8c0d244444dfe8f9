"""Intervals by bootstrap: that they hold what they should, and tell nothing where there is nothing."""

import numpy as np
import pytest

from training.evaluation.autocomplete_metrics import (
    Ratio,
    bootstrap_counts,
    bootstrap_difference,
    bootstrap_interval,
)

RANDOM = np.random.default_rng(5)


def ratio(over, under):
    return Ratio(np.asarray(over, dtype=float), np.asarray(under, dtype=float))


def test_an_interval_is_as_wide_as_the_standard_error_says():
    hits = (RANDOM.random(400) < 0.3).astype(float)
    told = bootstrap_interval(ratio(hits, np.ones(400)), bootstrap_counts(400))
    error = np.sqrt(hits.mean() * (1 - hits.mean()) / 400)
    assert told.value == pytest.approx(hits.mean())
    assert told.low == pytest.approx(hits.mean() - 1.96 * error, abs=0.3 * error)
    assert told.high == pytest.approx(hits.mean() + 1.96 * error, abs=0.3 * error)


def test_lines_that_agree_leave_no_doubt():
    told = bootstrap_interval(ratio([1, 2, 3], [2, 4, 6]), bootstrap_counts(3))
    assert told == pytest.approx((0.5, 0.5, 0.5))


def test_a_difference_over_the_same_lines_is_surer_than_either_figure():
    hits = (RANDOM.random(300) < 0.5).astype(float)
    better = hits + 0.125
    draws = bootstrap_counts(300)
    gap = bootstrap_difference(ratio(better, np.ones(300)), ratio(hits, np.ones(300)), draws)
    assert gap == pytest.approx((0.125, 0.125, 0.125))


def test_nothing_to_divide_by_is_no_figure():
    assert bootstrap_interval(ratio([0, 0], [0, 0]), bootstrap_counts(2)) == (None, None, None)


def test_draws_without_anything_to_divide_by_are_left_out():
    told = bootstrap_interval(ratio([1, 0], [1, 0]), bootstrap_counts(2))
    assert told == (1.0, 1.0, 1.0)
