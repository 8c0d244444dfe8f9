"""Scoring sequences that lie one after the other, of models that need no padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel, RaggedScorer
from service.engine.calls import CallGenerator, ImmediateCall
from service.engine.rows import materialize


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRagged(ImmediateCall):
    """Tell how probable tokens are; whoever asks bounds how many there are.

    Attributes:
        tokens: ids of R sequences, one after the other [N].
        offsets: where each begins, and N at the end [R + 1].
    """

    tokens: TokenIds
    offsets: TokenIds

    @property
    def size(self) -> int:
        """Tokens."""
        return len(self.tokens)

    @property
    def merges(self) -> bool:
        """Never: nothing is padded, so that company spares nothing."""
        return False

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Log-probabilities [N] each."""
        return [
            cast("RaggedScorer[Any]", call.model).score_ragged(
                materialize(call.state), call.tokens, call.offsets
            )
            for call in calls
        ]


def score_ragged(
    model: LanguageModel[Any], state: Any, tokens: TokenIds, offsets: TokenIds
) -> CallGenerator[FloatArray]:
    """Natural-log probabilities [N] of R sequences that lie one after the other; of a `RaggedScorer`.

    Args:
        model: that scores them.
        state: R rows.
        tokens: ids [N].
        offsets: where each sequence begins, and N at the end [R + 1].
    """
    return cast("FloatArray", (yield ScoreRagged(model, state, np.asarray(tokens), np.asarray(offsets))))
