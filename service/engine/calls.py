"""What a use case asks of a model, as values: so that the engine can do those of several requests at once.

A use case says `state, log_probs = yield from step(model, state, tokens)` and is resumed with
the answer. Whether it was computed alone or with those of others it cannot tell.
"""

from abc import abstractmethod
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar, cast

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.protocol import LanguageModel, ReadScores, TopKPredictor, TopTokens
from models.scoring import score_sequences
from service.engine.model_call import ModelCall
from service.engine.pools import CallBatch, SliceResult
from service.engine.reading import Scorer
from service.engine.reads import Read
from service.engine.rows import gather_states, split_rows
from service.engine.soundness import check_no_nan

A = TypeVar("A")
CallGenerator: TypeAlias = Generator[Any, Any, A]
"""Part of a use case that asks a model and comes back with an answer of type A."""

MAX_ENTRIES = 1 << 21
"""Numbers of the distributions [B, V] that are computed at once (8 MiB)."""


@dataclass(frozen=True, slots=True, eq=False)
class ImmediateCall(ModelCall):
    """A computation that is done at once."""

    @property
    def size(self) -> int:
        """A row is one token or distribution."""
        return len(self.state)

    @property
    def urgent(self) -> bool:
        """Always."""
        return True

    @classmethod
    @abstractmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """The answers to calls of one kind, each what it would be alone."""

    @staticmethod
    def batch() -> "ImmediateBatch":
        """Calls that are answered together."""
        return ImmediateBatch()


class ImmediateBatch(CallBatch[ImmediateCall, ImmediateCall]):
    """Calls that are answered together, as many as memory allows."""

    def _start(self, call: ImmediateCall) -> ImmediateCall:
        return call

    def _run(self, under_way: Mapping[ImmediateCall, ImmediateCall], count: int) -> SliceResult:
        calls: list[ImmediateCall] = []
        rows = 0
        for call in under_way:
            most = min(count, MAX_ENTRIES // len(call.model.vocabulary))
            if calls and rows + len(call.state) > most:
                break
            calls.append(call)
            rows += len(call.state)
        return SliceResult(rows, rows, list(zip(calls, type(calls[0]).answers(calls), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Step(ImmediateCall):
    """Read one token a row [R] and tell what may come next."""

    tokens: TokenIds

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """A state and log-probabilities [R, V] each."""
        model = calls[0].model
        after = model.advance(
            gather_states([call.state for call in calls]), np.concatenate([call.tokens for call in calls])
        )
        log_probs = check_no_nan(to_numpy(model.next_log_probs(after)))
        counts = [len(call.tokens) for call in calls]
        return list(zip(split_rows(after, counts), _split_array(log_probs, counts), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Predict(ImmediateCall):
    """Tell what may come next."""

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Log-probabilities [R, V] each."""
        states = [call.state for call in calls]
        log_probs = check_no_nan(to_numpy(calls[0].model.next_log_probs(gather_states(states))))
        return _split_array(log_probs, [len(state) for state in states])


@dataclass(frozen=True, slots=True, eq=False)
class Rank(ImmediateCall):
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
        ranked = cast("TopKPredictor[Any]", calls[0].model).top_k(gather_states(states), calls[0].count)
        counts = [len(state) for state in states]
        pairs = zip(
            _split_array(ranked.ids, counts),
            _split_array(check_no_nan(ranked.log_probs), counts),
            strict=True,
        )
        return [TopTokens(ids, log_probs) for ids, log_probs in pairs]


def step(model: LanguageModel[Any], state: Any, tokens: TokenIds) -> CallGenerator[tuple[Any, FloatArray]]:
    """Read one token a row, then tell what may come next.

    Args:
        model: any.
        state: R rows; it is not changed.
        tokens: ids [R].

    Returns:
        The state after them and natural-log probabilities [R, V], not to be written.
    """
    return cast("tuple[Any, FloatArray]", (yield Step(model, state, np.asarray(tokens))))


def next_log_probs(model: LanguageModel[Any], state: Any) -> CallGenerator[FloatArray]:
    """Natural-log probabilities [R, V] of what follows each row, not to be written."""
    return cast("FloatArray", (yield Predict(model, state)))


def top_k(model: LanguageModel[Any], state: Any, count: int) -> CallGenerator[TopTokens]:
    """The most probable tokens after each row [R, count]; of a model that is a `TopKPredictor`."""
    return cast("TopTokens", (yield Rank(model, state, count)))


def consume(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> CallGenerator[Any]:
    """The state after tokens [R, T], of which row r has lengths[r]."""
    return (yield Read(model, state, np.asarray(tokens), np.asarray(lengths)))


def score(
    model: LanguageModel[Any],
    state: Any,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    scorer: Scorer = score_sequences,
) -> CallGenerator[FloatArray]:
    """Natural-log probabilities [R, T] of tokens [R, T], of which row r has lengths[r]; 0 past a row's length."""
    return cast("FloatArray", (yield Read(model, state, np.asarray(tokens), np.asarray(lengths), scorer)))


def read(
    model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds
) -> CallGenerator[ReadScores]:
    """What `score` and `consume` answer, in one pass if the model can."""
    call = Read(model, state, np.asarray(tokens), np.asarray(lengths), score_sequences, keep=True)
    return cast("ReadScores", (yield call))


def run_single(call: ModelCall) -> Any:
    """The answer to one call."""
    if isinstance(call, ImmediateCall):
        return type(call).answers([call])[0]
    pool = call.batch()
    pool.add(call)
    while True:
        if answers := pool.run_slice(call.size).answers:
            return answers[0][1]


def _split_array(values: Any, counts: Sequence[int]) -> list[Any]:
    """An array [ΣR, …] in runs of so many rows."""
    if len(counts) == 1:
        return [values]
    ends = np.cumsum(counts)
    return [values[end - count : end] for count, end in zip(counts, ends, strict=True)]
