"""Powell's search for weights on exact error counts.

Along a line the loss is known everywhere (`lines`), so each step goes to its best place at
once: first along every feature, then along the way that the whole round went
(Powell 1964; Och 2003).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from models.reranking.tuning.lines import LOSS_TOLERANCE, line_loss
from models.reranking.tuning.problem import Floats, TuningProblem
from models.reranking.tuning.steps import Steps

_MAX_ROUNDS = 12


class LocalMinimum(NamedTuple):
    """Where a search ended.

    Attributes:
        weights: of length 1 [D].
        loss: there, smoothed.
    """

    weights: Floats
    loss: float


def start_points(num_features: int, *, restarts: int, seed: int) -> Iterator[Floats]:
    """Where searches begin: each feature alone, then at random."""
    yield from np.eye(num_features)
    yield from np.random.default_rng(seed).standard_normal((restarts, num_features))


def powell_search(
    problem: TuningProblem, begin: Iterator[Floats] | Sequence[Floats], *, window: float
) -> Steps[list[LocalMinimum]]:
    """Where the searches from some starts ended, the best first, of equal ones the one found first.

    Args:
        problem: with standardised features, of which each tells some candidates apart; at least one.
        begin: the starts [D].
        window: radians to either side over which the loss along a line is averaged.
    """
    found = []
    for start in begin:
        found.append((yield from _powell_descent(problem, start, window)))  # noqa: PERF401 - it yields
    return sorted(found, key=lambda one: one.loss)


def _powell_descent(problem: TuningProblem, start: Floats, window: float) -> Steps[LocalMinimum]:
    found = LocalMinimum(_unit_vector(start), np.inf)
    for _ in range(_MAX_ROUNDS):
        before = found
        for feature in range(len(problem.names)):
            found = yield from _search_feature(problem, found.weights, feature, window)
        travelled = found.weights - before.weights
        if np.linalg.norm(travelled) > LOSS_TOLERANCE:
            found = yield from _search_line(problem, found.weights, _unit_vector(travelled), window, (0.0,))
        if found.loss >= before.loss - LOSS_TOLERANCE:
            break
    return found


def _search_feature(
    problem: TuningProblem, weights: Floats, feature: int, window: float
) -> Steps[LocalMinimum]:
    """Go to the best weight of one feature; to none, if that is as good."""
    direction = np.zeros_like(weights)
    direction[feature] = 1.0
    alone = abs(weights[feature]) >= 1 - LOSS_TOLERANCE  # without it nothing would be left
    preferred = (0.0,) if alone else (float(np.arctan(-weights[feature])), 0.0)
    return (yield from _search_line(problem, weights, direction, window, preferred))


def _search_line(
    problem: TuningProblem, weights: Floats, direction: Floats, window: float, preferred: Sequence[float]
) -> Steps[LocalMinimum]:
    """Go to the best place on a line.

    Args:
        problem: with standardised features.
        weights: where one stands, of length 1 [D].
        direction: of length 1 [D].
        window: as in `search`.
        preferred: angles of which the first that is as good as the best place is taken instead.
    """
    curve = yield from line_loss(problem, problem.features @ weights, problem.features @ direction)
    best, least = curve.best(window)
    losses = curve.smoothed(np.array(preferred), window)
    good = np.flatnonzero(losses <= least + LOSS_TOLERANCE)
    angle, loss = (preferred[good[0]], losses[good[0]]) if good.size else (best, least)
    return LocalMinimum(_unit_vector(np.cos(angle) * weights + np.sin(angle) * direction), float(loss))


def _unit_vector(vector: Floats) -> Floats:
    answer: Floats = vector / np.linalg.norm(vector)
    return answer
