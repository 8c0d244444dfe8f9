"""Rows of model states, selected lazily from joint states.

A `StateView` selects rows of a joint state without copying. Batched requests have views of one state,
not copied while the same rows stay together.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from models.arrays import FloatArray, TokenIds


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
        """Join these rows and the rows of other states."""
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
    """Join states' rows, without copying if all are views of one base."""
    runs = [list(run) for _, run in groupby(map(view, states), key=lambda state: id(state.base))]
    parts = [StateView(run[0].base, np.concatenate([state.rows for state in run])) for run in runs]
    if len(parts) == 1:
        return parts[0]
    first, *rest = (part.materialized for part in parts)
    return view(first.concatenate(rest))


def gather_states(states: Sequence[Any]) -> Any:
    """Join the rows of several states into one state for the model."""
    if len(states) == 1:
        return materialize(states[0])
    return concatenate_states(states).materialized


def view(state: Any) -> StateView:
    """Return a view of all rows of a state; itself if a view."""
    return state if isinstance(state, StateView) else StateView(state, np.arange(len(state)))


def split_rows(state: Any, counts: Sequence[int]) -> list[StateView]:
    """Split a state into views of `counts` consecutive rows."""
    return [StateView(state, rows) for rows in split_array(np.arange(len(state)), counts)]


def split_array(values: Any, counts: Sequence[int]) -> list[Any]:
    """Split an array [ΣR, …] into parts of `counts` rows."""
    if len(counts) == 1:
        return [values]
    return [values[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]


def is_range(rows: TokenIds, count: int) -> bool:
    """True if the rows are 0, 1, …, count − 1."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def check_no_nan(log_probs: FloatArray) -> FloatArray:
    """Return log-probabilities, rejecting NaN; −inf is allowed.

    Raises:
        FloatingPointError: a value is NaN; the engine then fails only the faulty request.
    """
    # the maximum is NaN if any value is, and much faster than isnan
    if log_probs.size and math.isnan(log_probs.max()):
        raise FloatingPointError("the model returned NaN as a log-probability")
    return log_probs
