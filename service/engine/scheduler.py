"""Who is given the model next: a bounded set of jobs, served in turn.

Synchronous; it reads no clock of its own and starts no thread. `step` belongs to one
thread, the model's. All else may be called from any thread: a lock guards the book-keeping
and is never held while a job works.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from models.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineFailedError,
    LanguageModelError,
    OverloadedError,
)
from service.engine.calls import ModelCall, alone
from service.engine.job import Job

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler holds at most.

    Attributes:
        max_jobs: jobs waiting or under way.
        max_untaken_events: events of one job that nobody has taken yet; past it the job rests.
        retry_after_s: what is told to those who are turned away.
    """

    max_jobs: int
    max_untaken_events: int = 32
    retry_after_s: float = 1.0


class Scheduler:
    """Round-robin over jobs, one chunk of work at a time.

    Args:
        clock: seconds, monotonic.
        limits: what it holds at most.
        on_start: told how many seconds a job waited for its first step.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        limits: SchedulerLimits,
        on_start: Callable[[float], None] = lambda _waited_s: None,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._on_start = on_start
        self._lock = threading.Lock()
        self._ready: deque[Job] = deque()
        self._admitted: set[Job] = set()
        self._waiting = 0
        self._draining = False

    def __len__(self) -> int:
        """Jobs admitted and not ended: waiting, under way or resting."""
        return len(self._admitted)

    @property
    def num_waiting(self) -> int:
        """Jobs that have not had their first step."""
        return self._waiting

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._draining

    def submit(self, job: Job) -> None:
        """Admit a job; its place is taken from now until it ends.

        Raises:
            DrainingError: no new work is taken.
            OverloadedError: there are as many jobs as the limit allows.
        """
        with self._lock:
            if self._draining:
                raise DrainingError("the service is shutting down and takes no new requests")
            if len(self._admitted) >= self._limits.max_jobs:
                raise OverloadedError(
                    f"{len(self._admitted)} requests are queued or under way, as many as this service takes",
                    retry_after_s=self._limits.retry_after_s,
                )
            job.submitted_s = self._clock()
            self._admitted.add(job)
            self._waiting += 1
            self._ready.append(job)

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job: it is given no further step and its listener hears no more."""
        with self._lock:
            job.cancelled = True
            self._unpark(job)

    def take(self, job: Job) -> None:
        """The job's listener has taken one event; a job that rested for that goes on."""
        with self._lock:
            job.untaken -= 1
            self._unpark(job)

    def wake(self, job: Job) -> None:
        """Look at a resting job again, since its time may be out."""
        with self._lock:
            self._unpark(job)

    def drain(self) -> None:
        """Refuse new jobs from now on; those admitted go on. Takes no lock: a signal handler may call it."""
        self._draining = True

    def abort(self, error: LanguageModelError) -> None:
        """End every job with an error; for the model's thread, once it has stopped stepping."""
        with self._lock:
            jobs = list(self._admitted)
        for job in jobs:
            self._end(job)
            if not job.cancelled:
                job.listener.error(error)

    def step(self) -> bool:
        """Give the next job in turn one chunk of work.

        Returns:
            Whether there was a job; False means that nothing is left to do for now.
        """
        job = self._next()
        if job is None:
            return False
        now = self._clock()
        if not job.started:
            job.started = True
            with self._lock:
                self._waiting -= 1
            self._on_start(now - job.submitted_s)
        if now >= job.deadline_s:
            self._end(job)
            allowed_ms = 1000 * (job.deadline_s - job.submitted_s)
            job.listener.error(
                DeadlineExceededError(f"the request was not done within its {allowed_ms:.0f} ms")
            )
            return True
        self._advance(job)
        return True

    def _next(self) -> Job | None:
        while True:
            with self._lock:
                if not self._ready:
                    return None
                job = self._ready.popleft()
            if not job.cancelled:
                return job
            self._end(job)

    def _advance(self, job: Job) -> None:
        try:
            event = job.work.send(job.answer)
            job.answer = None
            if isinstance(event, ModelCall):
                job.answer, event = alone(event), None
        except StopIteration as stop:
            self._end(job)
            if not job.cancelled:
                job.listener.result(stop.value)
        except LanguageModelError as error:
            self._fail(job, error)
        except Exception:  # noqa: BLE001 - the engine's step: one model's fault must not stop the others
            _log.exception("engine step failed", request_id=job.request_id)
            self._fail(job, EngineFailedError("the model failed on this request; the log tells why"))
        else:
            kept = event is not None and not job.cancelled and job.listener.event(event)
            self._requeue(job, kept=kept)

    def _fail(self, job: Job, error: LanguageModelError) -> None:
        self._end(job)
        if not job.cancelled:
            job.listener.error(error)

    def _requeue(self, job: Job, *, kept: bool) -> None:
        with self._lock:
            job.untaken += kept
            if job.untaken >= self._limits.max_untaken_events and not job.cancelled:
                job.parked = True
            else:
                self._ready.append(job)

    def _unpark(self, job: Job) -> None:
        if job.parked:
            job.parked = False
            self._ready.append(job)

    def _end(self, job: Job) -> None:
        job.work.close()
        with self._lock:
            self._admitted.discard(job)
            if not job.started:
                job.started = True
                self._waiting -= 1
