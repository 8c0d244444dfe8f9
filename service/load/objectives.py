"""Objectives that an answer meets or not, for goodput: answers a second that are good enough."""

from dataclasses import dataclass

from models.errors import InvalidInputError
from service.load.durations import parse_duration_s
from service.load.observation import Observation

OBJECTIVE_METRICS = ("latency", "ttft", "itl", "tpot")


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit for one figure of each request.

    Attributes:
        metric: `latency`; or, of streams, `ttft` (the first token), `itl` (no gap between tokens is longer) or
            `tpot` (mean time of the tokens after the first).
        limit_s: that must not be passed.
    """

    metric: str
    limit_s: float

    def is_met(self, seen: Observation) -> bool:
        """Whether an answer meets it; one that is not a stream has no token times and cannot meet theirs."""
        if self.metric == "latency":
            return seen.latency_s <= self.limit_s
        if seen.ttft_s is None:
            return False
        if self.metric == "ttft":
            return seen.ttft_s <= self.limit_s
        if self.metric == "itl":
            return max(seen.gaps_s, default=0.0) <= self.limit_s
        return (seen.tpot_s or 0.0) <= self.limit_s


def parse_objective(text: str) -> Objective:
    """The objective of `NAME=TIME`, such as `ttft=50ms`.

    Raises:
        InvalidInputError: there is no such figure, or no such time.
    """
    metric, _, limit = text.partition("=")
    if metric not in OBJECTIVE_METRICS:
        raise InvalidInputError(
            f"objective is {text!r}; it must be NAME=TIME with one of {', '.join(OBJECTIVE_METRICS)}, such as ttft=50ms",
            parameter="objective",
        )
    return Objective(metric, parse_duration_s(limit, f"objective {metric}"))
