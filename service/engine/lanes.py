"""Calls that jobs wait for, in pools that take turns."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple

from service.engine.job import Job
from service.engine.model_call import ModelCall
from service.engine.observer import Observer
from service.engine.pace import Paces
from service.engine.pools import Pool


class SliceSize(NamedTuple):
    """How much a slice is.

    Attributes:
        seconds: that it should take.
        least_tokens: however slow the model is; a network reads few tokens hardly faster than many.
    """

    seconds: float
    least_tokens: int


class Lane:
    """Pools of calls, one for each kind.

    Args:
        clock: seconds, monotonic.
        paces: of all kinds, shared with other lanes.
        observer: told what is done together.
    """

    def __init__(self, *, clock: Callable[[], float], paces: Paces, observer: Observer) -> None:
        self._clock = clock
        self._paces = paces
        self._observer = observer
        self._pools: OrderedDict[Hashable, _Pooled] = OrderedDict()
        self._calls: dict[Job, ModelCall] = {}

    def __len__(self) -> int:
        """Jobs that wait for an answer."""
        return len(self._calls)

    @property
    def jobs(self) -> Collection[Job]:
        """Those who wait for an answer, in no order; not to be kept."""
        return self._calls.keys()

    @property
    def num_pools(self) -> int:
        """Pools that have something to do."""
        return len(self._pools)

    def join(self, job: Job, call: ModelCall) -> None:
        """A job waits for the answer to a call."""
        self._calls[job] = call
        key = _key(job, call)
        if key not in self._pools:
            self._pools[key] = _Pooled(call.pool(), {})
        pooled = self._pools[key]
        pooled.pool.join(call)
        pooled.jobs[call] = job

    def leave(self, job: Job) -> None:
        """A job has ended; it may not have waited."""
        if (call := self._calls.get(job)) is not None:
            self._pools[_key(job, call)].pool.leave(call)
            self._forget(job)

    def go_on(self, size: SliceSize) -> list[tuple[Job, Any]]:
        """Give the pool whose turn it is a slice, if there is any; the jobs that have their answers.

        Raises:
            Exception: the model's; `blame` is to be asked then.
        """
        if not self._pools:
            return []
        key = next(iter(self._pools))
        self._pools.move_to_end(key)
        pool, jobs = self._pools[key]
        first = next(iter(jobs))
        began = self._clock()
        done = pool.go_on(max(self._paces.tokens(first.kind, size.seconds), size.least_tokens))
        self._paces.learn(first.kind, done.tokens, self._clock() - began)
        if done.rows:
            self._observer.answered(type(first).__name__.lower(), done.rows)
        answers = [(jobs[call], answer) for call, answer in done.answers]
        for job, _ in answers:
            self._forget(job)
        return answers

    def blame(self) -> Job | None:
        """The job whose call made the last slice fail; None if that is yet to be found out."""
        pool, jobs = next(reversed(self._pools.values()))
        call = pool.blame()
        if call is None:
            return None
        job = jobs[call]
        self._forget(job)
        return job

    def _forget(self, job: Job) -> None:
        """A job waits no more; its call has left its pool."""
        call = self._calls.pop(job)
        key = _key(job, call)
        jobs = self._pools[key].jobs
        del jobs[call]
        if not jobs:
            del self._pools[key]


class _Pooled(NamedTuple):
    """A pool and who waits for each of its calls."""

    pool: Pool[Any, Any]
    jobs: dict[ModelCall, Job]


def _key(job: Job, call: ModelCall) -> Hashable:
    return call.kind if call.gains_by_company else job
