"""Jobs of the scheduler.

A use case is a generator function. It yields a `ModelCall`, to be resumed with the call's result,
an event for the client, or None to let other jobs run, and returns its result.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from models import calls
from models.calls import ModelCall, WorkOutput
from service.engine.calls import run_single

E = TypeVar("E")
R = TypeVar("R")

Work: TypeAlias = Generator[ModelCall | E | None, Any, R]
"""A running use case: events of type E, then a result of type R."""


def iter_outputs(work: Work[Any, Any]) -> Iterator[WorkOutput]:
    """Run a use case without an engine, one call at a time; yield its events as they arrive, then its result."""
    return calls.iter_outputs(work, run_single)


def run_to_completion(work: Work[Any, R]) -> R:
    """Run a use case without an engine, dropping its events."""
    return calls.run_calls(work, run_single)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Scheduling options of a request.

    Attributes:
        request_id: id of the request in the log.
        timeout_s: time limit, at most the engine's; None for the engine's.
        bulk: True if interactive requests take precedence over this one.
        tokens: expected number of tokens to read and generate.
        owner: client with a share of the capacity.
    """

    request_id: str = ""
    timeout_s: float | None = None
    bulk: bool = False
    tokens: int = 0
    owner: str = ""

    @property
    def party(self) -> tuple[str, bool]:
        """Owner and kind, which has a share: bulk requests leave capacity to interactive ones of the same owner."""
        return self.owner, self.bulk


@dataclass(slots=True, eq=False)
class Job:
    """Work of one request.

    Attributes:
        work: generator of the use case, started and resumed on the model thread only.
        deliver: function called on the model thread with each event, then once with the result or the exception
            that ended the work; not called after cancellation.
        deadline_s: end of the time limit on the scheduler's clock.
        options: options of the request.
        streams: True to deliver events, False to drop them.
        submitted_s: time of submission on the scheduler's clock.
        started: True after the first step.
        cancelled: True if the client no longer waits.
        parked: True while the job is suspended until its events are taken.
        pending_events: number of events delivered but not yet taken.
        answer: result of the last model call, sent to the work when it resumes.
    """

    work: Work[Any, Any]
    deliver: Callable[[WorkOutput], None]
    deadline_s: float
    options: RequestOptions = RequestOptions()
    streams: bool = False
    submitted_s: float = field(default=0.0, init=False)
    started: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    parked: bool = field(default=False, init=False)
    pending_events: int = field(default=0, init=False)
    answer: Any = field(default=None, init=False)
