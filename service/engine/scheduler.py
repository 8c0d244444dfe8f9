"""Who is given the model next: a bounded set of jobs, whose calls of one kind are answered together.

Synchronous; it reads no clock of its own and starts no thread. `step` belongs to one
thread, the model's. All else may be called from any thread: a lock guards the book-keeping
and is never held while a job or a model works.

A turn has two halves. First every interactive job goes on to its next call, and all these calls
are answered, those of a kind in one batch; and again, for some milliseconds. Then whatever is
long, and whatever bulk jobs ask, gets a slice of bounded time. So nobody waits for more than a slice of somebody
else's long text.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import structlog

from models.errors import DeadlineExceededError, EngineFailedError, LanguageModelError
from service.engine.admission import Admission
from service.engine.batches import Batch, Batches
from service.engine.calls import ModelCall
from service.engine.job import Job
from service.engine.observer import Observer, Unobserved

_log = structlog.get_logger(__name__)
_BULK_JOBS_AT_ONCE = 16
"""Bulk jobs that go on together: enough to fill batches, few enough that their texts are not all in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler holds at most.

    Attributes:
        max_jobs: jobs waiting or under way.
        max_tokens: tokens that they are expected to read and generate together; one job alone may have more.
        max_untaken_events: events of one job that nobody has taken yet; past it the job rests.
        retry_after_s: what is told to those who are turned away.
        slice_s: how long interactive jobs wait for texts of others like them at most, roughly.
        bulk_slice_s: how long they wait for bulk.
        leisure_slice_s: how long the first of them waits that comes after a pause; bulk is done the faster the longer.
        leisure_after_s: how long a pause is.
        round_s: how long they may go on before that has its slice.
    """

    max_jobs: int
    max_tokens: int = 1 << 40
    max_untaken_events: int = 32
    retry_after_s: float = 1.0
    slice_s: float = 0.01
    bulk_slice_s: float = 0.0012
    leisure_slice_s: float = 0.03
    leisure_after_s: float = 1.0
    round_s: float = 0.0075


class Scheduler:
    """Turns of interactive jobs, with slices of long work between.

    Args:
        clock: seconds, monotonic.
        limits: what it holds at most.
        observer: told what happens.
    """

    def __init__(
        self, *, clock: Callable[[], float], limits: SchedulerLimits, observer: Observer | None = None
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._observer: Observer = observer or Unobserved()
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
        self._batches = Batches(
            clock=clock,
            slice_s=limits.slice_s,
            bulk_slice_s=limits.bulk_slice_s,
            leisure_slice_s=limits.leisure_slice_s,
        )
        self._interactive_s = -math.inf
        self._long: deque[Batch] = deque()
        self._bulk: deque[Batch] = deque()
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

    def check_room(self) -> None:
        """Refuse what `submit` would refuse now.

        Raises:
            DrainingError, OverloadedError: as `submit`.
        """
        self._admission.check_room()

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
        """Nobody waits for this job: it is given no further step and its listener hears no more."""
        with self._lock:
            job.cancelled = True
            self._cancelled.append(job)

    def take(self, job: Job) -> bool:
        """The job's listener has taken one event; a job that rested for that goes on.

        Returns:
            Whether it had rested.
        """
        with self._lock:
            job.untaken -= 1
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
        self._end_cancelled()
        self._end_late()
        until = self._clock() + self._limits.round_s
        jobs = self._popped(self._ready, None)
        worked = bool(jobs)
        if worked:
            self._interactive_s = until
        while jobs:  # a keystroke asks twice or thrice: there is no slice of others' work between
            jobs = self._ask(jobs)
            if self._clock() >= until:
                break
        for job in jobs:
            self._requeue(job, kept=False)
        return worked

    def serve_bulk(self) -> bool:
        """Give what is long, or bulk, a slice, the two by turns; whether there was any."""
        long_first = bool(self._long) and not self._bulk_next
        self._bulk_next = long_first
        pause_s = self._clock() - self._interactive_s
        self._batches.at_leisure = not self._long and pause_s > self._limits.leisure_after_s
        if not long_first and self._serve_bulk_jobs():
            return True
        if self._long:
            self._slice(self._long)
            return True
        return False

    def _serve_bulk_jobs(self) -> bool:
        if self._bulk:
            self._slice(self._bulk)
            return True
        jobs = self._popped(self._ready_bulk, _BULK_JOBS_AT_ONCE)
        self._ask(jobs, until=self._clock() + self._limits.bulk_slice_s)
        return bool(jobs)

    def _popped(self, queue: deque[Job], most: int | None) -> list[Job]:
        with self._lock:
            count = len(queue) if most is None else min(most, len(queue))
            popped = [queue.popleft() for _ in range(count)]
            return [job for job in popped if job in self._admission]

    def _go_on(self, job: Job) -> ModelCall | None:
        """Let a job work up to what it asks, says or ends with; what it asks is given back."""
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
                return told
            kept = told is not None and not job.cancelled and job.listener.event(told)
            self._requeue(job, kept=kept)
        return None

    def _ask(self, jobs: Sequence[Job], *, until: float = math.inf) -> list[Job]:
        """Let jobs go on, no further one after a time, answer what is quickly answered, and begin the rest.

        Returns:
            Those who have their answer and may go on.
        """
        kinds: dict[Hashable, list[tuple[Job, ModelCall]]] = {}
        for place, job in enumerate(jobs):
            if self._clock() >= until and place:
                self._put_back(jobs[place:])
                break
            call = self._go_on(job)
            if call is not None:
                key = call.kind if call.gains_by_company else job
                kinds.setdefault((key, job.bulk), []).append((job, call))
        answered: list[Job] = []
        for same in kinds.values():
            for batch in self._batches.of(same):
                if same[0][0].bulk:
                    self._bulk.append(batch)
                elif batch.is_long:
                    self._long.append(batch)
                else:
                    answered += self._finish(batch)
        return answered

    def _slice(self, under_way: deque[Batch]) -> None:
        """Go on with the first of some batches, for a bounded time, then let the others have their turn."""
        batch = under_way.popleft()
        if not any(job in self._admission for job in batch.jobs):
            return
        try:
            self._batches.go_on(batch)
        except Exception as error:  # noqa: BLE001 - the engine's step: one request's fault must not stop the others
            for job in self._blame(batch, error):
                self._requeue(job, kept=False)
            return
        if not batch.done:
            under_way.append(batch)
            return
        for job in self._answered(batch):
            self._requeue(job, kept=False)

    def _finish(self, batch: Batch) -> list[Job]:
        try:
            self._batches.finish(batch)
        except Exception as error:  # noqa: BLE001 - the engine's step: one request's fault must not stop the others
            return self._blame(batch, error)
        return self._answered(batch)

    def _answered(self, batch: Batch) -> list[Job]:
        """The jobs of a batch that are still there, each with its answer."""
        self._observer.answered(batch.name, batch.num_rows)
        pairs = zip(batch.jobs, batch.answers(), strict=True)
        there = [(job, answer) for job, answer in pairs if job in self._admission]
        for job, answer in there:
            job.answer = answer
        return [job for job, _ in there]

    def _blame(self, batch: Batch, error: Exception) -> list[Job]:
        """A batch failed: those in it are asked one by one, so that only who is at fault is told so."""
        if len(batch.jobs) == 1:
            if batch.jobs[0] in self._admission:
                self._fail(batch.jobs[0], error)
            return []
        alone = [one for one in batch.apart() if one.jobs[0] in self._admission]
        return [job for one in alone for job in self._finish(one)]

    def _end_cancelled(self) -> None:
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
        for job in cancelled:
            if job in self._admission:
                self._end(job, "cancelled")

    def _end_late(self) -> None:
        with self._lock:
            late = self._admission.late(self._clock())
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

    def _requeue(self, job: Job, *, kept: bool) -> None:
        with self._lock:
            job.untaken += kept
            if job.untaken >= self._limits.max_untaken_events and not job.cancelled:
                job.parked = True
            else:
                self._enqueue(job)

    def _put_back(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            self._ready_bulk.extendleft(reversed(jobs))

    def _enqueue(self, job: Job) -> None:
        (self._ready_bulk if job.bulk else self._ready).append(job)

    def _end(self, job: Job, how: str) -> None:
        job.work.close()
        job.answer = None
        with self._lock:
            self._admission.release(job, how)
