"""Minimum error rate training: Powell's search for weights on exact error counts.

A point on the line w + tan(θ)·d is given by its angle θ, from −90° to 90°: only the weights' direction
matters, and 90° is d alone. The loss is constant between the angles at which a list's best
candidate changes. Its minimum is often in a narrow interval, by chance; so the search
minimises the loss averaged over a window of angles, which prefers broad minima (Cer, Jurafsky &
Manning 2008, Regularization and Search for Minimum Error Rate Training, §3).

As the loss is known everywhere on a line, each step goes directly to its minimum: first along every
feature, then along the entire round's direction (Powell 1964; Och 2003).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from models.calls import Steps
from models.reranking.tuning.problem import Floats, Ints, TuningProblem

_MAX_ANGLE = np.pi / 2
_LISTS_PER_STEP = 1024
_LOWEST = -1e300
"""Total of impossible candidates: the largest only at the ends of a line."""
LOSS_TOLERANCE = 1e-9
"""Losses within this tolerance count as equal."""

_MAX_ROUNDS = 12


class LossCurve(NamedTuple):
    """Loss along a line.

    Attributes:
        angles: angles where it may change, ascending [M].
        losses: losses before, between and after the angles [M+1].
    """

    angles: Floats
    losses: Floats

    def at(self, angles: Floats) -> Floats:
        """Return the loss at angles; where it changes, the value after the change."""
        return self.losses[np.searchsorted(self.angles, angles, side="right")]

    def smoothed(self, angles: Floats, window: float) -> Floats:
        """Average the loss over `window` radians on both sides of angles, within the line."""
        edges = np.concatenate(([-_MAX_ANGLE], self.angles, [_MAX_ANGLE]))
        area = np.concatenate(([0.0], np.cumsum(np.diff(edges) * self.losses)))
        low, high = np.maximum(angles - window, -_MAX_ANGLE), np.minimum(angles + window, _MAX_ANGLE)
        means: Floats = (np.interp(high, edges, area) - np.interp(low, edges, area)) / (high - low)
        return means

    def best(self, window: float) -> tuple[float, float]:
        """Return the angle of least smoothed loss, its interval's middle, and the loss."""
        edges = np.concatenate((self.angles - window, self.angles + window, [-_MAX_ANGLE, _MAX_ANGLE, 0.0]))
        # the slope of the mean may change here
        knots = np.unique(np.clip(edges, -_MAX_ANGLE, _MAX_ANGLE))
        losses = self.smoothed(knots, window)
        low = losses <= losses.min() + LOSS_TOLERANCE
        begin = int(np.argmax(low))
        end = begin + int(np.argmin(np.append(low[begin:], False))) - 1
        middle = (knots[begin] + knots[end]) / 2
        return float(middle), float(losses[begin])


def line_loss(problem: TuningProblem, values: Floats, slopes: Floats) -> Steps[LossCurve]:
    """Compute the exact loss along a line.

    Args:
        problem: the lists.
        values: total of each candidate at angle 0, −∞ if impossible [C].
        slopes: slope of each candidate's total [C].
    """
    from models.reranking.tuning.envelope import upper_envelopes

    values = np.maximum(values, _LOWEST)
    first = np.empty(problem.num_lists, np.int64)
    breaks = np.empty(len(values))
    previous, entering = np.empty((2, len(values)), np.int64)
    count = 0
    for begin in range(0, problem.num_lists, _LISTS_PER_STEP):
        end = begin + _LISTS_PER_STEP
        outputs = first[begin:end], breaks[count:], previous[count:], entering[count:]
        count += upper_envelopes(values, slopes, problem.offsets[begin : end + 1], *outputs)
        yield
    order = np.argsort(breaks[:count], kind="stable")
    yield
    changes = problem.statistics[entering[order]] - problem.statistics[previous[order]]
    start: Ints = problem.statistics[first].sum(axis=0, keepdims=True)
    totals = np.cumsum(np.concatenate((start, changes)), axis=0)
    yield
    return LossCurve(np.arctan(breaks[:count][order]), problem.losses(totals))


class LocalMinimum(NamedTuple):
    """End point of a search.

    Attributes:
        weights: unit vector [D].
        loss: smoothed loss at this point.
    """

    weights: Floats
    loss: float


def start_points(num_features: int, *, restarts: int, seed: int) -> Iterator[Floats]:
    """Yield the starting points of searches: each feature alone, then random ones."""
    yield from np.eye(num_features)
    yield from np.random.default_rng(seed).standard_normal((restarts, num_features))


def powell_search(
    problem: TuningProblem, begin: Iterator[Floats] | Sequence[Floats], *, window: float
) -> Steps[list[LocalMinimum]]:
    """Search from each start; return the end points, the best first, ties in the order of starts.

    Args:
        problem: with standardised features, at least one, each distinguishing some candidates.
        begin: starting points [D].
        window: radians to either side to average the loss over.
    """
    ends = []
    for start in begin:
        found = LocalMinimum(_unit_vector(start), np.inf)
        for _ in range(_MAX_ROUNDS):
            before = found
            for feature, direction in enumerate(np.eye(len(problem.names))):
                weight = found.weights[feature]
                # prefer a zero weight if as good, unless all would be zero
                none = () if abs(weight) >= 1 - LOSS_TOLERANCE else (float(np.arctan(-weight)),)
                found = yield from _search_line(problem, found.weights, direction, window, (*none, 0.0))
            # of the round: often along a valley (Powell 1964)
            way = found.weights - before.weights
            if np.linalg.norm(way) > LOSS_TOLERANCE:
                found = yield from _search_line(problem, found.weights, _unit_vector(way), window, (0.0,))
            if found.loss >= before.loss - LOSS_TOLERANCE:
                break
        ends.append(found)
    return sorted(ends, key=lambda one: one.loss)


def _search_line(
    problem: TuningProblem, weights: Floats, direction: Floats, window: float, preferred: Sequence[float]
) -> Steps[LocalMinimum]:
    """Move to the best point of a line through `weights`, or to the first preferred angle as good.

    Weights and direction are unit vectors [D].
    """
    curve = yield from line_loss(problem, *problem.line(weights, direction))
    best, least = curve.best(window)
    losses = curve.smoothed(np.array(preferred), window)
    good = np.flatnonzero(losses <= least + LOSS_TOLERANCE)
    angle, loss = (preferred[good[0]], losses[good[0]]) if good.size else (best, least)
    return LocalMinimum(_unit_vector(np.cos(angle) * weights + np.sin(angle) * direction), float(loss))


def _unit_vector(vector: Floats) -> Floats:
    return vector / np.linalg.norm(vector)
