"""Queues of pending model calls, batched by kind and served in turn, one time slice each.

Owners take turns, and the batches of each; a slice serves all owners in its batch.

The size of a slice follows from the cost per token of its kind of call, which is estimated by
exponential smoothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.arrays import FloatArray
from models.calls import (
    ModelCall,
    Predict,
    Rank,
    Read,
    ScoreChoices,
    ScoreRagged,
    Step,
    check_no_nan,
    gather_states,
    view,
)
from models.language_model import is_lookup, score_choices
from service.engine.batching import CallBatch, SliceResult, split_budget
from service.engine.constants import (
    COST_SMOOTHING,
    INITIAL_TOKEN_COST_S,
    MAX_CALL_KINDS,
    MAX_ENTRIES,
    SHORT_LOOKUP_TOKENS,
    SHORT_READ_TOKENS,
)
from service.engine.job import Job
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


@dataclass(slots=True, eq=False)
class CallQueue:
    """Batches of pending calls, one for each kind, served in turn.

    Attributes:
        clock: monotonic clock in seconds.
        costs_s: estimated seconds per token by kind of call, shared by all queues.
        record: receives each slice's kind of call and number of rows.
        batches: batches with pending calls by kind, the last served last.
        turns: kinds of batches by owner, the next first in both; ended ones are dropped later.
    """

    clock: Callable[[], float]
    costs_s: dict[Hashable, float]
    record: Callable[[str, int], None]
    batches: OrderedDict[Hashable, CallBatch[Any, Any]] = field(default_factory=OrderedDict)
    turns: dict[str, dict[Hashable, None]] = field(default_factory=dict)
    _jobs: dict[ModelCall, Job] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of jobs with a pending call."""
        return len(self._jobs)

    @property
    def jobs(self) -> Collection[Job]:
        """The jobs with a pending call, unordered; a live view."""
        return self._jobs.values()

    def add(self, job: Job, call: ModelCall) -> None:
        """Queue the call of a job."""
        job.call = call
        self._jobs[call] = job
        key = _batch_key(job, call)
        if key not in self.batches:
            self.batches[key] = start_batch(call)
        self.batches[key].add(call, job.options.owner)
        self.turns.setdefault(job.options.owner, {})[key] = None

    def remove(self, job: Job) -> None:
        """Drop the call of a job, if it has one."""
        if (call := job.call) is not None and call in self._jobs:
            self.batches[_batch_key(job, call)].remove(call)
            self._forget(call)

    def run_slice(self, seconds: float, min_tokens: int) -> list[tuple[Job, Any]]:
        """Run a slice of the next batch; return jobs with finished calls and the answers.

        Args:
            seconds: approximate duration.
            min_tokens: minimum tokens; a network takes nearly as long for fewer.

        Raises:
            Exception: the model failed; call `isolate_failure` next.
        """
        if not self.batches:
            return []
        key = self._next_key()
        self.batches.move_to_end(key)
        batch = self.batches[key]
        first = batch.oldest
        cost_s = self.costs_s.get(first.kind, INITIAL_TOKEN_COST_S)
        began_s = self.clock()
        result = batch.run_slice(max(int(seconds / cost_s), min_tokens))
        if result.tokens and (took_s := self.clock() - began_s) > 0:
            token_s = took_s / result.tokens
            previous_s = self.costs_s.get(first.kind, token_s)
            if len(self.costs_s) > MAX_CALL_KINDS:  # mostly kinds of unloaded models
                self.costs_s.clear()
            self.costs_s[first.kind] = COST_SMOOTHING * previous_s + (1 - COST_SMOOTHING) * token_s
        if result.rows:
            self.record(type(first).__name__.lower(), result.rows)
        return [(self._forget(call), answer) for call, answer in result.answers]

    def isolate_failure(self) -> Job | None:
        """Return the job that made the last slice fail, None if further slices must find it."""
        call = next(reversed(self.batches.values())).isolate_failure()  # where run_slice put it
        return None if call is None else self._forget(call)

    def _next_key(self) -> Hashable:
        while True:
            owner = next(iter(self.turns))
            keys = self.turns.pop(owner)
            key = next(iter(keys))
            del keys[key]
            if is_pending := key in self.batches:
                keys[key] = None  # as the last
            if keys:
                self.turns[owner] = keys
            if is_pending:
                return key

    def _forget(self, call: ModelCall) -> Job:
        """Forget a call that has left its batch, and a batch if empty; return the call's job."""
        job = self._jobs.pop(call)
        job.call = None
        key = _batch_key(job, call)
        if key in self.batches and not len(self.batches[key]):
            del self.batches[key]
        return job


def _batch_key(job: Job, call: ModelCall) -> Hashable:
    return call.kind if merges(call) else job
