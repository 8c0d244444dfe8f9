"""Batches of each kind of model call, and how calls are scheduled.

A use case yields a call of `models.calls` and is resumed with the answer, which is the same whether
the call ran alone or in a batch with calls of other requests.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.calls import ModelCall, Predict, Rank, Read, ScoreChoices, ScoreRagged, Step
from models.language_model import RaggedScorer, TopKPredictor, TopTokens, is_lookup, score_choices
from service.engine.batching import (
    CallBatch,
    SliceResult,
    StateView,
    check_no_nan,
    gather_states,
    materialize,
    split_budget,
    split_rows,
    view,
)
from service.engine.constants import MAX_ENTRIES, SHORT_LOOKUP_TOKENS, SHORT_READ_TOKENS
from service.engine.prefill import ReadBatch


class ImmediateBatch(CallBatch[ModelCall, ModelCall]):
    """Batch of calls of one slice; a slice answers as many as its token count and `MAX_ENTRIES` allow."""

    def _start(self, call: ModelCall) -> ModelCall:
        return call

    def _run(self, under_way: Mapping[ModelCall, ModelCall], count: int) -> SliceResult:
        calls: list[ModelCall] = []
        rows = 0
        for call in under_way:
            max_rows = min(count, MAX_ENTRIES // len(call.model.vocabulary))
            if calls and rows + len(call.state) > max_rows:
                break
            calls.append(call)
            rows += len(call.state)
        return SliceResult(rows, rows, list(zip(calls, _ANSWERS[type(calls[0])](calls), strict=True)))


def _answer_steps(calls: Sequence[Step]) -> list[Any]:
    """Compute a state and log-probabilities [R, V] for each call."""
    model = calls[0].model
    after = model.advance(
        gather_states([call.state for call in calls]), np.concatenate([call.tokens for call in calls])
    )
    log_probs = check_no_nan(to_numpy(model.next_log_probs(after)))
    counts = [len(call.tokens) for call in calls]
    return list(zip(split_rows(after, counts), _split_array(log_probs, counts), strict=True))


def _answer_predictions(calls: Sequence[Predict]) -> list[Any]:
    """Compute log-probabilities [R, V] for each call."""
    states = [call.state for call in calls]
    log_probs = check_no_nan(to_numpy(calls[0].model.next_log_probs(gather_states(states))))
    return _split_array(log_probs, [len(state) for state in states])


def _answer_rankings(calls: Sequence[Rank]) -> list[Any]:
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


def _answer_ragged(calls: Sequence[ScoreRagged]) -> list[Any]:
    """Compute log-probabilities [N] for each call."""
    return [
        cast("RaggedScorer[Any]", call.model).score_ragged(materialize(call.state), call.tokens, call.offsets)
        for call in calls
    ]


_ANSWERS: Mapping[type[ModelCall], Callable[[Sequence[Any]], list[Any]]] = {
    Step: _answer_steps,
    Predict: _answer_predictions,
    Rank: _answer_rankings,
    ScoreRagged: _answer_ragged,
}
"""Functions that answer calls of one kind that are answered in one slice; each answer equals that of the call alone."""


def _split_array(values: Any, counts: Sequence[int]) -> list[Any]:
    """Split an array [ΣR, …] into parts of `counts` rows."""
    if len(counts) == 1:
        return [values]
    ends = np.cumsum(counts)
    return [values[end - count : end] for count, end in zip(counts, ends, strict=True)]


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
                score_choices(model, state, rows, np.concatenate([tokens for _, _, tokens in parts]))
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


BATCHES: dict[type[ModelCall], Callable[[], CallBatch[Any, Any]]] = {
    **dict.fromkeys(_ANSWERS, ImmediateBatch),
    ScoreChoices: ChoiceBatch,
    Read: ReadBatch,
}
"""Batch of each kind of call; `service.engine.decode`, which needs compiled code, adds its own when it is imported."""


def batch_for(call: ModelCall) -> CallBatch[Any, Any]:
    """Return an empty batch for calls of the kind of one."""
    return BATCHES[type(call)]()


def merges(call: ModelCall) -> bool:
    """Return whether batching saves time; not for n-gram tables, where it only adds copies, nor without padding."""
    return not (is_lookup(call.model) or isinstance(call, ScoreRagged))


def is_urgent(call: ModelCall) -> bool:
    """Return whether a call is short for its model and served before long ones."""
    if not isinstance(call, Read):
        return not isinstance(call, ScoreChoices)  # these come with many rows
    if not merges(call):
        return call.size <= SHORT_LOOKUP_TOKENS
    rows, longest = len(call.lengths), int(call.lengths.max(initial=0))
    # two short rows take a network no longer than one
    return call.size <= SHORT_READ_TOKENS or (rows == 2 and longest <= SHORT_READ_TOKENS)


def run_single(call: ModelCall) -> Any:
    """Compute the answer to one call alone, without a scheduler."""
    batch = batch_for(call)
    batch.add(call)
    while True:
        if answers := batch.run_slice(max(call.size, 1)).answers:
            return answers[0][1]
