"""How sure a figure is: percentile intervals of a bootstrap over lines (Efron and Tibshirani 1993, chapter 13).

Words of a line hang together, so whole lines are drawn. Every figure is a ratio of two sums over
lines; two models that typed the same lines are compared draw by draw.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

LineValues: TypeAlias = npt.NDArray[np.float64]

_RESAMPLES = 1_000
_PERCENTILES = (2.5, 97.5)
_SEED = 1


class Ratio(NamedTuple):
    """A figure as parts of the lines.

    Attributes:
        numerator: what is summed above the line [L].
        denominator: what is summed below it [L].
    """

    numerator: LineValues
    denominator: LineValues


class Interval(NamedTuple):
    """A figure and where it lies with 95 % probability.

    Attributes:
        value: the figure; None where there is nothing to divide by.
        low: the lower end; None likewise.
        high: the upper end.
    """

    value: float | None
    low: float | None
    high: float | None


def bootstrap_counts(num_lines: int) -> LineValues:
    """How often each line is drawn [1000, L]; always the same draws."""
    random = np.random.default_rng(_SEED)
    counts = random.multinomial(num_lines, np.full(num_lines, 1 / num_lines), size=_RESAMPLES)
    return counts.astype(np.float64)


def bootstrap_interval(ratio: Ratio, draws: LineValues) -> Interval:
    """A figure with its interval.

    Args:
        ratio: of L lines.
        draws: `resamples` of L lines.
    """
    return _percentile_interval(_value(ratio), _resampled_values(ratio, draws))


def bootstrap_difference(a: Ratio, b: Ratio, draws: LineValues) -> Interval:
    """By how much a figure of one model is above another's, both over the same lines."""
    of_a, of_b = _value(a), _value(b)
    both = None if of_a is None or of_b is None else of_a - of_b
    return _percentile_interval(both, _resampled_values(a, draws) - _resampled_values(b, draws))


def _value(ratio: Ratio) -> float | None:
    under = float(ratio.denominator.sum())
    return float(ratio.numerator.sum()) / under if under else None


def _resampled_values(ratio: Ratio, draws: LineValues) -> LineValues:
    """The figure of each draw; not a number where a draw has nothing to divide by."""
    under = draws @ ratio.denominator
    drawn: LineValues = np.divide(
        draws @ ratio.numerator, under, out=np.full(len(draws), np.nan), where=under > 0
    )
    return drawn


def _percentile_interval(value: float | None, drawn: LineValues) -> Interval:
    known = drawn[np.isfinite(drawn)]
    if value is None or not len(known):
        return Interval(None, None, None)
    low, high = np.percentile(known, _PERCENTILES)
    return Interval(value, float(low), float(high))
