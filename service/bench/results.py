"""Results of a load: observations, percentiles, validity.

All times are those of `time.perf_counter`. Latency is counted from the time at which a request was
due, not from its sending, so that queueing in the client is not hidden (coordinated omission).
Results are marked invalid if requests were sent late, if they waited for connections, or if the
generator's core was saturated: they then describe the generator and not the service.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np

from service.bench.plan import ClosedLoop, Load, LoadSettings, OpenLoop

TIMEOUT = "timeout"


@dataclass(slots=True)
class Observation:
    """One request.

    Attributes:
        intended_s: due time; in a closed loop, the time at which its client was free.
        started_s: time at which the generator started it.
        sent_s: time at which it was written to a connection; 0 if it never was.
        ended_s: time at which its reply was complete, or the request failed.
        status: of HTTP; 0 without a reply.
        error: kind of error: `http_429`, `refused`, `connect`, `cut`, `protocol`, `stream`, `timeout`,
            `unfinished`; None without an error.
        num_items: number of texts, candidates or contexts in it.
        num_tokens: number generated.
        token_times_s: arrival times of a stream's events with tokens.
    """

    intended_s: float
    started_s: float
    num_items: int = 1
    sent_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    error: str | None = None
    num_tokens: int = 0
    token_times_s: Sequence[float] = ()

    @property
    def latency_s(self) -> float:
        """Time from due to end."""
        return self.ended_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        """Time from due to first token; None if none was streamed."""
        return self.token_times_s[0] - self.intended_s if self.token_times_s else None

    @property
    def gaps_s(self) -> list[float]:
        """Times between events with tokens."""
        return [after - before for before, after in pairwise(self.token_times_s)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if no second one was streamed."""
        if not self.token_times_s or self.num_tokens < 2:
            return None
        return (self.ended_s - self.token_times_s[0]) / (self.num_tokens - 1)


@dataclass(slots=True)
class Recording:
    """Observations of a run so far.

    Attributes:
        load: open or closed loop.
        terms: durations and bounds.
        started_s: start of the run.
        window_start_s: start of the measurement, after the warm-up.
        ended_s: time of the last reply.
        observations: of all ended requests, including the warm-up.
        examples: first message of each kind of error.
        num_due: number of observations due after the warm-up.
        num_waited: number of requests that had to wait for a connection.
        cpu_s: CPU time of the thread that sends and receives.
        interrupted: whether it was ended early.
    """

    load: Load
    terms: LoadSettings
    started_s: float = 0.0
    window_start_s: float = 0.0
    ended_s: float = 0.0
    observations: list[Observation] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)
    num_due: int = 0
    num_waited: int = 0
    cpu_s: float = 0.0
    interrupted: bool = False

    def add(self, observation: Observation) -> None:
        """Add the observation of an ended request."""
        self.observations.append(observation)
        self.num_due += observation.intended_s >= self.window_start_s

    @property
    def cpu_share(self) -> float:
        """CPU use as a share of one core, the most that a Python thread can use."""
        elapsed_s = self.ended_s - self.started_s
        return self.cpu_s / elapsed_s if elapsed_s else 0.0

    @property
    def window_end_s(self) -> float:
        """End of the measurement: after the demanded duration, else at the last reply."""
        if self.terms.duration_s is None:
            return self.ended_s
        until_s = self.window_start_s + self.terms.duration_s
        return min(self.ended_s, until_s) if self.interrupted else until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of times in seconds, interpolated linearly.

    A percentile is None if less than one value is expected above it: the 99th needs 100 values, p99.9 1,000.
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
        """Compute the percentiles of values; None if there are none."""
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
        """The 99th percentile, or the largest value if there are too few for it."""
        return self.max_s if self.p99_s is None else self.p99_s

    def to_json(self) -> dict[str, float | None]:
        """Return the values in milliseconds, for programs."""
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


MAX_LATE_SHARE = 0.25
"""Largest valid lateness of the generator, as a share of the 99th percentile of latency."""
MAX_WAITED_SHARE = 0.01
"""Share of requests: if more wait for a connection, the load on the service was lower than demanded."""
MAX_CPU_SHARE = 0.9
"""Share of one core: above it a generator with one thread is saturated."""


def validity_problems(
    recording: Recording, latency: Percentiles | None, lateness: Percentiles | None
) -> tuple[str, ...]:
    """Describe the reasons for which the figures do not describe the service; empty if they do.

    Args:
        recording: of the run.
        latency: of its replies.
        lateness: time from due to start of requests in the generator.
    """
    found = []
    if latency is not None and lateness is not None:
        late_s, latency_s = lateness.highest_s, latency.highest_s
        if late_s > MAX_LATE_SHARE * latency_s:
            found.append(
                f"the generator fell behind its schedule: at p99 by {1e3 * late_s:.2f} ms, which is "
                f"{late_s / latency_s:.0%} of the latency (limit {MAX_LATE_SHARE:.0%}); a lower rate, or another "
                "machine for the generator, would tell more"
            )
    due = len(recording.observations)
    if isinstance(recording.load, OpenLoop) and recording.num_waited > MAX_WAITED_SHARE * due:
        found.append(
            f"{recording.num_waited:,} of {due:,} requests waited for one of the "
            f"{recording.terms.max_connections:,} connections: the service saw a lower load than was asked for"
        )
    if recording.cpu_share > MAX_CPU_SHARE:
        found.append(
            f"the generator used {recording.cpu_share:.0%} of a core (limit {MAX_CPU_SHARE:.0%}): it may be what is "
            "measured; run several, or send larger requests"
        )
    return tuple(found)


_REJECTED = "http_429"


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Number of errors of a kind, and the first message."""

    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """Results of a load.

    Attributes:
        load: open or closed loop.
        duration_s: of the measurement.
        num_requests: number due in that time.
        num_answered: number of those with a complete reply of status 2xx.
        errors: of the rest, by kind.
        offered_per_s: demanded requests per second; None in a closed loop.
        sent_per_s: requests per second that were due, by the random arrivals.
        achieved_per_s: replies per second that arrived in that time.
        items_per_s: texts, candidates or contexts per second in those replies.
        tokens_per_s: tokens per second that arrived in that time.
        latency: of replies, from the due time. A request that timed out counts with its timeout.
        ttft: time to the first token, likewise; None without streams.
        itl: time between events with tokens; None without streams.
        tpot: time per output token after the first; None without streams.
        lateness: of the generator itself: time from due to start of requests.
        connecting: time from start to connection.
        num_waited: number of requests that had to wait for a connection.
        cpu_share: CPU use of the generator as a share of one core.
        invalid_because: reasons for which the figures do not describe the service; empty if they do.
        interrupted: whether it was ended early.
    """

    load: Load
    duration_s: float
    num_requests: int
    num_answered: int
    errors: dict[str, ErrorCount]
    offered_per_s: float | None
    sent_per_s: float
    achieved_per_s: float
    items_per_s: float
    tokens_per_s: float
    latency: Percentiles | None
    ttft: Percentiles | None
    itl: Percentiles | None
    tpot: Percentiles | None
    lateness: Percentiles | None
    connecting: Percentiles | None
    num_waited: int
    cpu_share: float
    invalid_because: tuple[str, ...]
    interrupted: bool

    @property
    def valid(self) -> bool:
        """Whether the figures describe the service, not the generator."""
        return not self.invalid_because

    @property
    def rejected_share(self) -> float:
        """Share of requests with a reply of status 429."""
        rejected = self.errors.get(_REJECTED)
        return rejected.count / self.num_requests if rejected else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the results for programs; times in milliseconds."""
        load = self.load
        return {
            "load": "open" if isinstance(load, OpenLoop) else "closed",
            "arrivals": load.arrivals if isinstance(load, OpenLoop) else None,
            "clients": load.clients if isinstance(load, ClosedLoop) else None,
            "duration_s": self.duration_s,
            "offered_per_s": self.offered_per_s,
            "sent_per_s": self.sent_per_s,
            "achieved_per_s": self.achieved_per_s,
            "items_per_s": self.items_per_s,
            "tokens_per_s": self.tokens_per_s,
            "requests": self.num_requests,
            "answered": self.num_answered,
            "errors": {kind: {"count": e.count, "example": e.example} for kind, e in self.errors.items()},
            "rejected_share": self.rejected_share,
            "latency_ms": self.latency and self.latency.to_json(),
            "ttft_ms": self.ttft and self.ttft.to_json(),
            "itl_ms": self.itl and self.itl.to_json(),
            "tpot_ms": self.tpot and self.tpot.to_json(),
            "generator": {
                "lateness_ms": self.lateness and self.lateness.to_json(),
                "connecting_ms": self.connecting and self.connecting.to_json(),
                "waited_for_connection": self.num_waited,
                "cpu_share": self.cpu_share,
            },
            "valid": self.valid,
            "invalid_because": list(self.invalid_because),
            "interrupted": self.interrupted,
        }


def summarise_load(recording: Recording) -> LoadSummary:
    """Compute the results of a recording.

    Rates cover the time between the end of the warm-up and the end of the measurement; all else covers the
    requests due in that time, however long their replies took.
    """
    began_s, until_s = recording.window_start_s, recording.window_end_s
    duration_s = max(until_s - began_s, 0.0)
    per_s = 1 / duration_s if duration_s else 0.0
    due = [seen for seen in recording.observations if began_s <= seen.intended_s]
    answered = [seen for seen in due if seen.error is None]
    arrived = [
        seen for seen in recording.observations if seen.error is None and began_s <= seen.ended_s <= until_s
    ]
    load = recording.load
    latency = Percentiles.of(seen.latency_s for seen in due if seen.error in {None, TIMEOUT})
    lateness = Percentiles.of(seen.started_s - seen.intended_s for seen in due)
    return LoadSummary(
        load=load,
        duration_s=duration_s,
        num_requests=len(due),
        num_answered=len(answered),
        errors=_errors(due, recording),
        offered_per_s=load.rate_per_s if isinstance(load, OpenLoop) else None,
        sent_per_s=len(due) * per_s,
        achieved_per_s=len(arrived) * per_s,
        items_per_s=sum(seen.num_items for seen in arrived) * per_s,
        tokens_per_s=_tokens_between(recording.observations, began_s, until_s) * per_s,
        latency=latency,
        ttft=Percentiles.of(seen.ttft_s for seen in answered if seen.ttft_s is not None),
        itl=Percentiles.of(gap_s for seen in answered for gap_s in seen.gaps_s),
        tpot=Percentiles.of(seen.tpot_s for seen in answered if seen.tpot_s is not None),
        lateness=lateness,
        connecting=Percentiles.of(seen.sent_s - seen.started_s for seen in due if seen.sent_s),
        num_waited=recording.num_waited,
        cpu_share=recording.cpu_share,
        invalid_because=validity_problems(recording, latency, lateness),
        interrupted=recording.interrupted,
    )


def _errors(due: Iterable[Observation], recording: Recording) -> dict[str, ErrorCount]:
    counts = Counter(observation.error for observation in due if observation.error is not None)
    return {kind: ErrorCount(count, recording.examples[kind]) for kind, count in counts.most_common()}


def _tokens_between(observations: Iterable[Observation], began_s: float, until_s: float) -> float:
    """Count tokens received between two times; a stream's are assumed to be spread evenly over its events."""
    total = 0.0
    for observation in observations:
        if observation.num_tokens:
            times_s = np.array(observation.token_times_s or [observation.ended_s])
            total += observation.num_tokens * float(np.mean((began_s <= times_s) & (times_s <= until_s)))
    return total
