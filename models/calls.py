"""Calls of a computation to a language model, and the generators that make them.

A computation is a generator function: it evaluates `log_probs = yield from next_log_probs(model,
state)` and is resumed with the answer, or yields None to let others run. `run_calls` answers the
calls one by one; the service's engine answers them in batches with those of other requests.
"""

from collections.abc import Generator, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.language_model import (
    SCORES,
    STATE,
    LanguageModel,
    ReadResult,
    TopTokens,
    Want,
    read_sequences,
)
from models.language_model import score_choices as _score_choices

A = TypeVar("A")
CallGenerator: TypeAlias = Generator[Any, Any, A]
"""Part of a computation: yields model calls and returns an answer of type A."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall:
    """A computation of a model on R rows.

    Attributes:
        model: any language model.
        state: R rows.
    """

    model: LanguageModel[Any]
    state: Any

    @property
    def kind(self) -> Hashable:
        """Key of calls that can be computed together."""
        return type(self), id(self.model)

    @property
    def size(self) -> int:
        """Number of tokens to read, or of distributions to compute."""
        return len(self.state)


@dataclass(frozen=True, slots=True, eq=False)
class Step(ModelCall):
    """Read one token per row [R] and predict the next."""

    tokens: TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Predict(ModelCall):
    """Predict the next token of each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Rank(ModelCall):
    """Predict the most probable next tokens, with a model that need not compute the whole distribution."""

    count: int

    @property
    def kind(self) -> Hashable:
        """Key of calls for equally many tokens."""
        return type(self), id(self.model), self.count


@dataclass(frozen=True, slots=True, eq=False)
class Read(ModelCall):
    """Read tokens [R, T] with row lengths [R] for log-probabilities, the state after them, or both.

    Attributes:
        tokens: ids [R, T].
        lengths: of the rows [R].
        want: log-probabilities, the state, or both.
    """

    tokens: TokenIds
    lengths: TokenIds
    want: Want

    @property
    def kind(self) -> Hashable:
        """Key of calls that want the same results."""
        return type(self), id(self.model), self.want

    @property
    def size(self) -> int:
        """Number of tokens without padding."""
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRagged(ModelCall):
    """Score tokens of concatenated sequences; the caller bounds their number.

    Attributes:
        tokens: ids of R sequences, one after the other [N].
        offsets: start of each sequence, and N at the end [R + 1].
    """

    tokens: TokenIds
    offsets: TokenIds

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreChoices(ModelCall):
    """Score candidate next tokens of rows.

    Attributes:
        rows: row of each candidate, in ascending order [C].
        tokens: ids of the candidates [C].
    """

    rows: TokenIds
    tokens: TokenIds


def step(model: LanguageModel[Any], state: Any, tokens: TokenIds) -> CallGenerator[tuple[Any, FloatArray]]:
    """Read one token per row, then predict the next.

    Args:
        model: any language model.
        state: R rows; it is not changed.
        tokens: ids [R].

    Returns:
        The state after the tokens and natural-log probabilities [R, V], read-only.
    """
    return cast("tuple[Any, FloatArray]", (yield Step(model, state, np.asarray(tokens))))


def next_log_probs(model: LanguageModel[Any], state: Any) -> CallGenerator[FloatArray]:
    """Predict the next token of each row: natural-log probabilities [R, V], read-only."""
    return cast("FloatArray", (yield Predict(model, state)))


def top_k(model: LanguageModel[Any], state: Any, count: int) -> CallGenerator[TopTokens]:
    """Return the most probable next tokens of each row [R, count]; the model must be a `TopKPredictor`."""
    return cast("TopTokens", (yield Rank(model, state, count)))


def consume(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> CallGenerator[Any]:
    """Read tokens [R, T], lengths[r] of them in row r, and return the state after them."""
    return (yield Read(model, state, np.asarray(tokens), np.asarray(lengths), STATE))


def advance(model: LanguageModel[Any], state: Any, tokens: TokenIds) -> CallGenerator[Any]:
    """Read one token per row [R] and return the state after it."""
    return (yield Read(model, state, tokens[:, None], np.ones(len(tokens), dtype=np.int64), STATE))


def score(
    model: LanguageModel[Any],
    state: Any,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    normalised: bool = True,
) -> CallGenerator[FloatArray]:
    """Score tokens [R, T] with row lengths [R]: natural-log probabilities or logits [R, T], 0 past a row's length."""
    want = SCORES._replace(normalised=normalised)
    return cast("FloatArray", (yield Read(model, state, np.asarray(tokens), np.asarray(lengths), want)))


def read(
    model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds
) -> CallGenerator[ReadResult]:
    """Score tokens as `score` and return the state as `consume`, in one pass if the model supports it."""
    want = Want(scores=True, state=True)
    return cast("ReadResult", (yield Read(model, state, np.asarray(tokens), np.asarray(lengths), want)))


def score_ragged(
    model: LanguageModel[Any], state: Any, tokens: TokenIds, offsets: TokenIds
) -> CallGenerator[FloatArray]:
    """Score R concatenated sequences: natural-log probabilities [N].

    Args:
        model: a `RaggedScorer`.
        state: R rows.
        tokens: ids [N].
        offsets: start of each sequence, and N at the end [R + 1].
    """
    return cast("FloatArray", (yield ScoreRagged(model, state, np.asarray(tokens), np.asarray(offsets))))


def score_choices(
    model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds
) -> CallGenerator[FloatArray]:
    """Score tokens [C], each as the next of one of R rows: natural-log probabilities [C].

    Args:
        model: any language model.
        state: R rows.
        rows: row of each token, in ascending order [C].
        tokens: ids [C].
    """
    return cast("FloatArray", (yield ScoreChoices(model, state, np.asarray(rows), np.asarray(tokens))))


def run_call(call: ModelCall) -> Any:
    """Compute the answer to one call without an engine: to step, to predict, to read, or to score choices.

    Raises:
        TypeError: the call is of another kind.
    """
    if isinstance(call, Predict):
        return to_numpy(call.model.next_log_probs(call.state))
    if isinstance(call, Step):
        state = call.model.advance(call.state, call.tokens)
        return state, to_numpy(call.model.next_log_probs(state))
    if isinstance(call, ScoreChoices):
        return _score_choices(call.model, call.state, call.rows, call.tokens)
    if not isinstance(call, Read):
        raise TypeError(f"{type(call).__name__} is no call of a computation without an engine")
    if call.want == STATE and call.tokens.shape[1] == 1 and call.lengths.all():
        return call.model.advance(call.state, call.tokens[:, 0])  # spares the preparations for sequences
    result = read_sequences(call.model, call.state, call.tokens, call.lengths, call.want)
    if call.want.scores and call.want.state:
        return result
    return result.log_probs if call.want.scores else result.state


def run_calls(work: CallGenerator[A]) -> A:
    """Run a computation, answering its calls one by one."""
    answer: Any = None
    while True:
        try:
            call = work.send(answer)
        except StopIteration as stopped:
            result: A = stopped.value
            return result
        answer = None if call is None else run_call(call)
