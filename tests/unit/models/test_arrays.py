"""Grouping of items into runs of bounded cost."""

import numpy as np
import pytest

from models.arrays import runs_by_cost


@pytest.mark.parametrize(
    ("costs", "runs"),
    [
        ([], []),
        ([3], [[3]]),
        ([3, 4, 3, 1], [[3, 4], [3, 1]]),
        ([4, 3, 1], [[4, 3], [1]]),
        ([9, 1, 9, 9, 0], [[9], [1], [9], [9], [0]]),
        ([0, 0, 7, 0, 1], [[0, 0, 7, 0], [1]]),
    ],
)
def test_a_run_is_as_long_as_its_cost_allows_and_has_at_least_one_item(costs, runs):
    assert [costs[run] for run in runs_by_cost(np.array(costs), 7)] == runs


def test_any_costs_are_grouped_as_by_a_loop():
    random = np.random.default_rng(0)
    for _ in range(200):
        costs, most = random.integers(20, size=random.integers(30)), int(random.integers(1, 40))
        runs: list[list[int]] = []
        for cost in costs.tolist():
            if runs and sum(runs[-1]) + cost <= most:
                runs[-1].append(cost)
            else:
                runs.append([cost])
        assert [costs[run].tolist() for run in runs_by_cost(costs, most)] == runs
