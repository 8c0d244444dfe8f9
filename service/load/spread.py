"""How a figure is spread: its percentiles, as far as there are enough values to tell."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of times in seconds, interpolated linearly.

    A percentile is None where fewer values lie beyond it than one: the 99th needs 100 values, p99.9 1,000.
    """

    count: int
    mean_s: float
    p50_s: float
    p90_s: float | None
    p99_s: float | None
    p999_s: float | None
    max_s: float

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Self | None:
        """The spread of some values; None if there are none."""
        values = np.fromiter(values_s, dtype=np.float64)
        if not len(values):
            return None
        values.sort()

        def percentile(q: float, least_count: int) -> float | None:
            return float(np.percentile(values, q)) if len(values) >= least_count else None

        return cls(
            count=len(values),
            mean_s=float(values.mean()),
            p50_s=float(np.median(values)),
            p90_s=percentile(90, 10),
            p99_s=percentile(99, 100),
            p999_s=percentile(99.9, 1000),
            max_s=float(values[-1]),
        )

    @property
    def highest_s(self) -> float:
        """The 99th percentile, or the largest value where there are too few for it."""
        return self.max_s if self.p99_s is None else self.p99_s

    def to_json(self) -> dict[str, float | None]:
        """In milliseconds, for programs."""
        return {
            "count": self.count,
            "mean": 1e3 * self.mean_s,
            "p50": 1e3 * self.p50_s,
            "p90": _ms(self.p90_s),
            "p99": _ms(self.p99_s),
            "p99.9": _ms(self.p999_s),
            "max": 1e3 * self.max_s,
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
