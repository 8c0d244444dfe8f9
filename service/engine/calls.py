"""Model calls that use cases yield, and batches of calls of one kind.

A use case evaluates `state, log_probs = yield from step(model, state, tokens)` and is resumed with
the result, which is the same whether the call ran alone or in a batch with calls of other requests.
"""

from abc import abstractmethod
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar, cast

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.language_model import (
    SCORES,
    STATE,
    LanguageModel,
    RaggedScorer,
    ReadResult,
    TopKPredictor,
    TopTokens,
    Want,
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
from service.engine.constants import MAX_ENTRIES
from service.engine.prefill import Read

A = TypeVar("A")
CallGenerator: TypeAlias = Generator[Any, Any, A]
"""Part of a use case: yields model calls and returns an answer of type A."""


@dataclass(frozen=True, slots=True, eq=False)
class ImmediateCall(ModelCall):
    """A call that is answered in one slice."""

    @property
    def size(self) -> int:
        """Number of rows: each takes one token or distribution."""
        return len(self.state)

    @property
    def urgent(self) -> bool:
        """True: these calls are short."""
        return True

    @classmethod
    @abstractmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Compute the answers to calls of one kind; each equals the answer to the call alone."""

    @staticmethod
    def batch() -> "ImmediateBatch":
        """Return an empty batch."""
        return ImmediateBatch()


class ImmediateBatch(CallBatch[ImmediateCall, ImmediateCall]):
    """Batch of immediate calls; a slice answers as many as its token count and `MAX_ENTRIES` allow."""

    def _start(self, call: ImmediateCall) -> ImmediateCall:
        return call

    def _run(self, under_way: Mapping[ImmediateCall, ImmediateCall], count: int) -> SliceResult:
        calls: list[ImmediateCall] = []
        rows = 0
        for call in under_way:
            max_rows = min(count, MAX_ENTRIES // len(call.model.vocabulary))
            if calls and rows + len(call.state) > max_rows:
                break
            calls.append(call)
            rows += len(call.state)
        return SliceResult(rows, rows, list(zip(calls, type(calls[0]).answers(calls), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Step(ImmediateCall):
    """Read one token per row [R] and predict the next."""

    tokens: TokenIds

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Compute a state and log-probabilities [R, V] for each call."""
        model = calls[0].model
        after = model.advance(
            gather_states([call.state for call in calls]), np.concatenate([call.tokens for call in calls])
        )
        log_probs = check_no_nan(to_numpy(model.next_log_probs(after)))
        counts = [len(call.tokens) for call in calls]
        return list(zip(split_rows(after, counts), _split_array(log_probs, counts), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Predict(ImmediateCall):
    """Predict the next token of each row."""

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Compute log-probabilities [R, V] for each call."""
        states = [call.state for call in calls]
        log_probs = check_no_nan(to_numpy(calls[0].model.next_log_probs(gather_states(states))))
        return _split_array(log_probs, [len(state) for state in states])


@dataclass(frozen=True, slots=True, eq=False)
class Rank(ImmediateCall):
    """Predict the most probable next tokens, with a model that need not compute the whole distribution."""

    count: int

    @property
    def kind(self) -> Hashable:
        """Batch key: calls for equally many tokens."""
        return type(self), id(self.model), self.count

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Compute the most probable tokens of each call's R rows."""
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


def run_single(call: ModelCall) -> Any:
    """Compute the answer to one call alone, without a scheduler."""
    if isinstance(call, ImmediateCall):
        return type(call).answers([call])[0]
    batch = call.batch()
    batch.add(call)
    while True:
        if answers := batch.run_slice(call.size).answers:
            return answers[0][1]


def _split_array(values: Any, counts: Sequence[int]) -> list[Any]:
    """Split an array [ΣR, …] into parts of `counts` rows."""
    if len(counts) == 1:
        return [values]
    ends = np.cumsum(counts)
    return [values[end - count : end] for count, end in zip(counts, ends, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRagged(ImmediateCall):
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

    @property
    def merges(self) -> bool:
        """False: nothing is padded, so merging calls saves nothing."""
        return False

    @classmethod
    def answers(cls, calls: Sequence[Self]) -> list[Any]:
        """Compute log-probabilities [N] for each call."""
        return [
            cast("RaggedScorer[Any]", call.model).score_ragged(
                materialize(call.state), call.tokens, call.offsets
            )
            for call in calls
        ]


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


@dataclass(frozen=True, slots=True, eq=False)
class ScoreChoices(ModelCall):
    """Score candidate next tokens of rows.

    Attributes:
        rows: row of each candidate, in ascending order [C].
        tokens: ids of the candidates [C].
    """

    rows: TokenIds
    tokens: TokenIds

    @property
    def size(self) -> int:
        """Number of rows: each takes one distribution."""
        return len(self.state)

    @property
    def urgent(self) -> bool:
        """False: these calls come with many rows."""
        return False

    @staticmethod
    def batch() -> "ChoiceBatch":
        """Return an empty batch."""
        return ChoiceBatch()


class ChoiceBatch(CallBatch[ScoreChoices, "_ChoiceProgress"]):
    """Batch of `ScoreChoices` calls; a slice scores the candidates of a bounded number of rows."""

    def _start(self, call: ScoreChoices) -> "_ChoiceProgress":
        return _ChoiceProgress(call)

    def _run(self, under_way: Mapping[ScoreChoices, "_ChoiceProgress"], count: int) -> SliceResult:
        running = list(under_way.values())
        left = [progress.left for progress in running]
        shares = [
            (progress, share)
            for progress, share in zip(running, split_budget(left, left, count), strict=True)
            if share
        ]
        starts = np.cumsum([0, *(share for _, share in shares)])  # of each call's rows in the joint state
        if shares:
            parts = [progress.next_choices(share) for progress, share in shares]
            rows = np.concatenate([rows + start for (_, rows, _), start in zip(parts, starts, strict=False)])
            state = gather_states([state for state, _, _ in parts])
            model = next(iter(under_way)).model
            scores = check_no_nan(
                scored(model, state, rows, np.concatenate([tokens for _, _, tokens in parts]))
            )
            for (progress, share), (_, _, tokens) in zip(shares, parts, strict=True):
                progress.record(share, scores[: len(tokens)])
                scores = scores[len(tokens) :]
        done = [(call, progress.scores) for call, progress in under_way.items() if not progress.left]
        return SliceResult(int(starts[-1]), int(starts[-1]), done)


class _ChoiceProgress:
    """Progress of one call, row by row.

    Attributes:
        scores: log-probabilities [C]; undefined for rows not scored yet.
        left: number of rows not scored yet.
    """

    def __init__(self, call: ScoreChoices) -> None:
        self._call = call
        self._state = call.state if isinstance(call.state, StateView) else view(call.state)
        self.scores = np.empty(len(call.tokens), dtype=np.float32)
        self.left = len(call.state)

    def next_choices(self, count: int) -> tuple[StateView, TokenIds, TokenIds]:
        """Return the state of the next `count` rows and their candidates: row indices from 0, and tokens."""
        first = len(self._state) - self.left
        candidates = self._candidates(count)
        return (
            self._state.select(np.arange(first, first + count)),
            self._call.rows[candidates] - first,
            self._call.tokens[candidates],
        )

    def record(self, count: int, scores: FloatArray) -> None:
        """Store the scores of all candidates of the next `count` rows."""
        self.scores[self._candidates(count)] = scores
        self.left -= count

    def _candidates(self, count: int) -> slice:
        first = len(self._state) - self.left
        return slice(*np.searchsorted(self._call.rows, [first, first + count]))


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
