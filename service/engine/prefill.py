"""Chunked prefill: texts of many calls read and scored together, a slice at a time.

A call's progress is a list of segments: texts read up to the same column. A slice reads as many
columns as its token budget allows. If not all texts can be finished, it reads at most twice the
median remaining length, so one long text does not delay short ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import FloatArray, TokenIds, index_ranges
from models.calls import (
    Read,
    StateView,
    check_no_nan,
    gather_states,
    is_range,
    join_states,
    split_array,
    split_rows,
    view,
)
from models.language_model import EOS, ReadResult, in_order, read_sequences
from service.engine.batching import CallBatch, SliceResult, split_budget
from service.engine.constants import STRIDE_TOKENS

_Chosen: TypeAlias = Sequence[tuple["PrefillProgress", list["Segment"]]]
_Result: TypeAlias = tuple[StateView | None, FloatArray | None, StateView | None]


class Segment(NamedTuple):
    """Texts of one call, read up to the same column.

    Attributes:
        rows: indices of the texts in the call [N], the shortest first.
        left: remaining tokens of each text [N].
        state: state after the columns before `column`, N rows.
        column: the next column to read.
    """

    rows: TokenIds
    left: TokenIds
    state: StateView
    column: int

    def cut(self, part: slice) -> "Segment":
        """Return the segment of a slice of the texts."""
        return Segment(self.rows[part], self.left[part], self.state.select(part), self.column)


class PrefillProgress:
    """Progress of one call: R texts, each after a row of the state.

    Attributes:
        tokens: ids of the texts [R, T].
        left: unread tokens.
        scores: log-probabilities [R, T], 0 for unread tokens; None if not wanted.
    """

    def __init__(self, call: Read) -> None:
        self.tokens, lengths = call.tokens, call.lengths
        self.left = call.size
        self.scores = np.zeros(self.tokens.shape, np.float32) if call.want.scores else None
        self._keep = call.want.state
        self._before: list[tuple[TokenIds, StateView]] = []  # places in `tokens`, and states before these
        rows = view(call.state)
        order = np.argsort(lengths, kind="stable")
        texts = Segment(order, lengths[order], rows.select(order), 0)
        self._num_left = int(np.count_nonzero(lengths))
        num_empty = len(lengths) - self._num_left
        self._pending = [texts.cut(slice(num_empty, None))] if self._num_left else []
        self._read = [texts.cut(slice(num_empty))]
        self._next: list[Segment] = []  # segments of the current slice
        self._rest: list[Segment] = []  # segments of `_pending` outside the slice

    @property
    def done(self) -> bool:
        """True if all texts are read."""
        return not self._pending

    @property
    def wanted(self) -> int:
        """Maximum tokens that the call can use in a slice."""
        return min(self.left, STRIDE_TOKENS * self._num_left)

    def next_segments(self, share: int) -> list[Segment]:
        """Select texts of the next slice: as many as `share` tokens give a stride each, at least one."""
        self._next, self._rest = self._pending, []
        if share >= self.wanted:
            return self._next
        self._next = []
        for index, segment in enumerate(self._pending):
            strides = np.minimum(segment.left, STRIDE_TOKENS).cumsum()
            count = int(strides.searchsorted(share, side="right"))
            if not count and self._next:
                self._rest = self._pending[index:]
                break
            count = max(count, 1)
            self._next.append(segment.cut(slice(count)))
            if count < len(strides):
                self._rest = [segment.cut(slice(count, None)), *self._pending[index + 1 :]]
                break
            share -= int(strides[-1])
        return self._next

    def record(self, columns: int, results: Iterator[_Result]) -> None:
        """Record that the selected segments were read `columns` further, or to their ends.

        Args:
            columns: columns read, at least one.
            results: of each segment, and then of other calls, the new state, None if all texts have ended and no
                state is wanted; the log-probabilities [N, columns], and the states before the tokens, None if not
                wanted.
        """
        self._pending = []
        for segment, (state, log_probs, before) in zip(self._next, results, strict=False):
            width = min(columns, int(segment.left[-1]))
            if self.scores is not None and log_probs is not None:
                self.scores[segment.rows, segment.column : segment.column + width] = log_probs[:, :width]
            counts = np.minimum(segment.left, columns)
            self.left -= int(counts.sum())
            if before is not None:
                first = segment.rows * self.tokens.shape[1] + segment.column
                self._before.append((index_ranges(first, first + counts), view(before.materialized)))
            if state is None:
                continue
            after = Segment(segment.rows, segment.left - columns, state, segment.column + width)
            num_ended = int(after.left.searchsorted(0, side="right"))
            # ended texts are stored only if their states are wanted
            if num_ended and self._keep:
                self._read.append(after.cut(slice(num_ended)))
            if num_ended < len(after.rows):
                self._pending.append(after.cut(slice(num_ended, None)) if num_ended else after)
        self._pending += self._rest
        self._next = []
        self._num_left = sum(len(segment.rows) for segment in self._pending)

    def detach(self, state: Any) -> None:
        """Copy this call's rows of a joint state, to free other rows."""
        for segments in (self._pending, self._read):
            for i, segment in enumerate(segments):
                if segment.state.base is state:
                    segments[i] = segment._replace(state=view(segment.state.materialized))

    def result(self) -> ReadResult:
        """Return the wanted results in the call's order; requires `done`."""
        scores = ReadResult().log_probs if self.scores is None else self.scores
        before = in_order(self._before) if self._before else None
        if not self._keep:
            return ReadResult(scores, before=before)
        segments = [segment for segment in self._read if len(segment.rows)] or self._read
        rows = np.concatenate([segment.rows for segment in segments])
        state = join_states([segment.state for segment in segments])
        ordered = is_range(rows, len(rows))
        return ReadResult(scores, state if ordered else state.select(np.argsort(rows)), before)


class ReadBatch(CallBatch[Read, PrefillProgress]):
    """Batch of texts read together; a slice gathers only its texts' states."""

    def __init__(self) -> None:
        super().__init__()
        self._last: list[PrefillProgress] = []
        self._joint: Any = None

    def _start(self, call: Read) -> PrefillProgress:
        return PrefillProgress(call)

    def _run(self, under_way: Mapping[Read, PrefillProgress], count: int) -> SliceResult:
        readings = list(under_way.values())
        shares = split_budget([text.wanted for text in readings], [text.left for text in readings], count)
        shared = zip(readings, shares, strict=True)
        chosen = [(text, text.next_segments(share)) for text, share in shared if share]
        rows = tokens = 0
        if chosen:
            rows, tokens = self._read(next(iter(under_way)), chosen, count)
        done = [(call, reading.result()) for call, reading in under_way.items() if reading.done]
        return SliceResult(rows, tokens, done)

    def _read(self, like: Read, chosen: _Chosen, count: int) -> tuple[int, int]:
        """Read the selected segments together; return numbers of rows and tokens."""
        segments = [segment for _, selected in chosen for segment in selected]
        left = np.concatenate([segment.left for segment in segments])
        width = slice_width(left, count)
        lengths = np.minimum(left, width)
        tokens = _stack_tokens(chosen, width, len(left))
        state = gather_states([segment.state for segment in segments])
        # unfinished rows need a state
        keeps = like.want.state or width < left.max()
        result = read_sequences(like.model, state, tokens, lengths, like.want._replace(state=keeps))
        scores, after = result.log_probs if like.want.scores else None, result.state if keeps else None
        if scores is not None:
            check_no_nan(scores)
        counts = [len(segment.rows) for segment in segments]
        none = [None] * len(segments)
        states = none if after is None else split_rows(after, counts)
        log_probs = none if scores is None else split_array(scores, counts)
        num_read = [int(part.sum()) for part in split_array(lengths, counts)] if like.want.before else []
        before = split_rows(result.before, num_read) if like.want.before else none
        results = zip(states, log_probs, before, strict=True)
        for reading, _ in chosen:
            reading.record(width, results)
        # calls of only the last slice must not keep the joint state alive
        for reading in self._last:
            reading.detach(self._joint)
        self._last, self._joint = [reading for reading, _ in chosen if not reading.done], after
        return len(left), int(lengths.sum())


def slice_width(left: TokenIds, count: int) -> int:
    """Return the number of columns to read in a slice, at least one.

    It is the largest within the token budget; if not all texts can be finished, at most twice the median
    remaining length, so a long text does not delay short ones.

    Args:
        left: remaining tokens of each text, at least one each [R].
        count: tokens of the slice.
    """
    if left.sum() <= count:
        return int(left.max())
    ordered = np.sort(left)
    shorter = ordered.cumsum() - ordered  # tokens of all shorter texts
    longer = np.arange(len(left), 0, -1)
    ended = int(np.count_nonzero(shorter + ordered * longer <= count))
    even = (count - int(shorter[ended])) // int(longer[ended])
    return max(min(even, 2 * int(ordered[(len(left) - 1) // 2])), 1)


def _stack_tokens(chosen: _Chosen, width: int, num_rows: int) -> TokenIds:
    """Stack the next tokens of all selected segments [R, width], padded with `</s>`."""
    tokens = np.full((num_rows, width), EOS, np.int64)
    row = 0
    for reading, segments in chosen:
        for segment in segments:
            part = reading.tokens[segment.rows, segment.column : segment.column + width]
            tokens[row : row + len(part), : part.shape[1]] = part
            row += len(part)
    return tokens
