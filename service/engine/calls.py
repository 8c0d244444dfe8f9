"""Batches of each kind of model call, and scheduling rules of calls.

An operation yields a call of `models.calls` and is resumed with the answer, which does not depend on
the other calls in the batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.arrays import FloatArray
from models.calls import ModelCall, Predict, Rank, Read, ScoreChoices, ScoreRagged, Step
from models.language_model import is_lookup, score_choices
from models.states import check_no_nan, gather_states, view
from service.engine.batching import CallBatch, SliceResult, split_budget
from service.engine.constants import MAX_ENTRIES, SHORT_LOOKUP_TOKENS, SHORT_READ_TOKENS
from service.engine.prefill import ReadBatch


class ImmediateBatch(CallBatch[ModelCall, ModelCall]):
    """Batch of calls of one slice, which answers as many as budget and `MAX_ENTRIES` allow."""

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
        return SliceResult(rows, rows, list(zip(calls, calls[0].answer_all(calls), strict=True)))


@dataclass(slots=True)
class _ChoiceProgress:
    """Log-probabilities [C] of a call, defined for candidates of its first `done` rows."""

    scores: FloatArray
    done: int = 0


class ChoiceBatch(CallBatch[ScoreChoices, _ChoiceProgress]):
    """Batch of `ScoreChoices` calls; a slice scores candidates of a few rows."""

    def _start(self, call: ScoreChoices) -> _ChoiceProgress:
        return _ChoiceProgress(np.empty(len(call.tokens), np.float32))

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


_BATCHES: Mapping[type[ModelCall], Callable[[], CallBatch[Any, Any]]] = {
    **dict.fromkeys((Step, Predict, Rank, ScoreRagged), ImmediateBatch),
    ScoreChoices: ChoiceBatch,
    Read: ReadBatch,
}


def start_batch(call: ModelCall) -> CallBatch[Any, Any]:
    """Return an empty batch of calls of a call's kind."""
    if type(call) in _BATCHES:
        return _BATCHES[type(call)]()
    from service.engine.decode import DecodeCallBatch  # on demand: compiled code

    return DecodeCallBatch()


def merges(call: ModelCall) -> bool:
    """Return whether merging calls saves time.

    It does not for n-gram tables, where it only copies, and for ragged calls.
    """
    return not (is_lookup(call.model) or isinstance(call, ScoreRagged))


def is_urgent(call: ModelCall) -> bool:
    """Return whether a call is short for its model, so it precedes long ones."""
    if not isinstance(call, Read):
        return not isinstance(call, ScoreChoices)  # these calls have many rows
    return call.size <= (SHORT_READ_TOKENS if merges(call) else SHORT_LOOKUP_TOKENS)
