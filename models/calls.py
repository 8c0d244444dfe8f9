"""Calls to a language model, the generators that yield them, and rows of model states.

A computation is a generator function: it evaluates `log_probs = yield from Predict(model, state)`
and resumes with the result, yields an event, or yields None to give way to other computations.
`run_to_completion` answers calls one at a time; the service's engine batches them with those of other
requests, which changes no answer.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Generic, NamedTuple, Self, TypeAlias, cast

import numpy as np
from typing_extensions import TypeVar, override

from models.arrays import FloatArray, TokenIds, to_numpy
from models.language_model import (
    LanguageModel,
    RaggedScorer,
    ReadResult,
    TopKPredictor,
    TopTokens,
    Want,
    read_sequences,
    score_choices,
)

A = TypeVar("A", default=Any)
E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Computation without model calls, which yields after bounded work, and returns its result."""

_CHARS_PER_STEP = 1 << 13
_CHARS_PER_ITEM = 64
"""Fixed cost of an item, even an empty one."""


class StateView:
    """Lazy selection of R rows of the joint state of batched requests; a view is usable as a state.

    No rows are copied while a batch stays the same:
    `gather_states` returns the base if all its rows are selected in order.

    Args:
        base: a state.
        rows: indices of its rows [R]; they may repeat.
    """

    __slots__ = ("base", "rows")

    def __init__(self, base: Any, rows: TokenIds) -> None:
        self.base = base
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: TokenIds | slice) -> "StateView":
        """Select rows of this view without copying them."""
        return StateView(self.base, self.rows[rows])

    def concatenate(self, states: Sequence[Any]) -> "StateView":
        """Join these rows and the rows of other states."""
        return join_states([self, *states])

    @property
    def materialized(self) -> Any:
        """State of these rows, copied unless they are all rows of the base in order."""
        if is_range(self.rows, len(self.base)):
            return self.base
        return self.base.select(self.rows)


def materialize(state: Any) -> Any:
    """Return a state that shares no memory with the rows of other requests."""
    return state.materialized if isinstance(state, StateView) else state


def join_states(states: Sequence[Any]) -> StateView:
    """Join states' rows, without copying if all are views of one base."""
    runs = [list(run) for _, run in groupby(map(view, states), key=lambda state: id(state.base))]
    parts = [StateView(run[0].base, np.concatenate([state.rows for state in run])) for run in runs]
    if len(parts) == 1:
        return parts[0]
    first, *rest = (part.materialized for part in parts)
    return view(first.concatenate(rest))


def gather_states(states: Sequence[Any]) -> Any:
    """Join the rows of several states into one state for the model."""
    if len(states) == 1:
        return materialize(states[0])
    return join_states(states).materialized


def view(state: Any) -> StateView:
    """Return a view of all rows of a state; itself if a view."""
    return state if isinstance(state, StateView) else StateView(state, np.arange(len(state)))


def split_rows(state: Any, counts: Sequence[int]) -> list[StateView]:
    """Split a state into views of `counts` consecutive rows."""
    return [StateView(state, rows) for rows in split_array(np.arange(len(state)), counts)]


def split_array(values: Any, counts: Sequence[int]) -> list[Any]:
    """Split an array [ΣR, …] into parts of `counts` rows."""
    if len(counts) == 1:
        return [values]
    return [values[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]


def is_range(rows: TokenIds, count: int) -> bool:
    """True if the rows are 0, 1, …, count − 1."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def check_no_nan(log_probs: FloatArray) -> FloatArray:
    """Return log-probabilities, rejecting NaN; −inf is allowed.

    Raises:
        FloatingPointError: a value is NaN; the engine then fails only the faulty request.
    """
    # the maximum is NaN if any value is, and much faster than isnan
    if log_probs.size and math.isnan(log_probs.max()):
        raise FloatingPointError("the model returned NaN as a log-probability")
    return log_probs


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall(ABC, Generic[A]):
    """Model computation on R rows; `yield from` evaluates to its result, of type A.

    Attributes:
        model: any language model.
        state: R rows; unchanged.
    """

    model: LanguageModel
    state: Any

    def __iter__(self) -> Generator[Self, A, A]:
        return (yield self)

    @classmethod
    @abstractmethod
    def answer_all(cls, calls: Sequence[Self]) -> list[A]:
        """Compute the answers of one or more calls of one kind.

        Raises:
            FloatingPointError: a log-probability is NaN.
        """

    @property
    def kind(self) -> Hashable:
        """Key, equal for calls that can share a batch."""
        return type(self), id(self.model)

    @property
    def size(self) -> int:
        """Number of tokens to read or distributions to compute."""
        return len(self.state)


Work: TypeAlias = Generator[ModelCall | E | None, Any, R]
"""A running computation: yields model calls, events E, and None to give way; returns a result R."""


@dataclass(frozen=True, slots=True, eq=False)
class Step(ModelCall[tuple[Any, FloatArray]]):
    """Read a token per row [R] and predict the next: the new state, and the result of `Predict`."""

    tokens: TokenIds

    @classmethod
    @override
    def answer_all(cls, calls: Sequence[Self]) -> list[tuple[Any, FloatArray]]:
        model = calls[0].model
        state = gather_states([call.state for call in calls])
        after = model.advance(state, np.concatenate([call.tokens for call in calls]))
        log_probs = check_no_nan(to_numpy(model.next_log_probs(after)))
        counts = [len(call.tokens) for call in calls]
        return list(zip(split_rows(after, counts), split_array(log_probs, counts), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Predict(ModelCall[FloatArray]):
    """Predict the next token of each row: natural-log probabilities [R, V], read-only."""

    @classmethod
    @override
    def answer_all(cls, calls: Sequence[Self]) -> list[FloatArray]:
        states = [call.state for call in calls]
        log_probs = check_no_nan(to_numpy(calls[0].model.next_log_probs(gather_states(states))))
        return split_array(log_probs, [len(state) for state in states])


@dataclass(frozen=True, slots=True, eq=False)
class Rank(ModelCall[TopTokens]):
    """Predict each row's `count` most probable next tokens [R, count], with a `TopKPredictor`."""

    count: int

    @property
    @override
    def kind(self) -> Hashable:
        return type(self), id(self.model), self.count

    @classmethod
    @override
    def answer_all(cls, calls: Sequence[Self]) -> list[TopTokens]:
        model, states = cast("TopKPredictor", calls[0].model), [call.state for call in calls]
        ranked = model.top_k(gather_states(states), calls[0].count)
        check_no_nan(ranked.log_probs)
        counts = [len(state) for state in states]
        columns = (split_array(column, counts) for column in ranked)
        return [TopTokens(ids, log_probs) for ids, log_probs in zip(*columns, strict=True)]


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

    @classmethod
    @override
    def answer_all(cls, calls: Sequence[Self]) -> list[ReadResult]:
        answers = [
            read_sequences(call.model, materialize(call.state), call.tokens, call.lengths, call.want)
            for call in calls
        ]
        for answer in answers if calls[0].want.scores else ():
            check_no_nan(answer.log_probs)
        return answers

    @property
    @override
    def size(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRagged(ModelCall[FloatArray]):
    """Score joined sequences with a `RaggedScorer`: natural-log probabilities [N].

    The caller bounds N.

    Attributes:
        tokens: joined ids of R sequences [N].
        offsets: start of each sequence, and N at the end [R + 1].
    """

    tokens: TokenIds
    offsets: TokenIds

    @property
    @override
    def size(self) -> int:
        return len(self.tokens)

    @classmethod
    @override
    def answer_all(cls, calls: Sequence[Self]) -> list[FloatArray]:
        models = [cast("RaggedScorer", call.model) for call in calls]
        return [
            model.score_ragged(materialize(call.state), call.tokens, call.offsets)
            for model, call in zip(models, calls, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreChoices(ModelCall[FloatArray]):
    """Score candidates for the next token of R rows: natural-log probabilities [C].

    Attributes:
        rows: row of each token, in ascending order [C].
        tokens: ids [C].
    """

    rows: TokenIds
    tokens: TokenIds

    @classmethod
    @override
    def answer_all(cls, calls: Sequence[Self]) -> list[FloatArray]:
        return [
            check_no_nan(score_choices(call.model, materialize(call.state), call.rows, call.tokens))
            for call in calls
        ]


def run_call(call: ModelCall[A]) -> A:
    """Compute the answer to one call alone."""
    return call.answer_all([call])[0]


class WorkOutput(NamedTuple):
    """Output of a computation: an event or, at the end, the result.

    Attributes:
        value: the event or the result.
        last: True if `value` is the result.
    """

    value: Any
    last: bool


def iter_outputs(work: Work[Any, Any]) -> Iterator[WorkOutput]:
    """Run a computation and answer its calls singly; yield each event, then the result."""
    answer: Any = None
    while True:
        try:
            output = work.send(answer)
        except StopIteration as stopped:
            yield WorkOutput(stopped.value, last=True)
            return
        answer = run_call(output) if isinstance(output, ModelCall) else None
        if output is not None and not isinstance(output, ModelCall):
            yield WorkOutput(output, last=False)


def run_to_completion(work: Work[Any, R]) -> R:
    """Run a computation, without events, answering its calls one at a time."""
    answer: Any = None
    while True:
        try:
            output = work.send(answer)
        except StopIteration as stopped:
            result: R = stopped.value
            return result
        answer = run_call(output) if isinstance(output, ModelCall) else None


def run_together(works: Sequence[Work[Any, R]]) -> list[R]:
    """Run computations side by side, without events; answer calls of one kind together."""
    results: dict[int, R] = {}
    running, answers = dict(enumerate(works)), dict[int, Any]()
    while running:
        calls: defaultdict[Hashable, dict[int, ModelCall]] = defaultdict(dict)
        for number, work in [*running.items()]:
            try:
                output = work.send(answers.pop(number, None))
                while not isinstance(output, ModelCall):
                    output = work.send(None)
                calls[output.kind][number] = output
            except StopIteration as stopped:
                results[number] = stopped.value
                del running[number]
        for of_kind in calls.values():
            first, *rest = of_kind.values()
            answers |= zip(of_kind, first.answer_all([first, *rest]), strict=True)
    return [results[number] for number in range(len(works))]


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
        if read > _CHARS_PER_STEP:
            read = 0
            yield
        read += size(item) + _CHARS_PER_ITEM
        prepared.append(prepare(item))
    return prepared
