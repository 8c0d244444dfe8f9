"""Lists of candidates with what weights are sought on."""

import numpy as np
import pytest

from models.reranking.metrics import make_metric
from models.reranking.tuning.problem import TuningProblem
from tests.tuning_problems import problem


def test_of_equal_totals_the_first_is_chosen_in_each_list():
    one = problem([0, 1, 2, 3], [[1.0], [1.0], [0.0], [2.0]], sizes=[2, 2])
    assert one.chosen(np.ones(1)).tolist() == [0, 3]


def test_the_oracle_makes_the_fewest_errors_and_takes_the_first_of_equals():
    one = problem([3, 1, 1, 0, 2], np.zeros((5, 1)), sizes=[3, 2])
    assert one.oracle().tolist() == [1, 3]
    assert one.score(one.oracle()) == pytest.approx(5.0)
    assert one.score(one.anti_oracle()) == pytest.approx(25.0)


def test_a_part_of_the_lists_is_a_problem_of_its_own():
    one = problem([3, 1, 4, 0, 2], np.arange(5.0), sizes=[1, 2, 2])
    part = one.of(np.array([2, 0]))
    assert part.features[:, 0].tolist() == [3, 4, 0]
    assert part.statistics[:, 0].tolist() == [0, 2, 3]
    assert part.offsets.tolist() == [0, 2, 3]


def test_where_more_is_better_the_oracle_has_the_greatest_score():
    chrf = make_metric("chrf")
    texts = [["the cat", "a dog ran"], ["owls hoot", "owl"]]
    counts = np.concatenate(
        [chrf.statistics(t, [r]) for t, r in zip(texts, ("a dog ran", "owls hoot"), strict=True)]
    )
    one = TuningProblem(("a",), np.zeros((4, 1)), counts, np.array([0, 2, 4]), chrf)
    assert one.oracle().tolist() == [1, 2]
    assert one.losses(counts[[1, 2]].sum(axis=0)) == pytest.approx(-100.0)
