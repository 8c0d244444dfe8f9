"""Scoring some of the tokens that may come next, each after one of several texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from models.scoring import score_choices as scored
from service.engine.calls import Asking, Progress, SlicedCall
from service.engine.rows import gathered


@dataclass(frozen=True, slots=True, eq=False)
class ScoreChoices(SlicedCall):
    """Tell how probable tokens are as the next of rows.

    Attributes:
        rows: of each token, never falling [C].
        tokens: ids [C].
    """

    rows: TokenIds
    tokens: TokenIds

    @property
    def size(self) -> int:
        """A row is one distribution."""
        return len(self.state)

    @staticmethod
    def begun(calls: Sequence["ScoreChoices"]) -> Progress:
        """Calls of one kind under way, not yet begun."""
        return _Choosing(calls)


class _Choosing:
    """Choices after the rows of several requests, a bounded number of rows at a time."""

    def __init__(self, calls: Sequence[ScoreChoices]) -> None:
        firsts = np.cumsum([0, *(len(call.state) for call in calls)])
        self._ends = np.cumsum([0, *(len(call.tokens) for call in calls)])
        self._model = calls[0].model
        self._state = gathered([call.state for call in calls])
        self._rows = np.concatenate([call.rows + first for call, first in zip(calls, firsts, strict=False)])
        self._tokens = np.concatenate([call.tokens for call in calls])
        self._scores = np.empty(len(self._tokens), dtype=np.float32)
        self._at = 0

    @property
    def done(self) -> bool:
        """Whether all rows are done."""
        return self._at >= len(self._state)

    def go_on(self, count: int) -> int:
        """Do so many more rows; how many it were."""
        end = min(self._at + max(count, 1), len(self._state))
        cut = slice(*np.searchsorted(self._rows, [self._at, end]))
        if cut.start < cut.stop:
            some = self._state
            if (self._at, end) != (0, len(self._state)):
                some = self._state.select(np.arange(self._at, end))
            self._scores[cut] = scored(self._model, some, self._rows[cut] - self._at, self._tokens[cut])
        done, self._at = end - self._at, end
        return done

    def answers(self) -> list[Any]:
        """Log-probabilities [C] each."""
        return [self._scores[begin:end] for begin, end in pairwise(self._ends.tolist())]


def score_choices(
    model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds
) -> Asking[FloatArray]:
    """Natural-log probabilities [C] of tokens [C], each as the next of one of R rows.

    Args:
        model: any.
        state: R rows.
        rows: of each token, never falling [C].
        tokens: ids [C].
    """
    return cast("FloatArray", (yield ScoreChoices(model, state, np.asarray(rows), np.asarray(tokens))))
