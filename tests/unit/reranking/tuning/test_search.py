"""Powell's search."""

import numpy as np
import pytest

from models.reranking.candidates import run_steps
from models.reranking.tuning.mert import powell_search, start_points
from tests.tuning_problems import informative, problem, scaled


def found(one, restarts=4):
    begin = start_points(len(one.names), restarts=restarts, seed=0)
    return run_steps(powell_search(one, begin, window=0.05))


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
