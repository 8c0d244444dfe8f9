"""A recording in figures: rates, percentiles, errors, goodput, and whether they may be believed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.load.loads import ClosedLoop, Load, OpenLoop
from service.load.objectives import Objective
from service.load.observation import TIMEOUT, Observation, Recording
from service.load.spread import Percentiles
from service.load.validity import validity_problems

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
