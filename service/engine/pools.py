"""Calls of one kind under way, which others may join between any two slices of work."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

C = TypeVar("C")
"""A kind of call."""
P = TypeVar("P")
"""What is known of one that is under way."""


class SliceResult(NamedTuple):
    """What a slice came to.

    Attributes:
        rows: worked on side by side.
        tokens: read, or distributions computed.
        answers: each call that is done, and its answer.
    """

    rows: int
    tokens: int
    answers: list[tuple[Any, Any]]


class CallBatch(ABC, Generic[C, P]):
    """Calls of one kind that go on together, a slice at a time. It belongs to one thread."""

    def __init__(self) -> None:
        self._running: dict[C, P] = {}  # oldest first
        self._suspects: list[C] = []

    def __len__(self) -> int:
        """Calls without an answer."""
        return len(self._running)

    def add(self, call: C) -> None:
        """A call is part of the next slices."""
        self._running[call] = self._start(call)

    def remove(self, call: C) -> None:
        """Nobody waits for a call any more."""
        del self._running[call]
        if call in self._suspects:
            self._suspects.remove(call)

    def run_slice(self, count: int) -> SliceResult:
        """Do about so many tokens more, or distributions, at least one; there are calls without an answer.

        Raises:
            Exception: the model's. Every call is as it was, and `blame` tells how to go on.
        """
        some = self._suspects[:1] or list(self._running)
        done = self._run({call: self._running[call] for call in some}, count)
        del self._suspects[:1]
        for call, _ in done.answers:
            del self._running[call]
        return done

    def isolate_failure(self) -> C | None:
        """The last slice raised: each of its calls has the next slice alone, so that only who is at fault is told so.

        Returns:
            The call at fault, which has left, if it was alone.
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
        """A call under way, of which nothing is done yet."""

    @abstractmethod
    def _run(self, under_way: Mapping[C, P], count: int) -> SliceResult:
        """Go on with some of these calls; if it raises, nothing may have changed."""
