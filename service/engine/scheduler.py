"""Scheduler: admission of jobs, and turns of interactive work with slices of long and bulk work.

Synchronous, with an injected clock, and without threads of its own. Only the model thread takes
steps; everything else may be called from any thread. A lock guards the bookkeeping and is never
held while a job or a model runs.

A turn has two halves. First interactive jobs run for some milliseconds, pass after pass: every
ready job runs up to its next call, and every batch of urgent calls runs one slice. Then one batch
of long or bulk calls gets a slice of bounded time. So no request waits for more than one slice of
another request's long text.

Admission bounds the number of jobs and the tokens that they are expected to read and generate.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from models.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineFailedError,
    LanguageModelError,
    OverloadedError,
)
from service.engine.batching import ModelCall
from service.engine.call_queues import CallQueue, CostModel, SliceSize
from service.engine.job import Job, NullSchedulerObserver, SchedulerObserver


class Admission:
    """The jobs that were admitted and have not ended. No method locks: who changes something holds a lock.

    Args:
        max_jobs: at most so many.
        max_tokens: that they are expected to read and generate together; one job alone may have more.
        retry_after_s: what is told to those who are turned away.
        observer: told of those, and of how jobs end.
    """

    def __init__(
        self, *, max_jobs: int, max_tokens: int, retry_after_s: float, observer: SchedulerObserver
    ) -> None:
        self._max_jobs, self._max_tokens = max_jobs, max_tokens
        self._retry_after_s = retry_after_s
        self._observer = observer
        self._jobs: set[Job] = set()
        self._next_deadline_s = math.inf
        self.tokens = 0
        self.num_waiting = 0
        self.draining = False

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs

    @property
    def jobs(self) -> Collection[Job]:
        """Those admitted, in no order; not to be kept."""
        return self._jobs

    def check_capacity(self, tokens: int = 0) -> None:
        """Refuse what `admit` would refuse now.

        Raises:
            DrainingError: no new work is taken.
            OverloadedError: there are as many jobs, or tokens, as the limits allow.
        """
        if self.draining:
            self._observer.rejected("draining")
            raise DrainingError("the service is shutting down and takes no new requests")
        if len(self._jobs) >= self._max_jobs:
            self._observer.rejected("requests")
            raise OverloadedError(
                f"{len(self._jobs)} requests are queued or under way, as many as this service takes",
                retry_after_s=self._retry_after_s,
            )
        if self._jobs and self.tokens + tokens > self._max_tokens:
            self._observer.rejected("tokens")
            raise OverloadedError(
                f"requests of about {self.tokens} tokens are queued or under way, and this one has about "
                f"{tokens}; this service takes {self._max_tokens} at once",
                retry_after_s=self._retry_after_s,
            )

    def admit(self, job: Job) -> None:
        """Let a job in; its place is taken from now until it is released.

        Raises:
            DrainingError, OverloadedError: as `check_room`.
        """
        self.check_capacity(job.tokens)
        self._jobs.add(job)
        self.tokens += job.tokens
        self.num_waiting += 1
        self._next_deadline_s = min(self._next_deadline_s, job.deadline_s)

    def start(self, job: Job) -> None:
        """A job waits no more."""
        if not job.started:
            job.started = True
            self.num_waiting -= 1

    def release(self, job: Job, how: str) -> None:
        """A job has ended, if it had not before."""
        if job in self._jobs:
            self._jobs.discard(job)
            self.tokens -= job.tokens
            self._observer.ended(how)
        self.start(job)

    def expired(self, now_s: float) -> list[Job]:
        """The jobs whose time is out."""
        if now_s < self._next_deadline_s:
            return []
        late = [job for job in self._jobs if job.deadline_s <= now_s]
        left = (job.deadline_s for job in self._jobs if job.deadline_s > now_s)
        self._next_deadline_s = min(left, default=math.inf)
        return late


_log = structlog.get_logger(__name__)
_BULK_JOBS_AT_ONCE = 16
"""Bulk jobs under way together: enough to fill slices, few enough that their texts are not all in memory."""

_MIN_SLICE_TOKENS, _MIN_BULK_SLICE_TOKENS = 256, 16
"""In a slice; a network reads few tokens hardly faster than many."""

_MIN_LATE_TOKENS = 1024
"""A bulk job of fewer is late no sooner than one of so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler holds at most.

    Attributes:
        max_jobs: jobs waiting or under way.
        max_tokens: tokens that they are expected to read and generate together; one job alone may have more.
        max_pending_events: events of one job that nobody has taken yet; past it the job rests.
        retry_after_s: what is told to those who are turned away.
        slice_s: how long interactive jobs wait for texts of others like them at most, roughly.
        bulk_slice_s: how long they wait for bulk.
        late_bulk_slice_s: how long they wait at most for bulk that is late; it is done the faster the longer.
        bulk_tokens_per_s: a bulk job is late that took longer than its own tokens at so many a second.
        idle_slice_s: how long the first of them waits that comes after a pause; bulk is done the faster the longer.
        idle_after_s: how long a pause is.
        round_s: how long they may go on before that has its slice.
    """

    max_jobs: int
    max_tokens: int = 1 << 40
    max_pending_events: int = 32
    retry_after_s: float = 1.0
    slice_s: float = 0.01
    bulk_slice_s: float = 0.0012
    late_bulk_slice_s: float = 0.005
    bulk_tokens_per_s: float = 5000.0
    idle_slice_s: float = 0.03
    idle_after_s: float = 1.0
    round_s: float = 0.0075


class Scheduler:
    """Turns of interactive jobs, with slices of long work between.

    Args:
        clock: seconds, monotonic.
        limits: what it holds at most.
        observer: told what happens.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        limits: SchedulerLimits,
        observer: SchedulerObserver | None = None,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._observer: SchedulerObserver = observer or NullSchedulerObserver()
        self._lock = threading.Lock()
        self._admission = Admission(
            max_jobs=limits.max_jobs,
            max_tokens=limits.max_tokens,
            retry_after_s=limits.retry_after_s,
            observer=self._observer,
        )
        self._ready: deque[Job] = deque()
        self._ready_bulk: deque[Job] = deque()
        self._cancelled: list[Job] = []
        # of the model's thread alone
        paces = CostModel()
        lanes = (CallQueue(clock=clock, cost_model=paces, observer=self._observer) for _ in range(3))
        self._urgent, self._long, self._bulk = lanes
        self._slice = SliceSize(limits.slice_s, _MIN_SLICE_TOKENS)
        self._idle_slice = SliceSize(limits.idle_slice_s, _MIN_SLICE_TOKENS)
        self._next_turn: list[Job] = []
        self._interactive_s = -math.inf
        self._bulk_next = False

    def __len__(self) -> int:
        """Jobs admitted and not ended: waiting, under way or resting."""
        return len(self._admission)

    @property
    def num_waiting(self) -> int:
        """Jobs that have not had their first step."""
        return self._admission.num_waiting

    @property
    def num_tokens(self) -> int:
        """Tokens that the admitted jobs are expected to read and generate."""
        return self._admission.tokens

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._admission.draining

    def check_capacity(self) -> None:
        """Refuse what `submit` would refuse now.

        Raises:
            DrainingError, OverloadedError: as `submit`.
        """
        self._admission.check_capacity()

    def submit(self, job: Job) -> None:
        """Admit a job; its place is taken from now until it ends.

        Raises:
            DrainingError: no new work is taken.
            OverloadedError: there are as many jobs, or tokens, as the limits allow.
        """
        with self._lock:
            self._admission.admit(job)
            job.submitted_s = self._clock()
            self._enqueue(job)

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job: it is given no further step and its listener hears no more.

        The place of one that has had no step is free at once: whoever takes the place of its own older request
        is not turned away for it.
        """
        with self._lock:
            job.cancelled = True
            self._cancelled.append(job)
            if not job.started:
                self._admission.release(job, "cancelled")

    def event_taken(self, job: Job) -> bool:
        """The job's listener has taken one event; a job that rested for that goes on.

        Returns:
            Whether it had rested.
        """
        with self._lock:
            job.pending_events -= 1
            rested, job.parked = job.parked, False
            if rested:
                self._enqueue(job)
            return rested

    def drain(self) -> None:
        """Refuse new jobs from now on; those admitted go on. Takes no lock: a signal handler may call it."""
        self._admission.draining = True

    def abort(self, error: LanguageModelError) -> None:
        """End every job with an error; for the model's thread, once it has stopped stepping."""
        with self._lock:
            jobs = list(self._admission.jobs)
        for job in jobs:
            self._end(job, "cancelled" if job.cancelled else "failed")
            if not job.cancelled:
                job.listener.error(error)

    def step(self) -> bool:
        """Take one turn, both halves.

        Returns:
            Whether there was anything to do; False means that nothing is left to do for now.
        """
        interactive = self.serve_interactive()
        return self.serve_bulk() or interactive

    def serve_interactive(self) -> bool:
        """Let all interactive jobs go on, for a bounded time; whether there were any."""
        until = self._clock() + self._limits.round_s
        answered: list[Job] = []
        worked = False
        while True:  # a keystroke asks twice or thrice: there is no slice of others' work between
            self._end_cancelled()
            self._end_expired()
            ready = self._alive(answered) + self._pop(self._ready)
            for job in ready:
                self._resume(job)
            answered = self._run_slices(self._urgent, self._slice, pieces=self._urgent.num_batches)
            if not (ready or answered or len(self._urgent)):
                break
            worked, self._interactive_s = True, until
            if self._clock() >= until:
                break
        for job in answered:
            self._requeue(job)
        self._begin_next_turn()
        return worked

    def serve_bulk(self) -> bool:
        """Give what is long, or bulk, a slice, the two by turns; whether there was any."""
        long_first = bool(len(self._long)) and not self._bulk_next
        self._bulk_next = long_first
        worked = not long_first and self._serve_bulk_jobs()
        if not worked and len(self._long):
            worked = True
            for job in self._run_slices(self._long, self._slice):
                self._requeue(job)
        self._begin_next_turn()
        return worked

    def _serve_bulk_jobs(self) -> bool:
        """Let some bulk jobs go on to their next calls, then give what they ask a slice; whether there was any."""
        until = self._clock() + self._limits.bulk_slice_s / 2
        jobs = self._pop(self._ready_bulk, _BULK_JOBS_AT_ONCE - len(self._bulk))
        for place, job in enumerate(jobs):
            if place and self._clock() >= until:
                self._requeue_bulk(jobs[place:])
                return True
            self._resume(job)
        if not len(self._bulk):
            return bool(jobs)
        for job in self._run_slices(self._bulk, self._bulk_slice()):
            self._requeue(job)
        return True

    def _bulk_slice(self) -> SliceSize:
        """A slice of bulk now; of such as is late a longer one, which costs less a token."""
        limits, now_s = self._limits, self._clock()
        if not len(self._long) and now_s - self._interactive_s > limits.idle_after_s:
            return self._idle_slice
        slowness_s = max(
            (now_s - job.submitted_s) / max(job.tokens, _MIN_LATE_TOKENS) for job in self._bulk.jobs
        )
        seconds = limits.bulk_slice_s * max(1.0, slowness_s * limits.bulk_tokens_per_s)
        return SliceSize(min(seconds, limits.late_bulk_slice_s), _MIN_BULK_SLICE_TOKENS)

    def _pop(self, queue: deque[Job], most: int | None = None) -> list[Job]:
        with self._lock:
            count = len(queue) if most is None else min(most, len(queue))
            return self._alive(queue.popleft() for _ in range(count))

    def _alive(self, jobs: Iterable[Job]) -> list[Job]:
        """Those that have not ended."""
        return [job for job in jobs if job in self._admission]

    def _resume(self, job: Job) -> None:
        """Let a job work up to what it asks, says or ends with."""
        if not job.started:
            with self._lock:
                self._admission.start(job)
            self._observer.started(self._clock() - job.submitted_s)
        answer, job.answer = job.answer, None
        try:
            told = job.work.send(answer)
        except StopIteration as stop:
            self._end(job, "done")
            if not job.cancelled:
                job.listener.result(stop.value)
        except Exception as error:  # noqa: BLE001 - one job's fault must not stop the others
            self._fail(job, error)
        else:
            if isinstance(told, ModelCall):
                self._queue_of(job, told).add(job, told)
                return
            if told is not None and not job.cancelled and job.listener.event(told):
                with self._lock:
                    job.pending_events += 1
            self._requeue(job)

    def _queue_of(self, job: Job, call: ModelCall) -> CallQueue:
        if job.bulk:
            return self._bulk
        return self._urgent if call.urgent else self._long

    def _run_slices(self, lane: CallQueue, size: SliceSize, *, pieces: int = 1) -> list[Job]:
        """Go on with some pools of a lane; the jobs that have their answers."""
        answered = []
        for _ in range(pieces):
            try:
                answers = lane.run_slice(size)
            except Exception as error:  # noqa: BLE001 - the engine's step: one request's fault must not stop the others
                at_fault = lane.isolate_failure()
                if at_fault is not None:
                    self._fail(at_fault, error)
                continue
            for job, answer in answers:
                job.answer = answer
                answered.append(job)
        return answered

    def _end_cancelled(self) -> None:
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
        for job in cancelled:
            self._end(job, "cancelled")

    def _end_expired(self) -> None:
        with self._lock:
            late = self._admission.expired(self._clock())
        for job in late:
            self._end(job, "deadline")
            allowed_ms = 1000 * (job.deadline_s - job.submitted_s)
            if not job.cancelled:
                job.listener.error(
                    DeadlineExceededError(f"the request was not done within its {allowed_ms:.0f} ms")
                )

    def _fail(self, job: Job, error: Exception) -> None:
        self._end(job, "failed")
        if not isinstance(error, LanguageModelError):
            _log.error("engine step failed", request_id=job.request_id, exc_info=error)
            error = EngineFailedError("the model failed on this request; the log tells why")
        if not job.cancelled:
            job.listener.error(error)

    def _requeue(self, job: Job) -> None:
        """A job has had its turn; unless too many of its events are untaken it goes on in the next one."""
        with self._lock:
            if job.pending_events >= self._limits.max_pending_events and not job.cancelled:
                job.parked = True
            else:
                self._next_turn.append(job)

    def _begin_next_turn(self) -> None:
        with self._lock:
            rested, self._next_turn = self._next_turn, []
            for job in rested:
                self._enqueue(job)

    def _requeue_bulk(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            self._ready_bulk.extendleft(reversed(jobs))

    def _enqueue(self, job: Job) -> None:
        (self._ready_bulk if job.bulk else self._ready).append(job)

    def _end(self, job: Job, how: str) -> None:
        for lane in (self._urgent, self._long, self._bulk):
            lane.remove(job)
        job.work.close()
        job.answer = None
        with self._lock:
            self._admission.release(job, how)
