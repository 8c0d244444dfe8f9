"""Queues of pending model calls, batched by kind and served in turn, one time slice each.

Owners take turns, and the batches of each; a slice serves all owners in its batch.

The size of a slice follows from the cost per token of its kind of call, which is estimated by
exponential smoothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

from models.calls import ModelCall
from service.engine.batching import CallBatch
from service.engine.calls import merges, start_batch
from service.engine.constants import COST_SMOOTHING, INITIAL_TOKEN_COST_S, MAX_CALL_KINDS
from service.engine.job import Job


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
