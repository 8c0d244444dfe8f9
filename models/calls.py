"""Calls to a language model, and the generators that yield them.

A computation is a generator function: it evaluates `log_probs = yield from Predict(model, state)`
and resumes with the result, or yields None to give way to other computations. `run_calls`
answers calls one at a time; the service's engine batches them with those of other requests.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias

from typing_extensions import TypeVar, override

from models.arrays import FloatArray, TokenIds, to_numpy
from models.language_model import (
    LanguageModel,
    ReadResult,
    TopTokens,
    Want,
    read_sequences,
    score_choices,
)

A = TypeVar("A", default=Any)
R = TypeVar("R")
T = TypeVar("T")
CallGenerator: TypeAlias = Generator[Any, Any, A]
"""Part of a computation: yields model calls and returns a result of type A."""

Steps: TypeAlias = Generator[None, None, T]
"""Computation without model calls, which yields after a bounded amount of work, and returns its result."""

_CHARACTERS_PER_STEP = 1 << 13
_CHARACTERS_PER_ITEM = 64
"""Fixed cost of an item, even an empty one."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall(Generic[A]):
    """Model computation on R rows; `yield from` evaluates to its result, of type A.

    Attributes:
        model: any language model.
        state: R rows; unchanged.
    """

    model: LanguageModel[Any]
    state: Any

    def __iter__(self) -> CallGenerator[A]:
        answer: A = yield self
        return answer

    @property
    def kind(self) -> Hashable:
        """Key that is equal for calls that can be computed in one batch."""
        return type(self), id(self.model)

    @property
    def size(self) -> int:
        """Number of tokens to read or distributions to compute."""
        return len(self.state)


@dataclass(frozen=True, slots=True, eq=False)
class Step(ModelCall[tuple[Any, FloatArray]]):
    """Read a token per row [R] and predict the next: the new state, and the result of `Predict`."""

    tokens: TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Predict(ModelCall[FloatArray]):
    """Predict the next token of each row: natural-log probabilities [R, V], read-only."""


@dataclass(frozen=True, slots=True, eq=False)
class Rank(ModelCall[TopTokens]):
    """Predict each row's `count` most probable next tokens [R, count], with a `TopKPredictor`."""

    count: int

    @property
    @override
    def kind(self) -> Hashable:
        return type(self), id(self.model), self.count


@dataclass(frozen=True, slots=True, eq=False)
class Read(ModelCall[ReadResult]):
    """Read tokens, in one pass if possible, for log-probabilities, the state after them, or both.

    Attributes:
        tokens: ids [R, T].
        lengths: number of tokens of each row [R].
        want: log-probabilities, the state, or both.
    """

    tokens: TokenIds
    lengths: TokenIds
    want: Want

    @property
    @override
    def kind(self) -> Hashable:
        return type(self), id(self.model), self.want

    @property
    @override
    def size(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRagged(ModelCall[FloatArray]):
    """Score concatenated sequences with a `RaggedScorer`: natural-log probabilities [N].

    The caller bounds N.

    Attributes:
        tokens: concatenated ids of R sequences [N].
        offsets: start of each sequence, and N at the end [R + 1].
    """

    tokens: TokenIds
    offsets: TokenIds

    @property
    @override
    def size(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreChoices(ModelCall[FloatArray]):
    """Score candidates for the next token of R rows: natural-log probabilities [C].

    Attributes:
        rows: row of each token, in ascending order [C].
        tokens: ids [C].
    """

    rows: TokenIds
    tokens: TokenIds


def run_call(call: ModelCall) -> Any:
    """Compute one `Step`, `Predict`, `Read` or `ScoreChoices` call without an engine.

    Raises:
        TypeError: the call is of another kind.
    """
    if isinstance(call, Predict):
        return to_numpy(call.model.next_log_probs(call.state))
    if isinstance(call, Step):
        state = call.model.advance(call.state, call.tokens)
        return state, to_numpy(call.model.next_log_probs(state))
    if isinstance(call, ScoreChoices):
        return score_choices(call.model, call.state, call.rows, call.tokens)
    if not isinstance(call, Read):
        raise TypeError(f"{type(call).__name__} cannot be computed without an engine")
    return read_sequences(call.model, call.state, call.tokens, call.lengths, call.want)


class WorkOutput(NamedTuple):
    """Output of a computation: an event or, at the end, the result.

    Attributes:
        value: the event or the result.
        last: True if `value` is the result.
    """

    value: Any
    last: bool


def iter_outputs(
    work: CallGenerator[Any], answer_call: Callable[[ModelCall], Any] = run_call
) -> Iterator[WorkOutput]:
    """Run a computation and answer its calls singly; yield each event, then the result."""
    answer: Any = None
    while True:
        try:
            output = work.send(answer)
        except StopIteration as stopped:
            yield WorkOutput(stopped.value, last=True)
            return
        answer = answer_call(output) if isinstance(output, ModelCall) else None
        if output is not None and not isinstance(output, ModelCall):
            yield WorkOutput(output, last=False)


def run_calls(work: CallGenerator[A], answer_call: Callable[[ModelCall], Any] = run_call) -> A:
    """Run a computation, answering its calls one at a time, and discard its events."""
    answer: Any = None
    while True:
        try:
            output = work.send(answer)
        except StopIteration as stopped:
            result: A = stopped.value
            return result
        answer = answer_call(output) if isinstance(output, ModelCall) else None


def map_in_steps(
    items: Iterable[T], prepare: Callable[[T], R], *, size: Callable[[T], int]
) -> Steps[list[R]]:
    """Map a function over items, with bounded text per step.

    Args:
        items: such as texts.
        prepare: the function, such as a tokenizer.
        size: number of characters, ids or words of an item.
    """
    prepared: list[R] = []
    read = 0
    for item in items:
        if read > _CHARACTERS_PER_STEP:
            read = 0
            yield
        read += size(item) + _CHARACTERS_PER_ITEM
        prepared.append(prepare(item))
    return prepared
