"""Batches of model calls of one kind, run in slices, over lazily selected rows of joint states.

A `CallBatch` runs calls a slice at a time; they are added and removed between slices. After a failure
each call of the slice runs alone next, so only the faulty one fails.

A `StateView` selects rows of a joint state without copying. Batched requests have views of one state,
not copied while the same rows stay together. `split_budget` divides the tokens of a slice: half go
to the calls with the least work left, the rest to the oldest. `check_no_nan` rejects NaN
log-probabilities; minus infinity is allowed.

All objects are for one thread.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from models.arrays import FloatArray, TokenIds

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
        """Compute about `count` tokens or distributions, at least one; the batch must not be empty.

        Raises:
            Exception: the model failed. Calls are unchanged; call `isolate_failure` next.
        """
        suspect = {call: self._running[call] for call in self._suspects[:1]}
        result = self._run(suspect or self._running, count)
        del self._suspects[:1]
        for call, _ in result.answers:
            del self._running[call]
            self._served = max(self._served, self._tags.pop(call))
        return result

    def isolate_failure(self) -> C | None:
        """Run each call of a failed slice alone next, so only the faulty one fails.

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
        """Advance some calls by about `count` tokens; an exception must leave all unchanged."""


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
    shortest = sorted(range(len(wanted)), key=left.__getitem__)  # stable: equal calls stay in order of age
    used = 0
    for order, limit in ((shortest, budget // 2), (range(len(wanted)), budget)):
        for call in order:
            if used >= limit:
                break
            more = min(wanted[call] - shares[call], limit - used)
            shares[call] += more
            used += more
    return shares


class StateView:
    """Lazy selection of R rows of a joint state; a view is usable as a state.

    No rows are copied while a batch stays the same:
    `gather_states` returns the base if all its rows are selected in order.

    Args:
        base: a state.
        rows: indices of its rows [R]; they may repeat.
    """

    __slots__ = ("base", "rows")

    def __init__(self, base: Any, rows: TokenIds) -> None:
        self.base = base
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: TokenIds | slice) -> "StateView":
        """Select rows of this view without copying them."""
        return StateView(self.base, self.rows[rows])

    def concatenate(self, states: Sequence[Any]) -> "StateView":
        """Concatenate these rows and the rows of other states."""
        return concatenate_states([self, *states])

    @property
    def materialized(self) -> Any:
        """State of these rows, copied unless they are all rows of the base in order."""
        if is_range(self.rows, len(self.base)):
            return self.base
        return self.base.select(self.rows)


def materialize(state: Any) -> Any:
    """Return a state that shares no memory with the rows of other requests."""
    return state.materialized if isinstance(state, StateView) else state


def concatenate_states(states: Sequence[Any]) -> StateView:
    """Concatenate states' rows, without copying if all are views of one base."""
    runs = [list(run) for _, run in groupby(map(view, states), key=lambda state: id(state.base))]
    parts = [StateView(run[0].base, np.concatenate([state.rows for state in run])) for run in runs]
    if len(parts) == 1:
        return parts[0]
    first, *rest = (part.materialized for part in parts)
    return view(first.concatenate(rest))


def gather_states(states: Sequence[Any]) -> Any:
    """Concatenate the rows of several states into one state for the model."""
    if len(states) == 1:
        return materialize(states[0])
    return concatenate_states(states).materialized


def view(state: Any) -> StateView:
    """Return a view of all rows of a state; a view is returned unchanged."""
    return state if isinstance(state, StateView) else StateView(state, np.arange(len(state)))


def split_rows(state: Any, counts: Sequence[int]) -> list[StateView]:
    """Split a state into views of `counts` consecutive rows."""
    return [StateView(state, rows) for rows in split_array(np.arange(len(state)), counts)]


def split_array(values: Any, counts: Sequence[int]) -> list[Any]:
    """Split an array [ΣR, …] into parts of `counts` rows."""
    if len(counts) == 1:
        return [values]
    ends = np.cumsum(counts)
    return [values[end - count : end] for count, end in zip(counts, ends, strict=True)]


def is_range(rows: TokenIds, count: int) -> bool:
    """Return whether the rows are 0, 1, …, count − 1."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def check_no_nan(log_probs: FloatArray) -> FloatArray:
    """Return log-probabilities unchanged, rejecting NaN; −inf is allowed.

    Raises:
        FloatingPointError: a value is NaN; the engine then fails only the faulty request.
    """
    # the maximum is NaN if any value is, and several times as fast as isnan
    if log_probs.size and math.isnan(log_probs.max()):
        raise FloatingPointError("the model returned NaN as a log-probability")
    return log_probs
