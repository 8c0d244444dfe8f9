"""When requests are due in an open loop, in seconds after its start, for ever."""

import itertools
import random
from collections.abc import Iterator
from typing import Literal

Arrivals = Literal["poisson", "constant"]


def poisson_arrivals(rate_per_s: float, seed: int = 0) -> Iterator[float]:
    """Independent callers: exponential gaps. The same seed gives the same times."""
    generator = random.Random(seed)
    due_s = 0.0
    while True:
        due_s += generator.expovariate(rate_per_s)
        yield due_s


def constant_arrivals(rate_per_s: float) -> Iterator[float]:
    """A clock: equal gaps, the first request at once."""
    return (number / rate_per_s for number in itertools.count())


def arrival_times(kind: Arrivals, rate_per_s: float, seed: int = 0) -> Iterator[float]:
    """The arrivals of that name; `constant` needs no seed."""
    return poisson_arrivals(rate_per_s, seed) if kind == "poisson" else constant_arrivals(rate_per_s)
