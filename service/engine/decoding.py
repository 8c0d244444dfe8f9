"""What generating goes on from, and what comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from models.arrays import TokenIds
from models.decoding.batch import SequenceBatch
from models.protocol import TopTokens
from service.engine.rows import StateView


@dataclass(frozen=True, slots=True, eq=False)
class DecodeState:
    """Where R rows stand that generate: a value, like a model's state.

    Attributes:
        state: a model's.
        batch: what the rows ask for, and what was generated.
    """

    state: Any
    batch: SequenceBatch

    def __len__(self) -> int:
        return len(self.batch)

    def select(self, rows: TokenIds) -> "DecodeState":
        """Some of the rows, which may repeat."""
        return DecodeState(self.state.select(rows), self.batch.select(rows))

    def concatenate(self, others: Sequence["DecodeState"]) -> "DecodeState":
        """These rows, then those of each of `others`."""
        return DecodeState(
            self.state.concatenate([other.state for other in others]),
            self.batch.concatenate([other.batch for other in others]),
        )


class Generated(NamedTuple):
    """What was generated of R rows.

    Attributes:
        tokens: of each row [R]; `</s>` is the last where it came.
        log_probs: the model's own of each token [R].
        tops: the most probable tokens in the place of each [R], if asked for; else empty.
        unfinished: of the rows that have not ended, in their order; None if nothing goes on.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]
    tops: list[list[TopTokens]]
    unfinished: StateView | None
