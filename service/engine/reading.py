"""Sequences of several requests read side by side, a bounded number of tokens at a time."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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
        self._state = state
        self._shapes = [part.shape for part in tokens]
        self._lengths = lengths
        self._width = int(lengths.max(initial=0))
        self._tokens = tokens[0] if len(tokens) == 1 else _stacked(tokens, self._width)
        self._scorer = scorer
        self._keep = keep or scorer is None
        self._scores = np.zeros(self._tokens.shape, dtype=np.float32) if scorer is not None else None
        self._at = 0
        self._rows = np.arange(len(lengths))

    @property
    def done(self) -> bool:
        """Whether all is read."""
        return self._at >= self._width

    def go_on(self, tokens: int) -> int:
        """Read so many more tokens, or a little more.

        Returns:
            How many it were.
        """
        first = self._at
        if not self._keep:  # rows that have ended need not be carried on
            self._drop_ended(first)
        lengths = self._lengths[self._rows]
        alive = max(int(np.count_nonzero(lengths > first)), 1)
        columns = max(tokens // alive, 1)
        end = min(first + columns, self._width)
        part = self._tokens[self._rows, first:end]
        left = np.clip(lengths - first, 0, end - first)
        self._at = end
        if self._scorer is None or self._scores is None:
            self._state = consume(self._model, self._state, part, left)
        elif end == self._width and not self._keep:
            self._scores[self._rows, first:end] = self._scorer(self._model, self._state, part, left)
        elif self._scorer is score_sequences:
            scores, self._state = read_sequences(self._model, self._state, part, left)
            self._scores[self._rows, first:end] = scores
        else:
            self._scores[self._rows, first:end] = self._scorer(self._model, self._state, part, left)
            self._state = consume(self._model, self._state, part, left)
        return int(left.sum())

    def answers(self) -> list[Any]:
        """What each request wanted: log-probabilities [R_i, T_i], a state of R_i rows, or both."""
        counts = [rows for rows, _ in self._shapes]
        if self._scores is None:
            return list(split(self._state, counts))
        ends = np.cumsum(counts)
        scores = [
            _of_width(self._scores[end - rows : end], width)
            for (rows, width), end in zip(self._shapes, ends, strict=True)
        ]
        if not self._keep:
            return scores
        return [ReadScores(*pair) for pair in zip(scores, split(self._state, counts), strict=True)]

    def _drop_ended(self, first: int) -> None:
        going_on = self._lengths[self._rows] > first
        if 2 * np.count_nonzero(going_on) <= len(going_on):
            self._rows = self._rows[going_on]
            self._state = self._state.select(np.flatnonzero(going_on))


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
