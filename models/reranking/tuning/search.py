"""Powell's search for weights on exact error counts.

Along a line the loss is known everywhere (`lines`), so each step goes to its best place at
once: first along every feature, then along the way that the whole round went
(Powell 1964; Och 2003).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from models.reranking.tuning.lines import EQUAL, loss_along
from models.reranking.tuning.problem import Floats, Problem
from models.reranking.tuning.steps import Steps

_MAX_ROUNDS = 12


class Found(NamedTuple):
    """Where a search ended.

    Attributes:
        weights: of length 1 [D].
        loss: there, smoothed.
    """

    weights: Floats
    loss: float


def starts(num_features: int, *, restarts: int, seed: int) -> Iterator[Floats]:
    """Where searches begin: each feature alone, then at random."""
    yield from np.eye(num_features)
    yield from np.random.default_rng(seed).standard_normal((restarts, num_features))


def search(
    problem: Problem, begin: Iterator[Floats] | Sequence[Floats], *, window: float
) -> Steps[list[Found]]:
    """Where the searches from some starts ended, the best first, of equal ones the one found first.

    Args:
        problem: with standardised features, of which each tells some candidates apart; at least one.
        begin: the starts [D].
        window: radians to either side over which the loss along a line is averaged.
    """
    found = []
    for start in begin:
        found.append((yield from _descend(problem, start, window)))  # noqa: PERF401 - it yields
    return sorted(found, key=lambda one: one.loss)


def _descend(problem: Problem, start: Floats, window: float) -> Steps[Found]:
    found = Found(_unit(start), np.inf)
    for _ in range(_MAX_ROUNDS):
        before = found
        for feature in range(len(problem.names)):
            found = yield from _along_feature(problem, found.weights, feature, window)
        travelled = found.weights - before.weights
        if np.linalg.norm(travelled) > EQUAL:
            found = yield from _along(problem, found.weights, _unit(travelled), window, (0.0,))
        if found.loss >= before.loss - EQUAL:
            break
    return found


def _along_feature(problem: Problem, weights: Floats, feature: int, window: float) -> Steps[Found]:
    """Go to the best weight of one feature; to none, if that is as good."""
    direction = np.zeros_like(weights)
    direction[feature] = 1.0
    alone = abs(weights[feature]) >= 1 - EQUAL  # without it nothing would be left
    preferred = (0.0,) if alone else (float(np.arctan(-weights[feature])), 0.0)
    return (yield from _along(problem, weights, direction, window, preferred))


def _along(
    problem: Problem, weights: Floats, direction: Floats, window: float, preferred: Sequence[float]
) -> Steps[Found]:
    """Go to the best place on a line.

    Args:
        problem: with standardised features.
        weights: where one stands, of length 1 [D].
        direction: of length 1 [D].
        window: as in `search`.
        preferred: angles of which the first that is as good as the best place is taken instead.
    """
    curve = yield from loss_along(problem, problem.features @ weights, problem.features @ direction)
    best, least = curve.best(window)
    losses = curve.smoothed(np.array(preferred), window)
    good = np.flatnonzero(losses <= least + EQUAL)
    angle, loss = (preferred[good[0]], losses[good[0]]) if good.size else (best, least)
    return Found(_unit(np.cos(angle) * weights + np.sin(angle) * direction), float(loss))


def _unit(vector: Floats) -> Floats:
    answer: Floats = vector / np.linalg.norm(vector)
    return answer
