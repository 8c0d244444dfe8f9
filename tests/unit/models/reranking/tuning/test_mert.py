"""Tuning problems, the loss along a line, and Powell's search."""

import numpy as np
import pytest

from models.calls import run_to_completion
from models.reranking.metrics import make_metric
from models.reranking.tuning.mert import LossCurve, TuningProblem, line_loss, powell_search, start_points
from tests.support.nbest_lists import informative, problem, scaled


def test_of_equal_totals_the_first_is_chosen_in_each_list():
    one = problem([0, 1, 2, 3], [[1.0], [1.0], [0.0], [2.0]], sizes=[2, 2])
    assert one.chosen(np.ones(1)).tolist() == [0, 3]


def test_the_oracle_makes_the_fewest_errors_and_takes_the_first_of_equals():
    one = problem([3, 1, 1, 0, 2], np.zeros((5, 1)), sizes=[3, 2])
    assert one.oracle().tolist() == [1, 3]
    assert one.score(one.oracle()) == pytest.approx(5.0)
    assert one.score(one.oracle(worst=True)) == pytest.approx(25.0)


def test_a_part_of_the_lists_is_a_problem_of_its_own():
    one = problem([3, 1, 4, 0, 2], np.arange(5.0), sizes=[1, 2, 2])
    part = one.of(np.array([2, 0]))
    assert part.features[:, 0].tolist() == [3, 4, 0]
    assert part.statistics[:, 0].tolist() == [0, 2, 3]
    assert part.offsets.tolist() == [0, 2, 3]


def test_oracle_of_a_score_has_the_greatest_score():
    chrf = make_metric("chrf")
    texts = [["the cat", "a dog ran"], ["owls hoot", "owl"]]
    counts = np.concatenate(
        [chrf.statistics(t, [r]) for t, r in zip(texts, ("a dog ran", "owls hoot"), strict=True)]
    )
    one = TuningProblem(("a",), np.zeros((4, 1)), counts, np.array([0, 2, 4]), chrf)
    assert one.oracle().tolist() == [1, 2]
    assert one.losses(counts[[1, 2]].sum(axis=0)) == pytest.approx(-100.0)


def along(one, weights, direction):
    return run_to_completion(
        line_loss(one, one.features @ np.asarray(weights), one.features @ np.asarray(direction))
    )


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


def found(one, restarts=4):
    begin = start_points(len(one.names), restarts=restarts, seed=0)
    return run_to_completion(powell_search(one, begin, window=0.05))


def test_the_feature_that_tells_errors_gets_the_weight():
    weights = dict(zip(("rank", "good", "useless"), found(scaled(informative()))[0].weights, strict=True))
    assert weights["good"] > 0.9
    assert abs(weights["useless"]) < 0.2


def test_a_combination_is_found_that_no_single_feature_is():
    rng = np.random.default_rng(3)
    parts = rng.standard_normal((400, 2))
    errors = np.clip(np.rint(5 - 2 * parts.sum(axis=1)), 0, 10).astype(int)
    one = scaled(problem(errors, parts, [4] * 100))
    best = found(one)[0]
    assert best.weights == pytest.approx([0.707, 0.707], abs=0.12)
    assert one.score(one.chosen(best.weights)) < one.score(one.chosen(np.array([1.0, 0.0]))) - 5


def test_a_weight_of_nothing_is_taken_where_it_is_as_good():
    one = scaled(problem([0, 5, 0, 5], [[1, 1], [0, 0], [2, 1], [1, 0]], sizes=[2, 2]))
    assert found(one, restarts=0)[0].weights.tolist() == [1.0, 0.0]


def test_the_best_comes_first():
    losses = [one.loss for one in found(scaled(informative()))]
    assert losses == sorted(losses)
    assert len(losses) == 3 + 4


def test_weights_have_length_one():
    assert [np.linalg.norm(one.weights) for one in found(scaled(informative()))] == pytest.approx([1.0] * 7)
