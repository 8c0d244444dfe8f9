"""Sequences of several requests read side by side, a bounded number of tokens at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel, ReadScores
from models.scoring import consume, read_sequences, score_sequences
from models.vocabulary import EOS
from service.engine.rows import split

Scorer: TypeAlias = Callable[[LanguageModel[Any], Any, TokenIds, TokenIds], FloatArray]
"""Log-probabilities [R, T] of tokens [R, T] with lengths [R] after a state, as `score_sequences`."""


class Reading:
    """Rows of tokens, each after its own state.

    Args:
        model: reads them.
        state: R rows.
        tokens: of each request [R_i, T_i]; the R_i sum to R.
        lengths: of all rows [R].
        scorer: what scores them; None where only the state after them is wanted.
        keep: whether the state is wanted too.
    """

    def __init__(
        self,
        model: LanguageModel[Any],
        state: Any,
        tokens: Sequence[TokenIds],
        lengths: TokenIds,
        scorer: Scorer | None,
        *,
        keep: bool = False,
    ) -> None:
        self._model = model
        self._shapes = [part.shape for part in tokens]
        self._lengths = lengths
        width = int(lengths.max(initial=0))
        self._tokens = tokens[0] if len(tokens) == 1 else _stacked(tokens, width)
        self._scorer = scorer
        self._keep = keep or scorer is None
        self._scores = np.zeros(self._tokens.shape, dtype=np.float32) if scorer is not None else None
        whole = _Block(np.arange(len(lengths)), state, 0)
        self._to_read: list[_Block] = [whole] if width else []
        self._read: list[_Block] = [] if width else [whole]

    @property
    def done(self) -> bool:
        """Whether all is read."""
        return not self._to_read

    def go_on(self, tokens: int) -> int:
        """Read so many more tokens, or a little more: of all rows side by side, or of as many of them as that allows.

        Returns:
            How many it were.
        """
        block = self._to_read.pop()
        if not self._keep:  # rows that have ended need not be carried on
            block = self._without_ended(block)
        if len(block.rows) > tokens:
            self._to_read.append(block.cut(slice(tokens, None)))
            block = block.cut(slice(tokens))
        lengths = self._lengths[block.rows]
        width = int(lengths.max())
        if block.at >= width:
            self._read.append(block)
            return 0
        alive = int(np.count_nonzero(lengths > block.at))
        end = min(block.at + max(tokens // alive, 1), width)
        left = np.clip(lengths - block.at, 0, end - block.at)
        state = self._advance(block, end, left, last=end == width)
        block = _Block(block.rows, state, end)
        (self._read if end == width else self._to_read).append(block)
        return int(left.sum())

    def answers(self) -> list[Any]:
        """What each request wanted: log-probabilities [R_i, T_i], a state of R_i rows, or both."""
        counts = [rows for rows, _ in self._shapes]
        if self._scores is None:
            return list(split(self._state(), counts))
        ends = np.cumsum(counts)
        scores = [
            _of_width(self._scores[end - rows : end], width)
            for (rows, width), end in zip(self._shapes, ends, strict=True)
        ]
        if not self._keep:
            return scores
        return [ReadScores(*pair) for pair in zip(scores, split(self._state(), counts), strict=True)]

    def _advance(self, block: "_Block", end: int, left: TokenIds, *, last: bool) -> Any:
        """Read a block up to a column, so many tokens of each row [R]; the state after them, if that is needed."""
        part = self._tokens[block.rows, block.at : end]
        if self._scorer is None or self._scores is None:
            return consume(self._model, block.state, part, left)
        if last and not self._keep:
            state, scores = None, self._scorer(self._model, block.state, part, left)
        elif self._scorer is score_sequences:
            scores, state = read_sequences(self._model, block.state, part, left)
        else:
            scores = self._scorer(self._model, block.state, part, left)
            state = consume(self._model, block.state, part, left)
        self._scores[block.rows, block.at : end] = scores
        return state

    def _without_ended(self, block: "_Block") -> "_Block":
        going_on = self._lengths[block.rows] > block.at
        if 2 * np.count_nonzero(going_on) <= len(going_on):
            return block.cut(np.flatnonzero(going_on))
        return block

    def _state(self) -> Any:
        """The state after everything, rows in the order they came in."""
        if len(self._read) == 1:
            return self._read[0].state
        whole = self._read[0].state.concatenate([block.state for block in self._read[1:]])
        return whole.select(np.argsort(np.concatenate([block.rows for block in self._read])))


class _Block(NamedTuple):
    """Rows that are read side by side.

    Attributes:
        rows: their numbers [N].
        state: after the columns before `at`.
        at: the next column.
    """

    rows: TokenIds
    state: Any
    at: int

    def cut(self, some: "slice | TokenIds") -> "_Block":
        """Some of the rows."""
        return _Block(self.rows[some], self.state.select(np.arange(len(self.rows))[some]), self.at)


def _stacked(tokens: Sequence[TokenIds], width: int) -> TokenIds:
    rows = sum(len(part) for part in tokens)
    whole = np.full((rows, width), EOS, dtype=np.int64)
    row = 0
    for part in tokens:
        some = min(part.shape[1], width)
        whole[row : row + len(part), :some] = part[:, :some]
        row += len(part)
    return whole


def _of_width(scores: FloatArray, width: int) -> FloatArray:
    """Scores [R, T] with columns of zeros added, or columns past all lengths left out."""
    if scores.shape[1] >= width:
        return scores[:, :width]
    return np.pad(scores, ((0, 0), (0, width - scores.shape[1])))
