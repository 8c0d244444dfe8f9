"""Results of a load: observations, percentiles, validity.

All times are from `time.perf_counter`. Latency counts from the time a request was due, not sent;
otherwise queueing in the client would be hidden (coordinated omission). Results are marked invalid
if requests were sent late or waited for connections, or if the generator's core was saturated:
they then describe the generator, not the service.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, Field

from service.bench.plan import Arrivals, ClosedLoop, Load, LoadSettings, OpenLoop

TIMEOUT = "timeout"
MAX_LATE_SHARE = 0.25
"""Maximum valid lateness of the generator, relative to the 99th percentile of latency."""
MAX_WAITED_SHARE = 0.01
"""Maximum valid share of requests that wait for a connection; more lower the load."""
MAX_CPU_SHARE = 0.9
"""Maximum valid share of one core; above it, the one thread is saturated."""


@dataclass(slots=True)
class Observation:
    """Measurement of one request.

    Attributes:
        intended_s: due time; in a closed loop, when its client was free.
        started_s: time when the generator started it.
        sent_s: time when it was written to a connection, else 0.
        ended_s: time of the complete reply or the failure.
        status: HTTP status; 0 without a reply.
        error: kind of error: `http_429`, `refused`, `connect`, `cut`, `protocol`, `stream`, `timeout`,
            `unfinished`; None without an error.
        num_items: texts, candidates or contexts in the request.
        num_tokens: generated tokens.
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


@dataclass(slots=True)
class Recording:
    """Observations of a run so far.

    Attributes:
        load: open or closed loop.
        terms: durations and bounds.
        started_s: start of the run.
        window_start_s: start of the measurement, after the warm-up.
        ended_s: time of the last reply.
        observations: of all ended requests, warm-up included.
        examples: first message of each kind of error.
        num_due: observations due after the warm-up.
        num_waited: requests that waited for a connection.
        cpu_s: CPU time of the thread that sends and receives.
        interrupted: true if the run was ended early.
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
        """CPU use as a share of one core, the maximum of a Python thread."""
        elapsed_s = self.ended_s - self.started_s
        return self.cpu_s / elapsed_s if elapsed_s else 0.0


class Percentiles(BaseModel):
    """Percentiles of times in milliseconds, interpolated linearly.

    A percentile is None if less than one value is expected above: p99 needs 100, p99.9 1,000.
    """

    count: int
    mean: float
    p50: float
    p90: float | None
    p99: float | None
    p999: float | None = Field(serialization_alias="p99.9")
    max: float

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Self | None:
        """Compute the percentiles of values in seconds; None without values."""
        values_ms = 1e3 * np.fromiter(values_s, dtype=np.float64)
        if not len(values_ms):
            return None

        def percentile(q: float, least_count: int) -> float | None:
            return float(np.percentile(values_ms, q)) if len(values_ms) >= least_count else None

        return cls(
            count=len(values_ms),
            mean=float(values_ms.mean()),
            p50=float(np.median(values_ms)),
            p90=percentile(90, 10),
            p99=percentile(99, 100),
            p999=percentile(99.9, 1000),
            max=float(values_ms.max()),
        )

    @property
    def highest(self) -> float:
        """99th percentile, or the maximum if there are too few values."""
        return self.max if self.p99 is None else self.p99


def validity_problems(
    recording: Recording, latency: Percentiles | None, lateness: Percentiles | None
) -> list[str]:
    """Return why figures do not describe the service; empty if they do.

    The lateness is the time from a request's due time to its start.
    """
    found = []
    if latency is not None and lateness is not None:
        late_ms, latency_ms = lateness.highest, latency.highest
        if late_ms > MAX_LATE_SHARE * latency_ms:
            found.append(
                f"the generator fell behind its schedule: at p99 by {late_ms:.2f} ms, which is "
                f"{late_ms / latency_ms:.0%} of the latency (limit {MAX_LATE_SHARE:.0%}); lower the rate, or run "
                "the generator on another machine"
            )
    due = len(recording.observations)
    if isinstance(recording.load, OpenLoop) and recording.num_waited > MAX_WAITED_SHARE * due:
        found.append(
            f"{recording.num_waited:,} of {due:,} requests waited for one of the "
            f"{recording.terms.max_connections:,} connections: the actual load was lower than requested"
        )
    if recording.cpu_share > MAX_CPU_SHARE:
        found.append(
            f"the generator used {recording.cpu_share:.0%} of a core (limit {MAX_CPU_SHARE:.0%}) and may be the "
            "bottleneck; run several generators, or send larger requests"
        )
    return found


class ErrorCount(BaseModel):
    """Number of errors of one kind, and the first message."""

    count: int
    example: str


class GeneratorFigures(BaseModel):
    """Figures of the generator itself.

    Attributes:
        lateness_ms: from a request's due time to its start.
        connecting_ms: from a request's start to its connection.
        waited_for_connection: requests that waited for a connection.
        cpu_share: CPU use as a share of one core.
    """

    lateness_ms: Percentiles | None
    connecting_ms: Percentiles | None
    waited_for_connection: int
    cpu_share: float


class LoadSummary(BaseModel):
    """Results of a load, as in the JSON output.

    Attributes:
        load: open or closed loop.
        arrivals: arrivals of an open loop.
        clients: clients of a closed loop.
        typists: typists of an open loop.
        duration_s: length of the measurement.
        offered_per_s: requested rate, in requests per second; None in a closed loop.
        sent_per_s: requests due per second; with random arrivals not `offered_per_s`.
        achieved_per_s: replies per second that arrived during the measurement.
        items_per_s: texts, candidates or contexts per second in these replies.
        tokens_per_s: tokens per second that arrived during the measurement.
        requests: requests due during the measurement.
        answered: those of them with a complete reply of status 2xx.
        errors: errors of the remaining requests, by kind.
        rejected_share: share of requests with status 429.
        latency_ms: latency from the due time; a timed-out request counts with its timeout.
        ttft_ms: time to first token, from the due time; None without streams.
        itl_ms: time between events with tokens; None without streams.
        tpot_ms: time per output token after the first; None without streams.
        generator: figures of the generator itself.
        valid: true if the figures describe the service, not the generator.
        invalid_because: why the figures are not valid.
        interrupted: true if the run was ended early.
    """

    load: Literal["open", "closed"]
    arrivals: Arrivals | None
    clients: int | None
    typists: int | None
    duration_s: float
    offered_per_s: float | None
    sent_per_s: float
    achieved_per_s: float
    items_per_s: float
    tokens_per_s: float
    requests: int
    answered: int
    errors: dict[str, ErrorCount]
    rejected_share: float
    latency_ms: Percentiles | None
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    tpot_ms: Percentiles | None
    generator: GeneratorFigures
    valid: bool
    invalid_because: list[str]
    interrupted: bool


def summarise_load(recording: Recording) -> LoadSummary:
    """Compute the results of a recording.

    Rates cover the time from the end of the warm-up to that of the measurement; other figures cover
    the requests due in that time, including those with late replies.
    """
    began_s, until_s = recording.window_start_s, recording.ended_s
    if recording.terms.duration_s is not None:  # else until the last reply
        end_s = began_s + recording.terms.duration_s
        until_s = min(until_s, end_s) if recording.interrupted else end_s
    duration_s = max(until_s - began_s, 0.0)
    per_s = 1 / duration_s if duration_s else 0.0
    due = [seen for seen in recording.observations if began_s <= seen.intended_s]
    answered = [seen for seen in due if seen.error is None]
    arrived = [
        seen for seen in recording.observations if seen.error is None and began_s <= seen.ended_s <= until_s
    ]
    counts = Counter(seen.error for seen in due if seen.error is not None)
    load = recording.load
    timed = (seen for seen in due if seen.error in {None, TIMEOUT})
    latency = Percentiles.of(seen.ended_s - seen.intended_s for seen in timed)
    lateness = Percentiles.of(seen.started_s - seen.intended_s for seen in due)
    streamed = [seen for seen in answered if seen.token_times_s]
    problems = validity_problems(recording, latency, lateness)
    return LoadSummary(
        load="closed" if isinstance(load, ClosedLoop) else "open",
        arrivals=load.arrivals if isinstance(load, OpenLoop) else None,
        clients=load.clients if isinstance(load, ClosedLoop) else None,
        typists=load.typists if isinstance(load, OpenLoop) else None,
        duration_s=duration_s,
        offered_per_s=load.rate_per_s if isinstance(load, OpenLoop) else None,
        sent_per_s=len(due) * per_s,
        achieved_per_s=len(arrived) * per_s,
        items_per_s=sum(seen.num_items for seen in arrived) * per_s,
        tokens_per_s=_tokens_between(recording.observations, began_s, until_s) * per_s,
        requests=len(due),
        answered=len(answered),
        errors={
            kind: ErrorCount(count=count, example=recording.examples[kind])
            for kind, count in counts.most_common()
        },
        rejected_share=counts["http_429"] / len(due) if due else 0.0,
        latency_ms=latency,
        ttft_ms=Percentiles.of(seen.token_times_s[0] - seen.intended_s for seen in streamed),
        itl_ms=Percentiles.of(
            after - before for seen in streamed for before, after in pairwise(seen.token_times_s)
        ),
        tpot_ms=Percentiles.of(
            (seen.ended_s - seen.token_times_s[0]) / (seen.num_tokens - 1)
            for seen in streamed
            if seen.num_tokens > 1
        ),
        generator=GeneratorFigures(
            lateness_ms=lateness,
            connecting_ms=Percentiles.of(seen.sent_s - seen.started_s for seen in due if seen.sent_s),
            waited_for_connection=recording.num_waited,
            cpu_share=recording.cpu_share,
        ),
        valid=not problems,
        invalid_because=problems,
        interrupted=recording.interrupted,
    )


def _tokens_between(observations: Iterable[Observation], began_s: float, until_s: float) -> float:
    """Count tokens received between two times, each stream's spread evenly over its events."""
    total = 0.0
    for seen in observations:
        if seen.num_tokens:
            times_s = np.array(seen.token_times_s or [seen.ended_s])
            total += seen.num_tokens * float(np.mean((began_s <= times_s) & (times_s <= until_s)))
    return total
