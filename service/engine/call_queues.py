"""Queues of pending model calls, batched by kind and served in turn, one time slice each.

`CostModel` keeps an exponentially smoothed cost per token for each kind of call, from which the
size of a slice is chosen.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple

from service.engine.batching import CallBatch, ModelCall
from service.engine.job import Job, SchedulerObserver

_INITIAL_TOKEN_COST_S = 2e-5
"""Seconds a token is taken to cost before any was read."""

_MAX_KINDS = 256
_SMOOTHING = 0.8
"""How much of what was known of a pace is kept when it is measured anew."""


class CostModel:
    """Seconds a token, by kind of call."""

    def __init__(self) -> None:
        self._seconds_per_token: dict[Hashable, float] = {}

    def tokens(self, kind: Hashable, seconds: float) -> int:
        """How many are done in so many seconds, roughly."""
        return int(seconds / self._seconds_per_token.get(kind, _INITIAL_TOKEN_COST_S))

    def update(self, kind: Hashable, tokens: int, seconds: float) -> None:
        """So many took so long."""
        if not tokens or seconds <= 0:
            return
        each = seconds / tokens
        before = self._seconds_per_token.get(kind, each)
        if len(self._seconds_per_token) > _MAX_KINDS:  # of models long gone
            self._seconds_per_token.clear()
        self._seconds_per_token[kind] = _SMOOTHING * before + (1 - _SMOOTHING) * each


class SliceSize(NamedTuple):
    """How much a slice is.

    Attributes:
        seconds: that it should take.
        min_tokens: however slow the model is; a network reads few tokens hardly faster than many.
    """

    seconds: float
    min_tokens: int


class CallQueue:
    """Pools of calls, one for each kind.

    Args:
        clock: seconds, monotonic.
        cost_model: of all kinds, shared with other lanes.
        observer: told what is done together.
    """

    def __init__(
        self, *, clock: Callable[[], float], cost_model: CostModel, observer: SchedulerObserver
    ) -> None:
        self._clock = clock
        self._cost_model = cost_model
        self._observer = observer
        self._batches: OrderedDict[Hashable, _QueuedBatch] = OrderedDict()
        self._calls: dict[Job, ModelCall] = {}

    def __len__(self) -> int:
        """Jobs that wait for an answer."""
        return len(self._calls)

    @property
    def jobs(self) -> Collection[Job]:
        """Those who wait for an answer, in no order; not to be kept."""
        return self._calls.keys()

    @property
    def num_batches(self) -> int:
        """Pools that have something to do."""
        return len(self._batches)

    def add(self, job: Job, call: ModelCall) -> None:
        """A job waits for the answer to a call."""
        self._calls[job] = call
        key = _batch_key(job, call)
        if key not in self._batches:
            self._batches[key] = _QueuedBatch(call.batch(), {})
        pooled = self._batches[key]
        pooled.batch.add(call)
        pooled.jobs[call] = job

    def remove(self, job: Job) -> None:
        """A job has ended; it may not have waited."""
        if (call := self._calls.get(job)) is not None:
            self._batches[_batch_key(job, call)].batch.remove(call)
            self._forget(job)

    def run_slice(self, size: SliceSize) -> list[tuple[Job, Any]]:
        """Give the pool whose turn it is a slice, if there is any; the jobs that have their answers.

        Raises:
            Exception: the model's; `blame` is to be asked then.
        """
        if not self._batches:
            return []
        key = next(iter(self._batches))
        self._batches.move_to_end(key)
        pool, jobs = self._batches[key]
        first = next(iter(jobs))
        began = self._clock()
        done = pool.run_slice(max(self._cost_model.tokens(first.kind, size.seconds), size.min_tokens))
        self._cost_model.update(first.kind, done.tokens, self._clock() - began)
        if done.rows:
            self._observer.answered(type(first).__name__.lower(), done.rows)
        answers = [(jobs[call], answer) for call, answer in done.answers]
        for job, _ in answers:
            self._forget(job)
        return answers

    def isolate_failure(self) -> Job | None:
        """The job whose call made the last slice fail; None if that is yet to be found out."""
        pool, jobs = next(reversed(self._batches.values()))
        call = pool.isolate_failure()
        if call is None:
            return None
        job = jobs[call]
        self._forget(job)
        return job

    def _forget(self, job: Job) -> None:
        """A job waits no more; its call has left its pool."""
        call = self._calls.pop(job)
        key = _batch_key(job, call)
        jobs = self._batches[key].jobs
        del jobs[call]
        if not jobs:
            del self._batches[key]


class _QueuedBatch(NamedTuple):
    """A pool and who waits for each of its calls."""

    batch: CallBatch[Any, Any]
    jobs: dict[ModelCall, Job]


def _batch_key(job: Job, call: ModelCall) -> Hashable:
    return call.kind if call.merges else job
