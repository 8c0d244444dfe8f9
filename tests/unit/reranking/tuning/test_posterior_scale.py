"""From totals to posteriors."""

import numpy as np
import pytest

from models.reranking.candidates import run_steps
from models.reranking.ranking import MAX_POSTERIOR_SCALE
from models.reranking.tuning.fitting import fit_posterior_scale
from tests.tuning_problems import problem


def scaled(errors, totals, sizes):
    return run_steps(
        fit_posterior_scale(
            problem(errors, np.zeros((len(errors), 1)), sizes), np.asarray(totals, dtype=float)
        )
    )


def test_the_scale_makes_posteriors_as_sure_as_the_totals_are_right():
    """Of lists whose first total is 1 above the other, it is right in three of four: odds of 3."""
    found = scaled([0, 5] * 3 + [5, 0], [1, 0] * 4, [2] * 4)
    assert found.scale == pytest.approx(np.log(3), rel=1e-3)
    assert found.cross_entropy == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25), rel=1e-3)
    assert found.cross_entropy_uniform == pytest.approx(np.log(2))


def test_totals_twice_as_large_have_half_the_scale():
    rng = np.random.default_rng(0)
    errors, totals = rng.integers(0, 5, 300), rng.standard_normal(300)
    totals -= 0.5 * errors
    one, other = scaled(errors, totals, [5] * 60), scaled(errors, 2 * totals, [5] * 60)
    assert one.scale == pytest.approx(2 * other.scale, rel=1e-6)


def test_lists_of_equally_good_candidates_say_nothing():
    assert scaled([2, 2, 3, 3], [1, 0, 4, 9], [2, 2]) == (1.0, 0.0, 0.0)


def test_totals_that_are_all_alike_stay_as_they_are():
    assert scaled([0, 2], [3, 3], [2]).scale == 1.0


def test_a_scale_is_one_that_a_request_may_ask_for():
    """Of lists whose best candidate always has the greatest total, be it by ever so little."""
    found = scaled([0, 5] * 9, [1e-6, 0] * 9, [2] * 9)
    assert 1e5 < found.scale <= MAX_POSTERIOR_SCALE
    assert found.cross_entropy < found.cross_entropy_uniform
