"""What a use case asks of a model, as values: so that the engine can do those of several requests at once.

A use case says `state, log_probs = yield from step(model, state, tokens)` and is resumed with
the answer. Whether it was computed alone or with those of others it cannot tell.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.protocol import LanguageModel, ReadScores, TopKPredictor, TopTokens
from models.scoring import score_sequences
from service.engine.reading import Reading, Scorer
from service.engine.rows import gathered, split

A = TypeVar("A")
Asking: TypeAlias = Generator[Any, Any, A]
"""Part of a use case that asks a model and comes back with an answer of type A."""


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
        """Calls of the same kind can be done together."""
        return type(self), id(self.model)

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tokens are read, or distributions computed."""

    @property
    def gains_by_company(self) -> bool:
        """Whether doing several together costs less: not for tables, where it only costs copies."""
        return self.model.family != "ngram"


@dataclass(frozen=True, slots=True, eq=False)
class QuickCall(ModelCall):
    """A computation that is done at once."""

    @property
    def size(self) -> int:
        """A row is one token or distribution."""
        return len(self.state)

    @classmethod
    @abstractmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """The answers to calls of one kind, each what it would be alone."""


class Progress(Protocol):
    """Calls of one kind under way."""

    @property
    def done(self) -> bool:
        """Whether all is done."""
        ...

    def go_on(self, count: int) -> int:
        """Do about so many tokens or rows more; how many it were."""
        ...

    def answers(self) -> list[Any]:
        """One a call, once all is done."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SlicedCall(ModelCall):
    """A computation that can be done in slices."""

    @staticmethod
    @abstractmethod
    def begun(calls: Sequence[Any]) -> Progress:
        """Calls of one kind under way, not yet begun."""


@dataclass(frozen=True, slots=True, eq=False)
class Step(QuickCall):
    """Read one token a row [R] and tell what may come next."""

    tokens: TokenIds

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """A state and log-probabilities [R, V] each."""
        model = calls[0].model
        after = model.advance(
            gathered([call.state for call in calls]), np.concatenate([call.tokens for call in calls])
        )
        log_probs = to_numpy(model.next_log_probs(after))
        counts = [len(call.tokens) for call in calls]
        return list(zip(split(after, counts), _cut(log_probs, counts), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Predict(QuickCall):
    """Tell what may come next."""

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Log-probabilities [R, V] each."""
        states = [call.state for call in calls]
        log_probs = to_numpy(calls[0].model.next_log_probs(gathered(states)))
        return _cut(log_probs, [len(state) for state in states])


@dataclass(frozen=True, slots=True, eq=False)
class Rank(QuickCall):
    """Tell the most probable next tokens, of a model that need not compute them all."""

    count: int

    @property
    def kind(self) -> Hashable:
        """Together with calls for as many."""
        return type(self), id(self.model), self.count

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """The most probable tokens of R rows each."""
        states = [call.state for call in calls]
        ranked = cast("TopKPredictor[Any]", calls[0].model).top_k(gathered(states), calls[0].count)
        counts = [len(state) for state in states]
        pairs = zip(_cut(ranked.ids, counts), _cut(ranked.log_probs, counts), strict=True)
        return [TopTokens(ids, log_probs) for ids, log_probs in pairs]


@dataclass(frozen=True, slots=True, eq=False)
class Read(SlicedCall):
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

    @staticmethod
    def begun(calls: Sequence["Read"]) -> Progress:
        """Calls of one kind under way, not yet begun."""
        states = [call.state for call in calls]
        return Reading(
            calls[0].model,
            gathered(states),
            [call.tokens for call in calls],
            np.concatenate([call.lengths for call in calls]),
            calls[0].scorer,
            keep=calls[0].keep,
        )


def step(model: LanguageModel[Any], state: Any, tokens: TokenIds) -> Asking[tuple[Any, FloatArray]]:
    """Read one token a row, then tell what may come next.

    Args:
        model: any.
        state: R rows; it is not changed.
        tokens: ids [R].

    Returns:
        The state after them and natural-log probabilities [R, V], not to be written.
    """
    return cast("tuple[Any, FloatArray]", (yield Step(model, state, np.asarray(tokens))))


def next_log_probs(model: LanguageModel[Any], state: Any) -> Asking[FloatArray]:
    """Natural-log probabilities [R, V] of what follows each row, not to be written."""
    return cast("FloatArray", (yield Predict(model, state)))


def top_k(model: LanguageModel[Any], state: Any, count: int) -> Asking[TopTokens]:
    """The most probable tokens after each row [R, count]; of a model that is a `TopKPredictor`."""
    return cast("TopTokens", (yield Rank(model, state, count)))


def consume(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> Asking[Any]:
    """The state after tokens [R, T], of which row r has lengths[r]."""
    return (yield Read(model, state, np.asarray(tokens), np.asarray(lengths)))


def score(
    model: LanguageModel[Any],
    state: Any,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    scorer: Scorer = score_sequences,
) -> Asking[FloatArray]:
    """Natural-log probabilities [R, T] of tokens [R, T], of which row r has lengths[r]; 0 past a row's length."""
    return cast("FloatArray", (yield Read(model, state, np.asarray(tokens), np.asarray(lengths), scorer)))


def read(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> Asking[ReadScores]:
    """What `score` and `consume` answer, in one pass if the model can."""
    call = Read(model, state, np.asarray(tokens), np.asarray(lengths), score_sequences, keep=True)
    return cast("ReadScores", (yield call))


def alone(call: ModelCall) -> Any:
    """The answer to one call."""
    if isinstance(call, QuickCall):
        return type(call).answers([call])[0]
    if isinstance(call, SlicedCall):
        progress = call.begun([call])
        while not progress.done:
            progress.go_on(call.size)
        return progress.answers()[0]
    raise TypeError(f"{type(call).__name__} is no call that a model can answer")


def _cut(values: Any, counts: Sequence[int]) -> list[Any]:
    """An array [ΣR, …] in runs of so many rows."""
    if len(counts) == 1:
        return [values]
    ends = np.cumsum(counts)
    return [values[end - count : end] for count, end in zip(counts, ends, strict=True)]
