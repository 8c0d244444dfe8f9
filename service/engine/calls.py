"""What a use case asks of a model, as values: so that the engine can do those of several requests at once.

A use case says `state, log_probs = yield from step(model, state, tokens)` and is resumed with
the answer. Whether it was computed alone or with those of others it cannot tell.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar, cast

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.protocol import LanguageModel
from models.scoring import consume as consume_now
from models.scoring import score_sequences

A = TypeVar("A")
Asking: TypeAlias = Generator[Any, Any, A]
"""Part of a use case that asks a model and comes back with an answer of type A."""

Scorer: TypeAlias = Callable[[LanguageModel[Any], Any, TokenIds, TokenIds], FloatArray]
"""Log-probabilities [R, T] of tokens [R, T] with lengths [R] after a state, as `score_sequences`."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall(ABC):
    """A computation on R rows.

    Attributes:
        model: any.
        state: R rows.
    """

    model: LanguageModel[Any]
    state: Any

    @property
    def kind(self) -> Hashable:
        """Calls of the same kind can be done at once."""
        return type(self), id(self.model)

    @classmethod
    @abstractmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """The answers to calls of one kind, each what it would be alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Step(ModelCall):
    """Read one token a row [R] and tell what may come next."""

    tokens: TokenIds

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """A state and log-probabilities [R, V] each."""
        after = [call.model.advance(call.state, call.tokens) for call in calls]
        return [(s, to_numpy(call.model.next_log_probs(s))) for call, s in zip(calls, after, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Predict(ModelCall):
    """Tell what may come next."""

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Log-probabilities [R, V] each."""
        return [to_numpy(call.model.next_log_probs(call.state)) for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class Consume(ModelCall):
    """Read tokens [R, T], of which row r has lengths[r]."""

    tokens: TokenIds
    lengths: TokenIds

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """A state each."""
        return [consume_now(call.model, call.state, call.tokens, call.lengths) for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class Score(ModelCall):
    """Tell how probable tokens [R, T] are, of which row r has lengths[r]."""

    tokens: TokenIds
    lengths: TokenIds
    scorer: Scorer

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Log-probabilities [R, T] each."""
        return [call.scorer(call.model, call.state, call.tokens, call.lengths) for call in calls]


def step(model: LanguageModel[Any], state: Any, tokens: TokenIds) -> "Asking[tuple[Any, FloatArray]]":
    """Read one token a row, then tell what may come next.

    Args:
        model: any.
        state: R rows; it is not changed.
        tokens: ids [R].

    Returns:
        The state after them and natural-log probabilities [R, V], not to be written.
    """
    return cast("tuple[Any, FloatArray]", (yield Step(model, state, tokens)))


def next_log_probs(model: LanguageModel[Any], state: Any) -> "Asking[FloatArray]":
    """Natural-log probabilities [R, V] of what follows each row, not to be written."""
    return cast("FloatArray", (yield Predict(model, state)))


def consume(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> "Asking[Any]":
    """The state after tokens [R, T], of which row r has lengths[r]."""
    return (yield Consume(model, state, np.asarray(tokens), np.asarray(lengths)))


def score(
    model: LanguageModel[Any],
    state: Any,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    scorer: Scorer = score_sequences,
) -> "Asking[FloatArray]":
    """Natural-log probabilities [R, T] of tokens [R, T], of which row r has lengths[r]; 0 past a row's length."""
    return cast("FloatArray", (yield Score(model, state, tokens, lengths, scorer)))


def alone(call: ModelCall) -> Any:
    """The answer to one call."""
    return type(call).answers([call])[0]
