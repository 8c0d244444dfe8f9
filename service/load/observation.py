"""What is seen of each request, and of a whole run. All times are those of `time.perf_counter`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from service.load.loads import Load, LoadSettings

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
