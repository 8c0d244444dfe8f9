"""Batches of model calls of one kind, run in slices.

A `CallBatch` runs calls a slice at a time; they are added and removed between slices. After a failure
each call of the slice runs alone next, so only the faulty one fails.

`split_budget` divides the tokens of a slice: half go to the calls with the least work left, the rest
to the oldest.

All objects are for one thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

C = TypeVar("C")
"""Type of the calls of a batch."""
P = TypeVar("P")
"""Type of the progress of one running call."""


class SliceResult(NamedTuple):
    """Work and answers of one slice.

    Attributes:
        rows: rows computed together.
        tokens: tokens read, or distributions computed.
        answers: each finished call and its answer.
    """

    rows: int
    tokens: int
    answers: list[tuple[Any, Any]]


class CallBatch(ABC, Generic[C, P]):
    """Batch of calls of one kind, run a slice at a time; for one thread only."""

    def __init__(self) -> None:
        self._running: dict[C, P] = {}  # oldest first
        self._tags: dict[C, int] = {}
        self._last_tags: dict[str, int] = {}  # by owner
        self._served = 0
        self._suspects: list[C] = []

    def __len__(self) -> int:
        """Return the number of calls without an answer."""
        return len(self._running)

    @property
    def oldest(self) -> C:
        """The longest-waiting call; the batch must not be empty."""
        return next(iter(self._running))

    def add(self, call: C, owner: str = "") -> None:
        """Add a call to the next slices.

        Owners take turns by their tags, and the calls of each stay in order (start-time fair queueing, Goyal,
        Vin and Cheng 1997).
        """
        self._running[call] = self._start(call)
        self._tags[call] = self._last_tags[owner] = 1 + max(self._served, self._last_tags.get(owner, 0))

    def remove(self, call: C) -> None:
        """Drop a call whose answer is no longer needed."""
        del self._running[call], self._tags[call]
        if call in self._suspects:
            self._suspects.remove(call)

    def run_slice(self, count: int) -> SliceResult:
        """Compute about `count` tokens or distributions, at least one; for a batch with calls.

        Raises:
            Exception: the model failed; calls are unchanged. Call `isolate_failure` next.
        """
        suspect = {call: self._running[call] for call in self._suspects[:1]}
        result = self._run(suspect or self._running, count)
        del self._suspects[:1]
        for call, _ in result.answers:
            del self._running[call]
            self._served = max(self._served, self._tags.pop(call))
        return result

    def isolate_failure(self) -> C | None:
        """Run each call of a failed slice alone next: only the faulty one fails.

        Returns:
            The faulty call, now removed, if the slice ran it alone; else None.
        """
        if not self._suspects:
            self._suspects = list(self._running)
            if len(self._suspects) > 1:
                return None
        call = self._suspects[0]
        self.remove(call)
        return call

    @abstractmethod
    def _start(self, call: C) -> P:
        """Return the initial progress of a call."""

    @abstractmethod
    def _run(self, under_way: Mapping[C, P], count: int) -> SliceResult:
        """Advance calls by about `count` tokens; an exception leaves all unchanged."""


def split_budget(wanted: Sequence[int], left: Sequence[int], budget: int) -> list[int]:
    """Divide a slice: half to the calls with the least work left, the rest to the oldest.

    Args:
        wanted: tokens that each call can use, oldest call first.
        left: remaining tokens of each call.
        budget: tokens of the slice.

    Returns:
        Tokens of each call, at most `wanted`.
    """
    shares = [0] * len(wanted)
    shortest = sorted(range(len(wanted)), key=left.__getitem__)  # stable: equal ones by age
    used = 0
    for order, limit in ((shortest, budget // 2), (range(len(wanted)), budget)):
        for call in order:
            if used >= limit:
                break
            more = min(wanted[call] - shares[call], limit - used)
            shares[call] += more
            used += more
    return shares
