"""Scoring some of the tokens that may come next, each after one of several texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from models.scoring import score_choices as scored
from service.engine.calls import CallGenerator
from service.engine.model_call import ModelCall
from service.engine.pools import CallBatch, SliceResult
from service.engine.rows import StateView, gather_states, view
from service.engine.shares import split_budget
from service.engine.soundness import check_no_nan


@dataclass(frozen=True, slots=True, eq=False)
class ScoreChoices(ModelCall):
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

    @property
    def urgent(self) -> bool:
        """Never: there are many, of whole lists."""
        return False

    @staticmethod
    def batch() -> "ChoiceBatch":
        """Rows whose choices are scored together."""
        return ChoiceBatch()


class ChoiceBatch(CallBatch[ScoreChoices, "_ChoiceProgress"]):
    """Choices after the rows of several requests, a bounded number of rows at a time."""

    def _start(self, call: ScoreChoices) -> "_ChoiceProgress":
        return _ChoiceProgress(call)

    def _run(self, under_way: Mapping[ScoreChoices, "_ChoiceProgress"], count: int) -> SliceResult:
        calls = list(under_way.values())
        left = [one.left for one in calls]
        shares = [
            (one, share) for one, share in zip(calls, split_budget(left, left, count), strict=True) if share
        ]
        firsts = np.cumsum([0, *(share for _, share in shares)])
        if shares:
            parts = [one.next_choices(share) for one, share in shares]
            rows = np.concatenate([rows + first for (_, rows, _), first in zip(parts, firsts, strict=False)])
            state = gather_states([state for state, _, _ in parts])
            model = next(iter(under_way)).model
            told = check_no_nan(
                scored(model, state, rows, np.concatenate([tokens for _, _, tokens in parts]))
            )
            for (one, share), (_, _, tokens) in zip(shares, parts, strict=True):
                one.record(share, told[: len(tokens)])
                told = told[len(tokens) :]
        done = [(call, one.scores) for call, one in under_way.items() if not one.left]
        return SliceResult(int(firsts[-1]), int(firsts[-1]), done)


class _ChoiceProgress:
    """The choices of one call, those of its first rows scored.

    Attributes:
        scores: log-probabilities [C], as far as they are known.
        left: rows whose choices are not scored yet.
    """

    def __init__(self, call: ScoreChoices) -> None:
        self._call = call
        self._state = call.state if isinstance(call.state, StateView) else view(call.state)
        self.scores = np.empty(len(call.tokens), dtype=np.float32)
        self.left = len(call.state)

    def next_choices(self, count: int) -> tuple[StateView, TokenIds, TokenIds]:
        """The state of the next so many rows, and for each of their choices its row among them and its token."""
        at = len(self._state) - self.left
        cut = self._choices(count)
        return (
            self._state.select(np.arange(at, at + count)),
            self._call.rows[cut] - at,
            self._call.tokens[cut],
        )

    def record(self, count: int, scores: FloatArray) -> None:
        """The choices of the next so many rows were scored."""
        self.scores[self._choices(count)] = scores
        self.left -= count

    def _choices(self, count: int) -> slice:
        at = len(self._state) - self.left
        return slice(*np.searchsorted(self._call.rows, [at, at + count]))


def score_choices(
    model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds
) -> CallGenerator[FloatArray]:
    """Natural-log probabilities [C] of tokens [C], each as the next of one of R rows.

    Args:
        model: any.
        state: R rows.
        rows: of each token, never falling [C].
        tokens: ids [C].
    """
    return cast("FloatArray", (yield ScoreChoices(model, state, np.asarray(rows), np.asarray(tokens))))
