"""Jobs of the scheduler, their listeners, and the observer of the scheduler.

A use case is a generator function. It yields a `ModelCall` and is resumed with its result, or an
event for the listener, or None to let other jobs run. It returns its result.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from models import calls
from models.calls import ModelCall, WorkOutput
from service.engine.calls import run_single

E = TypeVar("E")
R = TypeVar("R")

Work: TypeAlias = Generator[ModelCall | E | None, Any, R]
"""A running use case: events of type E, then a result of type R."""


def iter_outputs(work: Work[Any, Any]) -> Iterator[WorkOutput]:
    """Run a use case without an engine, one call at a time; yield its events as they come, then its result."""
    return calls.iter_outputs(work, run_single)


def run_to_completion(work: Work[Any, R]) -> R:
    """Run a use case without an engine, dropping its events."""
    return calls.run_calls(work, run_single)


class JobListener(Protocol):
    """Callbacks of a job, called on the model thread: events, then exactly one `end`."""

    def event(self, event: Any) -> bool:
        """Receive an event; return whether it is pending until a client takes it (False: dropped)."""
        ...

    def end(self, outcome: Any) -> None:
        """Receive the result of the finished work, or the exception that ended it."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """Work of one request.

    Attributes:
        work: generator of the use case, started and resumed on the model thread only.
        listener: receives events and the outcome, unless the job is cancelled.
        deadline_s: end of its time limit, by the scheduler's clock.
        request_id: for the log.
        bulk: whether interactive jobs take precedence over it.
        tokens: expected number of tokens to read and generate.
        submitted_s: time of submission, by the scheduler's clock.
        started: whether it has run its first step.
        cancelled: whether the client no longer waits for it.
        parked: whether it is suspended until its listener takes events.
        pending_events: events delivered and not yet taken.
        answer: result of its last model call, sent to the work when it resumes.
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


class SchedulerObserver:
    """Callbacks for metrics of the scheduler, called on the thread of the event; these do nothing."""

    def started(self, waited_s: float) -> None:
        """Record the queue time of a job that has run its first step."""

    def rejected(self, reason: str) -> None:
        """Record a job that was not admitted: `requests`, `tokens` or `draining`."""

    def ended(self, how: str) -> None:
        """Record the end of a job: `done`, `failed`, `cancelled` or `deadline`."""

    def answered(self, kind: str, rows: int) -> None:
        """Record the number of rows of one kind of call that were computed in one slice."""
