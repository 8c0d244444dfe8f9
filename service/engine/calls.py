"""Batches of each kind of model call, and scheduling rules of calls.

A use case yields a call of `models.calls` and is resumed with the answer, which does not depend on
the other calls in the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from models.arrays import FloatArray, to_numpy
from models.calls import ModelCall, Predict, Rank, Read, ScoreChoices, ScoreRagged, Step
from models.language_model import RaggedScorer, TopKPredictor, TopTokens, is_lookup, score_choices
from service.engine.batching import (
    CallBatch,
    SliceResult,
    check_no_nan,
    gather_states,
    materialize,
    split_array,
    split_budget,
    split_rows,
    view,
)
from service.engine.constants import MAX_ENTRIES, SHORT_LOOKUP_TOKENS, SHORT_READ_TOKENS
from service.engine.prefill import ReadBatch


class ImmediateBatch(CallBatch[ModelCall, ModelCall]):
    """Batch of calls that need one slice; a slice answers as many as its budget and `MAX_ENTRIES` allow."""

    def _start(self, call: ModelCall) -> ModelCall:
        return call

    def _run(self, under_way: Mapping[ModelCall, ModelCall], count: int) -> SliceResult:
        calls: list[ModelCall] = []
        rows = 0
        for call in sorted(under_way, key=self._tags.__getitem__):
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
    return list(zip(split_rows(after, counts), split_array(log_probs, counts), strict=True))


def _answer_predictions(calls: Sequence[Predict]) -> list[Any]:
    """Compute log-probabilities [R, V] for each call."""
    states = [call.state for call in calls]
    log_probs = check_no_nan(to_numpy(calls[0].model.next_log_probs(gather_states(states))))
    return split_array(log_probs, [len(state) for state in states])


def _answer_rankings(calls: Sequence[Rank]) -> list[Any]:
    """Compute the most probable tokens of each call's R rows."""
    states = [call.state for call in calls]
    ranked = cast("TopKPredictor[Any]", calls[0].model).top_k(gather_states(states), calls[0].count)
    check_no_nan(ranked.log_probs)
    counts = [len(state) for state in states]
    columns = (split_array(column, counts) for column in ranked)
    return [TopTokens(ids, log_probs) for ids, log_probs in zip(*columns, strict=True)]


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
"""Functions that answer calls of a kind in one slice; batching changes no answer."""


@dataclass(slots=True)
class _ChoiceProgress:
    """Log-probabilities [C] of one call, defined for the candidates of its first `done` rows."""

    scores: FloatArray
    done: int = 0


class ChoiceBatch(CallBatch[ScoreChoices, _ChoiceProgress]):
    """Batch of `ScoreChoices` calls; a slice scores candidates of a bounded number of rows."""

    def _start(self, call: ScoreChoices) -> _ChoiceProgress:
        return _ChoiceProgress(np.empty(len(call.tokens), dtype=np.float32))

    def _run(self, under_way: Mapping[ScoreChoices, _ChoiceProgress], count: int) -> SliceResult:
        left = [len(call.state) - progress.done for call, progress in under_way.items()]
        states, rows, tokens, cuts = [], [], [], []
        total = 0
        for (call, progress), share in zip(under_way.items(), split_budget(left, left, count), strict=True):
            first, last = progress.done, progress.done + share
            cut = slice(*np.searchsorted(call.rows, [first, last]))
            if share:
                states.append(view(call.state).select(slice(first, last)))
                rows.append(call.rows[cut] - first + total)
                tokens.append(call.tokens[cut])
            cuts.append((progress, last, cut))
            total += share
        if states:
            model = next(iter(under_way)).model
            scores = score_choices(model, gather_states(states), np.concatenate(rows), np.concatenate(tokens))
            check_no_nan(scores)
            for progress, last, cut in cuts:
                progress.scores[cut], scores = np.split(scores, [cut.stop - cut.start])
                progress.done = last
        done = [(call, part.scores) for call, part in under_way.items() if part.done == len(call.state)]
        return SliceResult(total, total, done)


BATCHES: dict[type[ModelCall], Callable[[], CallBatch[Any, Any]]] = {
    **dict.fromkeys(_ANSWERS, ImmediateBatch),
    ScoreChoices: ChoiceBatch,
    Read: ReadBatch,
}
"""Batch by kind of call; importing `service.engine.decode`, which needs compiled code, adds an entry."""


def merges(call: ModelCall) -> bool:
    """Return whether merging calls saves time.

    It does not for n-gram tables, where it only copies, and for ragged calls.
    """
    return not (is_lookup(call.model) or isinstance(call, ScoreRagged))


def is_urgent(call: ModelCall) -> bool:
    """Return whether a call is short for its model and takes precedence over long ones."""
    if not isinstance(call, Read):
        return not isinstance(call, ScoreChoices)  # these calls have many rows
    return call.size <= (SHORT_READ_TOKENS if merges(call) else SHORT_LOOKUP_TOKENS)


def run_single(call: ModelCall) -> Any:
    """Compute the answer to one call alone, without a scheduler."""
    answer = _ANSWERS.get(type(call))
    if answer is not None:  # one slice answers it
        return answer([call])[0]
    batch = BATCHES[type(call)]()
    batch.add(call)
    while True:
        if answers := batch.run_slice(max(call.size, 1)).answers:
            return answers[0][1]
