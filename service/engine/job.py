"""Jobs of the scheduler, and shares of their owners.

An operation is a generator function that yields a `ModelCall`, to be resumed with its result, an event
for the client, or None to let other jobs run, and returns its result.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from models.calls import ModelCall, Work, WorkOutput

H = TypeVar("H", bound=Hashable)
Party: TypeAlias = tuple[str, bool]
"""Owner and kind of jobs, True for bulk; each has a share, so bulk jobs leave capacity to others."""


class RequestOptions(NamedTuple):
    """Scheduling options of a request.

    Attributes:
        request_id: id of the request in the log.
        timeout_s: time limit, at most the engine's; None for the engine's.
        bulk: True if interactive requests take precedence over this one.
        tokens: expected tokens to read and generate.
        owner: client with a share of the capacity.
    """

    request_id: str = ""
    timeout_s: float | None = None
    bulk: bool = False
    tokens: int = 0
    owner: str = ""

    @property
    def party(self) -> Party:
        """Owner and kind of the request."""
        return self.owner, self.bulk


NO_OPTIONS = RequestOptions()


@dataclass(slots=True, eq=False)
class Job:
    """Work of one request.

    Attributes:
        work: generator of the operation, started and resumed on the model thread only.
        deliver: called on the model thread with each event, then with the result or the exception that
            ended the work; not after cancellation.
        deadline_s: end of the time limit on the scheduler's clock.
        options: options of the request.
        streams: True to deliver events, False to drop them.
        submitted_s: time of submission on the scheduler's clock.
        started: True after the first step.
        cancelled: True if the client no longer waits.
        parked: True while suspended until its events are taken.
        pending: bytes of each event delivered but not yet taken.
        call: pending model call, if any.
        answer: result of the last model call, to resume the work with.
    """

    work: Work[Any, Any]
    deliver: Callable[[WorkOutput], None]
    deadline_s: float
    options: RequestOptions = NO_OPTIONS
    streams: bool = False
    submitted_s: float = field(default=0.0, init=False)
    started: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    parked: bool = field(default=False, init=False)
    pending: deque[int] = field(default_factory=deque, init=False)
    call: ModelCall | None = field(default=None, init=False)
    answer: Any = field(default=None, init=False)


class Shares(Generic[H]):
    """Fair shares of one capacity, such as a queue's places: what is free is lent, and comes back as it ends.

    With n owners that hold something, each has a share of one n-th. An owner may hold more while capacity is free,
    and gets its share even if others borrowed it: a queue then exceeds the capacity until borrowed work ends,
    and a store evicts what was borrowed.

    Args:
        total: the capacity; also an attribute.

    Attributes:
        used: sum of the amounts.
        held: amount of each owner, if any.
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self.held: Counter[H] = Counter()

    def share(self, owner: H) -> int:
        """Return what an owner gets even if nothing is free; the total if no other holds anything."""
        return self.total // (len(self.held) + (owner not in self.held))

    def refusal(self, owner: H, amount: int, whose: str = "this key") -> str | None:
        """Return why an owner may not hold more by an amount, as the end of a message; None if it may."""
        share = self.share(owner)
        if amount <= max(0, self.total - self.used, share - self.held[owner]):
            return None
        shared = f", and the share of {whose} {share}, of which {self.held[owner]} are taken"
        return f"the maximum is {self.total}" + (shared if share < self.total else "")

    def add(self, owner: H, amount: int) -> None:
        """Add to the amount of an owner, or subtract if it is negative."""
        self.used += amount
        if held := self.held.get(owner, 0) + amount:
            self.held[owner] = held
        else:
            self.held.pop(owner, None)

    def largest(self, other_than: H) -> H:
        """Return the other owner that holds most; there must be one."""
        return max(self.held.keys() - {other_than}, key=self.held.__getitem__)
