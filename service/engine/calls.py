"""Model calls as values: what a use case asks of a model, and how calls of one kind are batched.

A use case evaluates `state, log_probs = yield from step(model, state, tokens)` and is resumed with
the result. It cannot tell whether the call ran alone or in a batch with calls of other requests.
"""

from abc import abstractmethod
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar, cast

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.language_model import (
    LanguageModel,
    RaggedScorer,
    ReadScores,
    TopKPredictor,
    TopTokens,
    score_sequences,
)
from models.language_model import score_choices as scored
from service.engine.batching import (
    CallBatch,
    ModelCall,
    SliceResult,
    StateView,
    check_no_nan,
    gather_states,
    materialize,
    split_budget,
    split_rows,
    view,
)
from service.engine.prefill import Read, Scorer

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
