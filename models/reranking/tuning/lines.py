"""The exact loss along a line in weight space, and the best place on it.

A place on the line w + tan(θ)·d is told by its angle θ, from −90° to 90°: weights matter by their direction
only, and 90° is d alone. The loss is constant between the angles at which some list's
winner changes. Its least value stands often in a sliver, by chance; so the best place is sought
on the loss averaged over a window of angles, which prefers broad valleys
(Cer, Jurafsky & Manning 2008, Regularization and Search for Minimum Error Rate Training, §3).
"""

from typing import NamedTuple

import numpy as np

from models.reranking.tuning.problem import Floats, Ints, TuningProblem
from models.reranking.tuning.steps import Steps

_MAX_ANGLE = np.pi / 2
_LISTS_PER_STEP = 1024
LOSS_TOLERANCE = 1e-9
"""Losses so near are the same, but for rounding."""


class LossCurve(NamedTuple):
    """The loss along a line.

    Attributes:
        angles: at which it may change, rising [M].
        losses: before the first, between two, and after the last [M+1].
    """

    angles: Floats
    losses: Floats

    def at(self, angles: Floats) -> Floats:
        """The loss at some angles; at one where it changes, the one after it."""
        losses: Floats = self.losses[np.searchsorted(self.angles, angles, side="right")]
        return losses

    def smoothed(self, angles: Floats, window: float) -> Floats:
        """The mean loss over `window` radians to either side of some angles, as far as the line goes."""
        edges = np.concatenate(([-_MAX_ANGLE], self.angles, [_MAX_ANGLE]))
        area = np.concatenate(([0.0], np.cumsum(np.diff(edges) * self.losses)))
        low, high = np.maximum(angles - window, -_MAX_ANGLE), np.minimum(angles + window, _MAX_ANGLE)
        means: Floats = (np.interp(high, edges, area) - np.interp(low, edges, area)) / (high - low)
        return means

    def knots(self, window: float) -> Floats:
        """The angles at which the slope of the smoothed loss may change, rising."""
        changes = np.concatenate((self.angles - window, self.angles + window, [-_MAX_ANGLE, _MAX_ANGLE, 0.0]))
        return np.unique(np.clip(changes, -_MAX_ANGLE, _MAX_ANGLE))

    def best(self, window: float) -> tuple[float, float]:
        """The angle of the least smoothed loss, the middle of where it is that low, and that loss."""
        knots = self.knots(window)
        losses = self.smoothed(knots, window)
        low = losses <= losses.min() + LOSS_TOLERANCE
        begin = int(np.argmax(low))
        end = begin + int(np.argmin(np.append(low[begin:], False))) - 1
        middle = (knots[begin] + knots[end]) / 2
        return float(middle), float(losses[begin])


def line_loss(problem: TuningProblem, values: Floats, slopes: Floats) -> Steps[LossCurve]:
    """The loss along a line, exactly.

    Args:
        problem: whose lists.
        values: total of each candidate at angle 0 [C].
        slopes: what a step along the line adds to it [C].
    """
    from models.reranking.tuning.envelope import (
        upper_envelopes,  # a compiled kernel: only where it is asked for
    )

    first = np.empty(problem.num_lists, dtype=np.int64)
    breaks = np.empty(len(values))
    leaving, entering = np.empty((2, len(values)), dtype=np.int64)
    count = 0
    for begin in range(0, problem.num_lists, _LISTS_PER_STEP):
        end = begin + _LISTS_PER_STEP
        count += upper_envelopes(
            values,
            slopes,
            problem.offsets[begin : end + 1],
            first[begin:end],
            breaks[count:],
            leaving[count:],
            entering[count:],
        )
        yield
    order = np.argsort(breaks[:count], kind="stable")
    yield
    changes = problem.statistics[entering[order]] - problem.statistics[leaving[order]]
    start: Ints = problem.statistics[first].sum(axis=0, keepdims=True)
    totals = np.cumsum(np.concatenate((start, changes)), axis=0)
    yield
    return LossCurve(np.arctan(breaks[:count][order]), problem.losses(totals))
