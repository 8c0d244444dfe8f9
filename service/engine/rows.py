"""Rows of a state that several requests share: selected when they are needed, and only then copied."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.arrays import TokenIds


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
