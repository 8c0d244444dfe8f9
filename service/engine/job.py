"""Jobs of the scheduler, their listeners, and the observer of the scheduler.

A use case is a generator function. It yields a `ModelCall` and is resumed with its result, or an
event for the listener, or None to let other jobs run. It returns its result.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from service.engine.batching import ModelCall
from service.engine.calls import run_single

E = TypeVar("E")
R = TypeVar("R")

Work: TypeAlias = Generator[ModelCall | E | None, Any, R]
"""A use case under way: events of type E, then a result of type R."""


class WorkOutput(NamedTuple):
    """What a work does next: an event, or, as the last, its result.

    Attributes:
        value: the one or the other.
        last: which.
    """

    value: Any
    last: bool


def iter_outputs(work: Work[Any, Any]) -> Iterator[WorkOutput]:
    """Do a work without an engine, its calls alone: its events as they come, then its result."""
    answer: Any = None
    while True:
        try:
            told = work.send(answer)
        except StopIteration as stopped:
            yield WorkOutput(stopped.value, last=True)
            return
        answer = run_single(told) if isinstance(told, ModelCall) else None
        if told is not None and not isinstance(told, ModelCall):
            yield WorkOutput(told, last=False)


def run_to_completion(work: Work[Any, R]) -> R:
    """Do a work without an engine; its events are dropped."""
    result: R
    for item in iter_outputs(work):
        result = item.value
    return result


class JobListener(Protocol):
    """Told what becomes of a job, on the model thread; exactly one of the last two, once."""

    def event(self, event: Any) -> bool:
        """The work yielded something; the answer is whether it is kept until somebody takes it."""
        ...

    def result(self, result: Any) -> None:
        """The work is done."""
        ...

    def error(self, error: Exception) -> None:
        """The work ended otherwise."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """One request's work.

    Attributes:
        work: started and resumed on the model thread alone.
        listener: told its outcome, unless it is cancelled.
        deadline_s: when its time is out, by the scheduler's clock.
        request_id: for the log.
        bulk: whether it gives way to interactive jobs.
        tokens: how many it is expected to read and generate.
        submitted_s: when it was submitted, by the scheduler's clock.
        started: whether it has been given its first step.
        cancelled: whether nobody waits for it any more.
        parked: whether it waits for its listener to take events.
        pending_events: events delivered and not yet taken.
        answer: what the work is resumed with.
    """

    work: Work[Any, Any]
    listener: JobListener
    deadline_s: float
    request_id: str = ""
    bulk: bool = False
    tokens: int = 0
    submitted_s: float = 0.0
    started: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    parked: bool = field(default=False, init=False)
    pending_events: int = field(default=0, init=False)
    answer: Any = field(default=None, init=False)


class SchedulerObserver(Protocol):
    """Told what happens, on whatever thread it does."""

    def started(self, waited_s: float) -> None:
        """A job had its first step after so many seconds."""
        ...

    def rejected(self, reason: str) -> None:
        """A job was not admitted: `requests`, `tokens` or `draining`."""
        ...

    def ended(self, how: str) -> None:
        """A job ended: `done`, `failed`, `cancelled` or `deadline`."""
        ...

    def answered(self, kind: str, rows: int) -> None:
        """So many rows of calls of a kind were answered in one batch."""
        ...


class NullSchedulerObserver:
    """Nobody is told."""

    def started(self, waited_s: float) -> None:
        """Ignore it."""

    def rejected(self, reason: str) -> None:
        """Ignore it."""

    def ended(self, how: str) -> None:
        """Ignore it."""

    def answered(self, kind: str, rows: int) -> None:
        """Ignore it."""
