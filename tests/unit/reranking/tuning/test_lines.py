"""The loss along a line."""

import numpy as np
import pytest

from models.reranking.candidates import run_steps
from models.reranking.tuning.mert import LossCurve, line_loss
from tests.tuning_problems import problem


def along(one, weights, direction):
    return run_steps(line_loss(one, one.features @ np.asarray(weights), one.features @ np.asarray(direction)))


def test_the_winner_changes_where_two_lines_cross():
    one = problem([3, 0], [[1.0, 0.0], [0.0, 2.0]])  # totals 1 and 2γ
    curve = along(one, [1.0, 0.0], [0.0, 1.0])
    assert np.tan(curve.angles) == pytest.approx([0.5])
    assert curve.losses == pytest.approx([30, 0])


def test_a_candidate_below_all_others_never_wins():
    one = problem([5, 0, 5], [[0.0, -1.0], [-1.0, 0.0], [0.0, 1.0]])  # -γ, -1, γ
    assert along(one, [1.0, 0.0], [0.0, 1.0]).losses == pytest.approx([50, 50])


def test_of_equal_lines_the_first_candidate_wins():
    one = problem([1, 7], [[2.0], [2.0]])
    curve = along(one, [1.0], [1.0])
    assert (curve.angles.tolist(), curve.losses.tolist()) == ([], [10.0])


def test_the_middle_of_a_broad_valley_is_better_than_a_deeper_sliver():
    curve = LossCurve(np.array([-1.0, -0.99, 0.2, 0.8]), np.array([9.0, 0.0, 9.0, 3.0, 9.0]))
    angle, loss = curve.best(window=0.05)
    assert (angle, loss) == (pytest.approx(0.5), pytest.approx(3.0))


def test_the_smoothed_loss_is_the_mean_over_the_window():
    curve = LossCurve(np.array([0.0]), np.array([2.0, 6.0]))
    assert curve.smoothed(np.array([-0.3, 0.0, 0.05, 1.5]), 0.1) == pytest.approx([2.0, 4.0, 5.0, 6.0])
