"""Results of a load: observations, percentiles, objectives, goodput, validity, a plot.

All times are those of `time.perf_counter`. Latency is counted from the time at which a request was
due, not from its sending, so that queueing in the client is not hidden (coordinated omission).
Results are marked invalid if requests were sent late, if they waited for connections, or if the
generator's core was saturated: they then describe the generator and not the service.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from models.errors import InvalidInputError
from models.files import atomic_writer
from service.bench.plan import ClosedLoop, Load, LoadSettings, OpenLoop, parse_duration_s

TIMEOUT = "timeout"


@dataclass(slots=True)
class Observation:
    """One request.

    Attributes:
        intended_s: when it was due; in a closed loop, when its client was free.
        started_s: when the generator took it up.
        sent_s: when it had a connection and was written to it; 0 if it never was.
        ended_s: when its answer was whole, or it was given up.
        status: of HTTP; 0 without an answer.
        error: its kind: `http_429`, `refused`, `connect`, `cut`, `protocol`, `stream`, `timeout`,
            `unfinished`; None if all went well.
        num_items: texts, candidates or contexts in it.
        num_tokens: generated.
        token_times_s: when each event of a stream came that brought tokens.
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
        """From when it was due to its end."""
        return self.ended_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to its first token; None if none was streamed."""
        return self.token_times_s[0] - self.intended_s if self.token_times_s else None

    @property
    def gaps_s(self) -> list[float]:
        """Between events that brought tokens."""
        return [after - before for before, after in pairwise(self.token_times_s)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if no second one was streamed."""
        if not self.token_times_s or self.num_tokens < 2:
            return None
        return (self.ended_s - self.token_times_s[0]) / (self.num_tokens - 1)


@dataclass(slots=True)
class Recording:
    """A run, as far as it has come.

    Attributes:
        load: that was put on.
        terms: how long, and with what.
        started_s: when it began.
        window_start_s: when what is measured begins, after the warm-up.
        ended_s: when the last answer was there.
        observations: of all requests that ended, those of the warm-up among them.
        examples: of each kind of error, what the first one said.
        num_due: of those, the ones after the warm-up.
        num_waited: requests that had to wait for one of the connections.
        cpu_s: processor time of the thread that sends and reads.
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

    def add(self, seen: Observation) -> None:
        """Take in what was seen of a request that has ended."""
        self.observations.append(seen)
        self.num_due += seen.intended_s >= self.window_start_s

    @property
    def cpu_share(self) -> float:
        """Of one core, which is all that a thread of Python can have."""
        elapsed_s = self.ended_s - self.started_s
        return self.cpu_s / elapsed_s if elapsed_s else 0.0

    @property
    def window_end_s(self) -> float:
        """When what is measured ends: after the time that was asked for, else with the last answer."""
        if self.terms.duration_s is None:
            return self.ended_s
        until_s = self.window_start_s + self.terms.duration_s
        return min(self.ended_s, until_s) if self.interrupted else until_s


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
            f"objective is {text!r}; it must be NAME=TIME with one of {', '.join(OBJECTIVE_METRICS)}, "
            "such as ttft=50ms",
            parameter="objective",
        )
    return Objective(metric, parse_duration_s(limit, f"objective {metric}"))


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


MAX_LATE_SHARE = 0.25
"""Of the 99th percentile of latency: more lateness of the generator's own would be most of what is seen."""
MAX_WAITED_SHARE = 0.01
"""Of the requests: if more wait for a connection, the service never saw the load that was asked for."""
MAX_CPU_SHARE = 0.9
"""Of one core: beyond it a generator of one thread has nothing left."""


def validity_problems(
    recording: Recording, latency: Percentiles | None, lateness: Percentiles | None
) -> tuple[str, ...]:
    """Reasons why the figures are not the service's own; none if they are.

    Args:
        recording: of the run.
        latency: of its answers.
        lateness: from when requests were due to when the generator took them up.
    """
    found = []
    if latency is not None and lateness is not None:
        late_s, whole_s = lateness.highest_s, latency.highest_s
        if late_s > MAX_LATE_SHARE * whole_s:
            found.append(
                f"the generator fell behind its schedule: at p99 by {1e3 * late_s:.2f} ms, which is "
                f"{late_s / whole_s:.0%} of the latency (limit {MAX_LATE_SHARE:.0%}); a lower rate, or another "
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
    """How often a kind of error came, and what the first one said."""

    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What a load was like.

    Attributes:
        load: that was put on.
        duration_s: of what was measured.
        num_requests: that were due in that time.
        num_answered: of those, with status 2xx and whole.
        errors: of the others, by kind.
        offered_per_s: requests a second that were asked for; None in a closed loop.
        sent_per_s: that were due, as the arrivals were drawn.
        achieved_per_s: answers a second that came in that time.
        items_per_s: texts, candidates or contexts in those answers.
        tokens_per_s: that came in that time.
        goodput_per_s: requests a second that were answered and met all objectives.
        latency: of answers, from when they were due. What ran out of time counts with the time it was given.
        ttft: time to the first token, likewise; None without streams.
        itl: between events that brought tokens; None without streams.
        tpot: time per output token after the first; None without streams.
        lateness: of the generator itself: from when requests were due to when it took them up.
        connecting: from then to when they had a connection.
        num_waited: requests for which there was no connection at first.
        cpu_share: of one core, that the generator used.
        invalid_because: why the figures are not the service's own; empty if they are.
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
    goodput_per_s: float
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
        """Whether the figures are the service's own."""
        return not self.invalid_because

    @property
    def rejected_share(self) -> float:
        """Of all requests, those that were answered 429."""
        rejected = self.errors.get(_REJECTED)
        return rejected.count / self.num_requests if rejected else 0.0

    def to_json(self) -> dict[str, Any]:
        """For programs; times in milliseconds."""
        load = self.load
        return {
            "load": "open" if isinstance(load, OpenLoop) else "closed",
            "arrivals": load.arrivals if isinstance(load, OpenLoop) else None,
            "clients": load.clients if isinstance(load, ClosedLoop) else None,
            "duration_s": self.duration_s,
            "offered_per_s": self.offered_per_s,
            "sent_per_s": self.sent_per_s,
            "achieved_per_s": self.achieved_per_s,
            "goodput_per_s": self.goodput_per_s,
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


def summarise_load(recording: Recording, objectives: Sequence[Objective] = ()) -> LoadSummary:
    """The figures of a recording.

    Rates are of what happened between the end of the warm-up and the end of the time that was asked for; the
    rest is of the requests that were due then, however long their answers took.
    """
    began_s, until_s = recording.window_start_s, recording.window_end_s
    duration_s = max(until_s - began_s, 0.0)
    per_s = 1 / duration_s if duration_s else 0.0
    due = [seen for seen in recording.observations if began_s <= seen.intended_s]
    answered = [seen for seen in due if seen.error is None]
    came = [
        seen for seen in recording.observations if seen.error is None and began_s <= seen.ended_s <= until_s
    ]
    good = [seen for seen in answered if all(objective.is_met(seen) for objective in objectives)]
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
        achieved_per_s=len(came) * per_s,
        items_per_s=sum(seen.num_items for seen in came) * per_s,
        tokens_per_s=_tokens_between(recording.observations, began_s, until_s) * per_s,
        goodput_per_s=len(good) * per_s,
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
    counts = Counter(seen.error for seen in due if seen.error is not None)
    return {kind: ErrorCount(count, recording.examples[kind]) for kind, count in counts.most_common()}


def _tokens_between(observations: Iterable[Observation], began_s: float, until_s: float) -> float:
    """Tokens that came between two times; a stream's are taken to come in equal parts with its events."""
    total = 0.0
    for seen in observations:
        if seen.num_tokens:
            times_s = np.array(seen.token_times_s or [seen.ended_s])
            total += seen.num_tokens * float(np.mean((began_s <= times_s) & (times_s <= until_s)))
    return total


_SUFFIXES = frozenset({".png", ".svg", ".pdf"})
_PERCENTILES: dict[str, Callable[[Percentiles], float | None]] = {
    "p50": lambda spread: spread.p50_s,
    "p90": lambda spread: spread.p90_s,
    "p99": lambda spread: spread.p99_s,
    "p99.9": lambda spread: spread.p999_s,
}


def check_plot_path(path: Path) -> None:
    """See that a picture can be written there, before minutes are spent on it.

    Raises:
        InvalidInputError: it is no kind of picture that is drawn, or its folder is not there.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidInputError(
            f"plot is {str(path)!r}; its name must end in {', '.join(sorted(_SUFFIXES))}", parameter="plot"
        )
    if not path.parent.is_dir():
        raise InvalidInputError(f"plot is {str(path)!r}; there is no folder {path.parent}", parameter="plot")


def plot_sweep(summaries: Sequence[LoadSummary], path: Path) -> None:
    """Draw the percentiles of latency over the load, and write the picture; invalid points are hollow.

    Raises:
        FormatError: the file system refuses.
    """
    from matplotlib.figure import Figure  # slow to import; no global state: not pyplot

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, percentile in _PERCENTILES.items():
        points = [
            (_load_size(summary), 1e3 * value, summary.valid)
            for summary in summaries
            if summary.latency is not None and (value := percentile(summary.latency)) is not None
        ]
        if points:
            loads, times_ms, _ = zip(*sorted(points), strict=True)
            (line,) = axes.plot(loads, times_ms, marker="o", label=name)
            for load, time_ms, valid in points:
                if not valid:
                    axes.plot(load, time_ms, "o", color="white", markeredgecolor=line.get_color())
    is_open = any(isinstance(summary.load, OpenLoop) for summary in summaries)
    axes.set_xlabel("requests offered a second" if is_open else "clients")
    axes.set_ylabel("latency, ms")
    axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), dpi=150)
    with atomic_writer(path) as write:
        write(picture.getvalue())


def _load_size(summary: LoadSummary) -> float:
    return summary.load.rate_per_s if isinstance(summary.load, OpenLoop) else summary.load.clients
