"""Texts of many calls read side by side, each at its own place, a bounded number of tokens at a time."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.protocol import ReadScores
from models.scoring import prefill_sequences, read_sequences, score_sequences
from models.vocabulary import EOS
from service.engine.model_call import ModelCall
from service.engine.pools import CallBatch, SliceResult
from service.engine.reading import PrefillProgress, Scorer, Segment
from service.engine.rows import gather_states, split_rows
from service.engine.shares import split_budget
from service.engine.soundness import check_no_nan

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
