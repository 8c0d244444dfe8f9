"""Batches of model calls of one kind, run in slices, over lazily selected rows of joint states.

A `CallBatch` runs its calls a slice at a time; calls may be added and removed between slices. After
a failure each call of the slice runs alone in the next slices, so that only the call at fault
fails.

A `StateView` selects rows of a joint state without copying them. Requests whose steps are batched
hold views of one state, and nothing is copied as long as the same rows stay together.
`split_budget` divides a slice: half of it goes to the calls with the least work left, the rest to
the oldest. `check_no_nan` rejects NaN log-probabilities; minus infinity is allowed.

Everything here belongs to one thread.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.language_model import LanguageModel

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


def split_budget(wanted: Sequence[int], left: Sequence[int], room: int) -> list[int]:
    """Half of the room goes to the calls that have least left to do, the rest to the oldest.

    Args:
        wanted: what each call could use, the oldest first.
        left: what each call has left to do altogether.
        room: what there is.

    Returns:
        What each gets, at most what it wanted.
    """
    shares = [0] * len(wanted)
    shortest = sorted(range(len(wanted)), key=left.__getitem__)  # of equal ones, the oldest first
    used = 0
    for order, limit in ((shortest, room // 2), (range(len(wanted)), room)):
        for call in order:
            if used >= limit:
                break
            more = min(wanted[call] - shares[call], limit - used)
            shares[call] += more
            used += more
    return shares


class StateView:
    """R rows of a joint state, as a state.

    Requests that take steps together get rows of one state. As long as they go on together
    nothing is copied: `gathered` finds that all rows are asked for in their order.

    Args:
        base: a state.
        rows: which of its rows [R]; they may repeat.
    """

    __slots__ = ("base", "rows")

    def __init__(self, base: Any, rows: TokenIds) -> None:
        self.base = base
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: TokenIds | slice) -> "StateView":
        """Rows of these rows; nothing is copied yet."""
        return StateView(self.base, self.rows[rows])

    def concatenate(self, others: Sequence[Any]) -> "StateView":
        """These rows, then those of others."""
        return concatenate_states([self, *others])

    @property
    def materialized(self) -> Any:
        """A state of these rows and no others."""
        if is_range(self.rows, len(self.base)):
            return self.base
        return self.base.select(self.rows)


def materialize(state: Any) -> Any:
    """A state that shares no memory with the rows of other requests."""
    return state.materialized if isinstance(state, StateView) else state


def concatenate_states(states: Sequence[Any]) -> StateView:
    """The rows of each, one after the other; of states that are one already without copying them."""
    shared = [state if isinstance(state, StateView) else view(state) for state in states]
    first = shared[0]
    if all(state.base is first.base for state in shared):
        return StateView(first.base, np.concatenate([state.rows for state in shared]))
    parts = [state.materialized for state in _merge_neighbours(shared)]
    return view(parts[0].concatenate(parts[1:]))


def gather_states(states: Sequence[Any]) -> Any:
    """One state of all rows, as a model takes it."""
    if len(states) == 1:
        return materialize(states[0])
    return concatenate_states(states).materialized


def view(state: Any) -> StateView:
    """All rows of a state."""
    return StateView(state, np.arange(len(state)))


def split_rows(state: Any, counts: Sequence[int]) -> list[StateView]:
    """A state in runs of so many rows."""
    rows = np.arange(len(state))
    ends = np.cumsum(counts)
    return [StateView(state, rows[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def is_range(rows: TokenIds, count: int) -> bool:
    """Whether the rows are 0, 1, …, count − 1."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _merge_neighbours(states: Sequence[StateView]) -> list[StateView]:
    """Neighbours that are rows of one state as one."""
    joined: list[StateView] = []
    run: list[StateView] = []
    for state in states:
        if run and state.base is not run[0].base:
            joined.append(StateView(run[0].base, np.concatenate([part.rows for part in run])))
            run = []
        run.append(state)
    joined.append(StateView(run[0].base, np.concatenate([part.rows for part in run])))
    return joined


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall(ABC):
    """A computation on R rows.

    Attributes:
        model: any.
        state: R rows.
    """

    model: LanguageModel[Any]
    state: Any

    @property
    def kind(self) -> Hashable:
        """Calls of the same kind can be done together."""
        return type(self), id(self.model)

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tokens are read, or distributions computed."""

    @property
    def merges(self) -> bool:
        """Whether doing several together costs less: not for tables, where it only costs copies."""
        return self.model.family != "ngram"

    @property
    @abstractmethod
    def urgent(self) -> bool:
        """Whether it goes ahead of calls that are not, since somebody waits who has little to ask."""

    @staticmethod
    @abstractmethod
    def batch() -> CallBatch[Any, Any]:
        """A pool for calls of one kind."""


def check_no_nan(log_probs: FloatArray) -> FloatArray:
    """The same log-probabilities; −inf is one.

    Raises:
        FloatingPointError: there is NaN among them; the engine finds out whose request it is, and fails that alone.
    """
    # a maximum is NaN if any value is, and is found several times as fast as all that are
    if log_probs.size and math.isnan(log_probs.max()):
        raise FloatingPointError("the model gave NaN for a log-probability")
    return log_probs
