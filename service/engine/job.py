"""Work for the model thread, and where its outcome goes.

A use case is a plain generator function. It yields after each bounded chunk of model work
— None, or an event for whoever listens — and returns its result.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

E = TypeVar("E")
R = TypeVar("R")

Work: TypeAlias = Generator[E | None, None, R]
"""A use case under way: events of type E, then a result of type R."""


class Listener(Protocol):
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
        submitted_s: when it was submitted, by the scheduler's clock.
        started: whether it has been given its first step.
        cancelled: whether nobody waits for it any more.
        parked: whether it waits for its listener to take events.
        untaken: events delivered and not yet taken.
    """

    work: Work[Any, Any]
    listener: Listener
    deadline_s: float
    request_id: str = ""
    submitted_s: float = 0.0
    started: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    parked: bool = field(default=False, init=False)
    untaken: int = field(default=0, init=False)
