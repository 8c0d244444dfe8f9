"""The texts of one call on the way from their first tokens to their last, some of them further on than others."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from service.engine.rows import StateView, concatenate_states, is_range, view

Scorer: TypeAlias = Callable[[LanguageModel[Any], Any, TokenIds, TokenIds], FloatArray]
"""Log-probabilities [R, T] of tokens [R, T] with lengths [R] after a state, as `score_sequences`."""

STRIDE_TOKENS = 8
"""That each text of a slice goes on by, roughly: with fewer, more texts than help the model would be half done."""


class Segment(NamedTuple):
    """Texts of one call that were read up to the same column.

    Attributes:
        rows: their numbers [N], the shortest first.
        left: tokens of each that are to be read [N].
        state: after the columns before `at`.
        column: the next column.
    """

    rows: TokenIds
    left: TokenIds
    state: StateView
    column: int

    def cut(self, some: slice) -> "Segment":
        """Some of the texts."""
        return Segment(self.rows[some], self.left[some], self.state.select(some), self.column)


class PrefillProgress:
    """R texts, each after a state of its own.

    Args:
        state: R rows.
        tokens: of the texts [R, T].
        lengths: of the texts [R].
        scored: whether their log-probabilities are wanted.
        keep: whether the state after them is wanted.

    Attributes:
        tokens: of the texts [R, T].
        lengths: of the texts [R].
        left: tokens that are still to be read.
        scores: log-probabilities [R, T], as far as they are read; None where they are not wanted.
    """

    def __init__(self, state: Any, tokens: TokenIds, lengths: TokenIds, *, scored: bool, keep: bool) -> None:
        self.tokens, self.lengths = tokens, lengths
        self.left = int(lengths.sum())
        self.scores = np.zeros(tokens.shape, dtype=np.float32) if scored else None
        self._keep = keep
        shared = state if isinstance(state, StateView) else view(state)
        order = np.argsort(lengths, kind="stable")
        texts = Segment(order, lengths[order], shared.select(order), 0)
        self._num_left = int(np.count_nonzero(lengths))
        num_empty = len(lengths) - self._num_left
        self._pending = [texts.cut(slice(num_empty, None))] if self._num_left else []
        self._read = [texts.cut(slice(num_empty))]
        self._next: list[Segment] = []

    @property
    def done(self) -> bool:
        """Whether all is read."""
        return not self._pending

    @property
    def wanted(self) -> int:
        """Tokens of a slice that it can use, at most."""
        return min(self.left, STRIDE_TOKENS * self._num_left)

    def next_segments(self, share: int) -> list[Segment]:
        """The texts that go on next: so many that a share of a slice lets each make its stride, and at least one.

        Args:
            share: tokens.
        """
        if share >= self.wanted:
            self._next = self._pending
            return self._next
        self._next = []
        for block in self._pending:
            strides = np.minimum(block.left, STRIDE_TOKENS).cumsum()
            count = int(strides.searchsorted(share, side="right"))
            if not count and self._next:
                break
            self._next.append(block.cut(slice(max(count, 1))))
            if count < len(strides):
                break
            share -= int(strides[-1])
        return self._next

    def record(
        self, columns: int, states: Sequence[StateView | None], scores: Sequence[FloatArray | None]
    ) -> None:
        """The next blocks were read, so many columns further or to their ends.

        Args:
            columns: at least one.
            states: after them, a block; None where all have ended and none is wanted.
            scores: of what was read, a block [N, columns]; None where none are wanted.
        """
        rest = self._remaining()
        self._pending = []
        for block, state, told in zip(self._next, states, scores, strict=True):
            width = min(columns, int(block.left[-1]))
            if self.scores is not None and told is not None:
                self.scores[block.rows, block.column : block.column + width] = told[:, :width]
            self.left -= int(np.minimum(block.left, columns).sum())
            if state is not None:
                self._sort_in(Segment(block.rows, block.left - columns, state, block.column + width))
        self._pending += rest
        self._next = []
        self._num_left = sum(len(block.rows) for block in self._pending)

    def detach(self, state: Any) -> None:
        """Keep alive no other rows of a state than those of these texts."""
        self._pending = [_detached(block, state) for block in self._pending]
        self._read = [_detached(block, state) for block in self._read]

    def state(self) -> StateView:
        """The state after everything, rows in the order they came in; all is read, and states are kept."""
        parts = [block for block in self._read if len(block.rows)] or self._read
        rows = np.concatenate([block.rows for block in parts])
        state = concatenate_states([block.state for block in parts])
        return state if is_range(rows, len(rows)) else state.select(np.argsort(rows))

    def _remaining(self) -> list[Segment]:
        """The blocks that do not go on next."""
        last, taken = self._pending[len(self._next) - 1], len(self._next[-1].rows)
        cut = [last.cut(slice(taken, None))] if taken < len(last.rows) else []
        return cut + self._pending[len(self._next) :]

    def _sort_in(self, block: Segment) -> None:
        """Put the texts of a block that was read where they belong."""
        num_ended = int(block.left.searchsorted(0, side="right"))
        if num_ended and self._keep:
            self._read.append(block.cut(slice(num_ended)))
        if num_ended < len(block.rows):
            self._pending.append(block.cut(slice(num_ended, None)) if num_ended else block)


def _detached(block: Segment, state: Any) -> Segment:
    return block._replace(state=view(block.state.materialized)) if block.state.base is state else block
