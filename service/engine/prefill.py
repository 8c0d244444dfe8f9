"""Chunked prefill: texts of many calls read and scored side by side, a bounded slice at a time.

Each call keeps its own progress as segments of texts read up to the same column. A slice takes so
many columns that its token budget allows, and where not all texts can be finished not much more
than half of them need, so that one long text does not delay short ones.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.language_model import (
    LanguageModel,
    ReadScores,
    prefill_sequences,
    read_sequences,
    score_sequences,
)
from models.vocabulary import EOS
from service.engine.batching import (
    CallBatch,
    ModelCall,
    SliceResult,
    StateView,
    check_no_nan,
    concatenate_states,
    gather_states,
    is_range,
    split_budget,
    split_rows,
    view,
)

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


SHORT_READ_TOKENS = 8
"""As many as a key stroke or a word brings; they are not worth waiting for others."""
_SHORT_LOOKUP_TOKENS = 4096
"""Tokens that a table tells of in a few milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Read(ModelCall):
    """Read tokens [R, T], of which row r has lengths[r]; tell how probable they are, or what is then remembered.

    Attributes:
        tokens: ids.
        lengths: of the rows.
        scorer: what scores them; None where only the state after them is wanted.
        keep: whether the state is wanted too.
    """

    tokens: TokenIds
    lengths: TokenIds
    scorer: Scorer | None = None
    keep: bool = False

    @property
    def kind(self) -> Hashable:
        """Together with calls that want the same."""
        return type(self), id(self.model), self.scorer, self.keep

    @property
    def size(self) -> int:
        """Tokens, padding aside."""
        return int(self.lengths.sum())

    @property
    def urgent(self) -> bool:
        """Whether it is short for its model; so are two short rows, which take a network no longer than one."""
        if not self.merges:
            return self.size <= _SHORT_LOOKUP_TOKENS
        rows, longest = len(self.lengths), int(self.lengths.max(initial=0))
        return self.size <= SHORT_READ_TOKENS or (rows == 2 and longest <= SHORT_READ_TOKENS)

    @staticmethod
    def batch() -> "ReadBatch":
        """Texts that are read side by side."""
        return ReadBatch()


class ReadBatch(CallBatch[Read, PrefillProgress]):
    """Texts that are read side by side; those of a slice alone are brought together in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._last: list[PrefillProgress] = []
        self._joint: Any = None

    def _start(self, call: Read) -> PrefillProgress:
        scored, keep = call.scorer is not None, call.keep or call.scorer is None
        return PrefillProgress(call.state, call.tokens, call.lengths, scored=scored, keep=keep)

    def _run(self, under_way: Mapping[Read, PrefillProgress], count: int) -> SliceResult:
        readings = list(under_way.values())
        shares = split_budget([some.wanted for some in readings], [some.left for some in readings], count)
        chosen = [
            (some, some.next_segments(share)) for some, share in zip(readings, shares, strict=True) if share
        ]
        rows = tokens = 0
        if chosen:
            rows, tokens = self._read(next(iter(under_way)), chosen, count)
        done = [(call, _result_of(call, some)) for call, some in under_way.items() if some.done]
        return SliceResult(rows, tokens, done)

    def _read(
        self, like: Read, chosen: Sequence[tuple[PrefillProgress, list[Segment]]], count: int
    ) -> tuple[int, int]:
        """Read some blocks side by side, as the calls of a kind want it; how many rows and tokens it were."""
        blocks = [block for _, some in chosen for block in some]
        left = np.concatenate([block.left for block in blocks])
        width = slice_width(left, count)
        lengths = np.minimum(left, width)
        tokens = _stack_tokens(chosen, width, len(left))
        state = gather_states([block.state for block in blocks])
        scores, after = _compute(like, state, tokens, lengths, last=width >= left.max())
        if scores is not None:
            check_no_nan(scores)
        counts = [len(block.rows) for block in blocks]
        states = [None] * len(blocks) if after is None else split_rows(after, counts)
        ends = np.cumsum([0, *counts]).tolist()
        told = [None if scores is None else scores[begin:end] for begin, end in pairwise(ends)]
        first = 0
        for reading, some in chosen:
            cut = slice(first, first + len(some))
            reading.record(width, states[cut], told[cut])
            first = cut.stop
        for reading in self._last:  # those who did not go on now rest, and keep no others' rows alive
            reading.detach(self._joint)
        self._last, self._joint = [reading for reading, _ in chosen if not reading.done], after
        return len(left), int(lengths.sum())


def slice_width(left: TokenIds, count: int) -> int:
    """How many columns of texts are read in a slice, at least one.

    As many as a number of tokens allows. Where not all can be read to their ends, not much more than half of them need:
    a long text among short ones does not keep their answers back.

    Args:
        left: tokens of each text, at least one each [R].
        count: tokens of the slice.
    """
    if left.sum() <= count:
        return int(left.max())
    ordered = np.sort(left)
    shorter = ordered.cumsum() - ordered  # tokens of those before each
    longer = np.arange(len(left), 0, -1)
    ended = int(np.count_nonzero(shorter + ordered * longer <= count))
    even = (count - int(shorter[ended])) // int(longer[ended])
    return max(min(even, 2 * int(ordered[(len(left) - 1) // 2])), 1)


def _stack_tokens(
    chosen: Sequence[tuple[PrefillProgress, list[Segment]]], width: int, num_rows: int
) -> TokenIds:
    """The next tokens of some blocks, one below the other [R, width]."""
    tokens = np.full((num_rows, width), EOS, dtype=np.int64)
    row = 0
    for reading, blocks in chosen:
        for block in blocks:
            part = reading.tokens[block.rows, block.column : block.column + width]
            tokens[row : row + len(part), : part.shape[1]] = part
            row += len(part)
    return tokens


def _compute(
    like: Read, state: Any, tokens: TokenIds, lengths: TokenIds, *, last: bool
) -> tuple[FloatArray | None, Any]:
    """Log-probabilities of tokens [R, T] and the state after them, each if a call of this kind wants it.

    Args:
        like: any call of the kind.
        state: R rows.
        tokens: ids [R, T].
        lengths: of the rows [R].
        last: whether no row has more to read.
    """
    if like.scorer is None:
        return None, prefill_sequences(like.model, state, tokens, lengths)
    if last and not like.keep:
        return like.scorer(like.model, state, tokens, lengths), None
    if like.scorer is score_sequences:
        return tuple(read_sequences(like.model, state, tokens, lengths))
    scores = like.scorer(like.model, state, tokens, lengths)
    return scores, prefill_sequences(like.model, state, tokens, lengths)


def _result_of(call: Read, reading: PrefillProgress) -> Any:
    """What a call wanted: log-probabilities [R, T], a state of R rows, or both."""
    if reading.scores is None:
        return reading.state()
    return ReadScores(reading.scores, reading.state()) if call.keep else reading.scores
