"""How far totals are from log-posteriors: the factor that makes them so."""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.reranking.ranking import MAX_POSTERIOR_SCALE
from models.reranking.tuning.lines import LOSS_TOLERANCE
from models.reranking.tuning.problem import Floats, Ints, TuningProblem
from models.reranking.tuning.steps import Steps

Bools: TypeAlias = npt.NDArray[np.bool_]

_MAX_DECADES = 3.0
"""Decades to either side of totals of deviation 1 within their lists."""

_GRID_POINTS = 61
_REFINEMENTS = 40
_MIN_MASS = 1e-300
_GOLDEN = (math.sqrt(5) - 1) / 2


class PosteriorScale(NamedTuple):
    """A fitted factor.

    Attributes:
        scale: of the totals.
        cross_entropy: mean negative logarithm of the posterior mass of the best candidates, in nats a list.
        cross_entropy_uniform: of equal posteriors, for comparison.
    """

    scale: float
    cross_entropy: float
    cross_entropy_uniform: float


def fit_posterior_scale(problem: TuningProblem, totals: Floats) -> Steps[PosteriorScale]:
    """The factor under which the best candidates of the lists have the greatest posterior mass, in the geometric mean.

    Args:
        problem: whose lists; one whose candidates are all as good says nothing and is left out.
        totals: of the candidates [C].

    Returns:
        1 as the factor where no list says anything.
    """
    lists = _InformativeLists.of(problem, totals)
    if lists is None:
        return PosteriorScale(1.0, 0.0, 0.0)
    uniform = lists.cross_entropy(-np.inf)
    if not lists.deviation:
        return PosteriorScale(1.0, uniform, uniform)
    widest = min(
        _MAX_DECADES, math.log10(MAX_POSTERIOR_SCALE * lists.deviation)
    )  # no request may ask for a larger scale
    decades = np.linspace(-_MAX_DECADES, widest, _GRID_POINTS)
    losses = []
    for decade in decades:
        losses.append(lists.cross_entropy(decade))
        yield
    least = int(np.argmin(losses))
    low, high = float(decades[max(least - 1, 0)]), float(decades[min(least + 1, _GRID_POINTS - 1)])
    for _ in range(_REFINEMENTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if lists.cross_entropy(left) <= lists.cross_entropy(right):
            high = right
        else:
            low = left
        yield
    middle = (low + high) / 2
    return PosteriorScale(10**middle / lists.deviation, lists.cross_entropy(middle), uniform)


class _InformativeLists(NamedTuple):
    """The lists of which some candidates are better than others, end to end.

    Attributes:
        totals: less the list's greatest [C].
        is_best: whether nothing in its list is better [C].
        begins: of the lists [N].
        lengths: of the lists [N].
        deviation: of the totals within their lists.
    """

    totals: Floats
    is_best: Bools
    begins: Ints
    lengths: Ints
    deviation: float

    @classmethod
    def of(cls, problem: TuningProblem, totals: Floats) -> "_InformativeLists | None":
        costs = problem.costs(problem.statistics[problem.oracle()].sum(axis=0))
        begins, lengths = problem.offsets[:-1], np.diff(problem.offsets)
        is_best = costs <= np.repeat(np.minimum.reduceat(costs, begins), lengths) + LOSS_TOLERANCE
        telling = np.add.reduceat(is_best, begins, dtype=np.int64) < lengths
        if not telling.any():
            return None
        rows, lengths = np.repeat(telling, lengths), lengths[telling]
        totals, is_best = totals[rows], is_best[rows]
        begins = np.cumsum(lengths) - lengths
        means = np.add.reduceat(totals, begins) / lengths
        deviation = float(np.sqrt(np.mean((totals - np.repeat(means, lengths)) ** 2)))
        totals = totals - np.repeat(np.maximum.reduceat(totals, begins), lengths)
        return cls(totals, is_best, begins, lengths, deviation if deviation > LOSS_TOLERANCE else 0.0)

    def cross_entropy(self, decade: float) -> float:
        """Mean −ln of the mass of the best, where totals of deviation 1 are multiplied by 10 to that power."""
        mass = np.exp(self.totals * (10**decade / self.deviation if self.deviation else 0.0))
        best = np.add.reduceat(mass * self.is_best, self.begins)
        return float(-np.log(np.maximum(best / np.add.reduceat(mass, self.begins), _MIN_MASS)).mean())
