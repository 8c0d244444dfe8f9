"""Scheduler: admission of jobs, and turns of interactive work with slices of long and bulk work.

The scheduler is synchronous, has an injected clock and starts no threads. Only the model thread
runs steps; other methods are for any thread. A lock guards the bookkeeping and is never
held while a job or a model runs.

A turn has two halves. In the first, interactive jobs run for a few milliseconds in passes: every
ready job runs up to its next call, and every batch of urgent calls runs a slice. In the second, a
batch of long or bulk calls runs a slice of bounded time. A request waits for at most one slice of
another's long text. Owners take turns, so one with many jobs delays another's by few steps.

Admission control bounds the jobs, their expected tokens to read and generate, and the time that
interactive jobs take; each owner has a share.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import structlog

from models.calls import ModelCall, WorkOutput
from models.errors import (
    DeadlineExceededError,
    DomainError,
    DrainingError,
    EngineFailedError,
    OverloadedError,
    ShareExceededError,
)
from service.engine.call_queues import CallQueue, is_urgent
from service.engine.constants import (
    BULK_JOBS_AT_ONCE,
    MAX_SHARED_KINDS,
    MIN_BULK_SLICE_TOKENS,
    MIN_LATE_JOBS,
    MIN_LATE_TOKENS,
    MIN_SLICE_TOKENS,
)
from service.engine.job import Job, Party, RequestOptions, Shares
from service.engine.metrics import Metrics

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Limits and time slices of the scheduler.

    Longer bulk slices cost less per token, but delay interactive jobs.

    Attributes:
        max_jobs: maximum waiting and running jobs, besides what shares grant.
        max_tokens: maximum sum of the jobs' expected tokens, likewise. A job counts as little more than half of it at
            most, so the largest leaves capacity to others and two of them exclude each other.
        max_age_s: mean age of unfinished interactive jobs above which owners with many get no more.
            Each takes about twice as long, four times as an overload begins.
        token_age_s: added age for each expected token beyond `MIN_LATE_TOKENS`.
        max_pending_events: pending events at which a job is parked.
        max_job_pending_bytes: size of its pending events at which a job is parked.
        max_pending_bytes: size of all pending events at which all jobs with one are parked.
        retry_after_s: delay suggested to rejected clients.
        slice_s: approximate slice duration of long interactive texts.
        bulk_slice_s: approximate slice duration of bulk work.
        late_bulk_slice_s: maximum slice duration of late bulk work.
        bulk_tokens_per_s: rate below which a bulk job is late.
        idle_slice_s: slice duration of bulk work without interactive jobs.
        idle_after_s: time without interactive jobs until `idle_slice_s` applies.
        round_s: maximum time of interactive jobs before the next slice of other work.
        pass_s: time after which a pass of several owners resumes no further job.
    """

    max_jobs: int
    max_tokens: int = 1 << 40
    max_age_s: float = 0.4
    token_age_s: float = 0.005
    max_pending_events: int = 32
    max_job_pending_bytes: int = 1 << 18
    max_pending_bytes: int = 1 << 28
    retry_after_s: float = 1.0
    slice_s: float = 0.01
    bulk_slice_s: float = 0.0012
    late_bulk_slice_s: float = 0.005
    bulk_tokens_per_s: float = 5000.0
    idle_slice_s: float = 0.03
    idle_after_s: float = 1.0
    round_s: float = 0.0075
    pass_s: float = 0.002


class Admission:
    """Admission control: the admitted, unfinished jobs. Hold a lock to change it.

    Attributes:
        jobs: the admitted jobs, unordered; read-only.
        num_jobs: jobs by owner and kind.
        num_tokens: expected tokens likewise.
        draining: True if new jobs are rejected.
    """

    def __init__(self, limits: SchedulerLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._next_deadline_s = math.inf
        self.jobs: set[Job] = set()
        self.num_jobs, self.num_tokens = Shares[Party](limits.max_jobs), Shares[Party](limits.max_tokens)
        self.draining = False

    @property
    def num_waiting(self) -> int:
        """Number of jobs before their first step."""
        return sum(not job.started for job in list(self.jobs))

    def check_capacity(self, options: RequestOptions) -> None:
        """Check that a job can be admitted.

        Raises:
            DrainingError: new jobs are rejected.
            OverloadedError: a limit on jobs or tokens is reached.
            ShareExceededError: likewise, and the owner has its share.
        """
        if self.draining:
            self._metrics.rejected("draining")
            raise DrainingError("the service is shutting down and accepts no new requests")
        party = options.party
        # the only job may have any number of tokens
        tokens = self._tokens(options) if self.num_tokens.held[party] else 0
        if (
            self.num_jobs.used < self.num_jobs.total
            and self.num_tokens.used + tokens <= self.num_tokens.total
        ):
            return
        whose = f"this key's {'bulk' if options.bulk else 'interactive'} requests"
        for unit, shares, amount in (("requests", self.num_jobs, 1), ("tokens", self.num_tokens, tokens)):
            if refusal := shares.refusal(party, amount, whose):
                is_alone = shares.share(party) == shares.total
                self._metrics.rejected(unit if is_alone else ShareExceededError.code)
                raise (OverloadedError if is_alone else ShareExceededError)(
                    f"{shares.used} {unit} are queued or running and this request adds {amount}; {refusal}",
                    retry_after_s=self._limits.retry_after_s,
                )

    def _tokens(self, options: RequestOptions) -> int:
        """Return the number of tokens that a job counts as."""
        return min(options.tokens, self._limits.max_tokens // 2 + 1)

    def _count(self, options: RequestOptions, sign: int) -> None:
        self.num_jobs.add(options.party, sign)
        self.num_tokens.add(options.party, sign * self._tokens(options))

    def admit(self, job: Job) -> None:
        """Admit a job; it counts towards the limits until it is released.

        Raises:
            DrainingError, OverloadedError, ShareExceededError: see `check_capacity`; also if interactive jobs take too
                long.
        """
        self.check_capacity(job.options)
        self._check_ages(job)
        self.jobs.add(job)
        self._count(job.options, 1)
        self._next_deadline_s = min(self._next_deadline_s, job.deadline_s)

    def _check_ages(self, job: Job) -> None:
        """Reject an interactive job if those before are old for their tokens: it would take as long.

        Owners take turns, so this holds only for owners with at least their share of these jobs.
        """
        # before the cost of listing jobs
        if job.options.bulk or len(self.jobs) < MIN_LATE_JOBS:
            return
        before = [other for other in self.jobs if not (other.options.bulk or other.parked)]
        owner, owners = job.options.owner, [other.options.owner for other in before]
        has_share = owners.count(owner) * len({owner, *owners}) >= len(before)
        if len(before) < MIN_LATE_JOBS or not has_share:
            return
        limits, now_s = self._limits, job.submitted_s
        ages = (
            (now_s - other.submitted_s)
            / (limits.max_age_s + limits.token_age_s * max(0, other.options.tokens - MIN_LATE_TOKENS))
            for other in before
        )
        if (mean := sum(ages) / len(before)) > 1:
            self._metrics.rejected("age")
            raise OverloadedError(
                f"the {len(before)} requests queued or running are {mean:.1f} times as old on average as the "
                f"{limits.max_age_s:g} s that this service allows (more for long ones)",
                retry_after_s=limits.retry_after_s,
            )

    def release(self, job: Job, how: str) -> None:
        """Remove a job that has ended; a second call has no effect."""
        if job in self.jobs:
            self.jobs.discard(job)
            self._count(job.options, -1)
            self._metrics.ended_jobs.labels(how).inc()

    def expired(self, now_s: float) -> list[Job]:
        """Return the jobs whose deadline has passed."""
        if now_s < self._next_deadline_s:
            return []
        late = [job for job in self.jobs if job.deadline_s <= now_s]
        deadlines = (job.deadline_s for job in self.jobs if job.deadline_s > now_s)
        self._next_deadline_s = min(deadlines, default=math.inf)
        return late


class Scheduler:
    """Scheduler of jobs: turns of interactive work between slices of long or bulk work.

    Attributes:
        clock: monotonic clock in seconds.
        admission: admission control.
        pending_bytes: size of all events delivered but not yet taken.
    """

    def __init__(self, *, clock: Callable[[], float], limits: SchedulerLimits, metrics: Metrics) -> None:
        self.clock = clock
        self._limits = limits
        self._metrics = metrics
        self._lock = threading.Lock()
        self.admission = Admission(limits, metrics)
        self._ready: dict[str, deque[Job]] = {}  # by owner, the next to resume first
        self._ready_bulk: dict[str, deque[Job]] = {}
        self._cancelled: list[Job] = []
        self.pending_bytes = 0
        # used by the model thread only, without the lock
        costs_s: dict[Hashable, float] = {}
        queues = (CallQueue(clock, costs_s, metrics.answered) for _ in range(3))
        self._urgent, self._long, self._bulk = queues
        self._next_turn: list[Job] = []
        self._interactive_s = -math.inf
        self._bulk_next = False

    def __len__(self) -> int:
        """Return the number of unfinished jobs: waiting, running or parked."""
        return len(self.admission.jobs)

    def submit(self, job: Job) -> None:
        """Admit a job; it counts towards the limits until it ends.

        Raises:
            DrainingError: the scheduler is draining.
            OverloadedError, ShareExceededError: a limit on jobs or tokens is reached.
        """
        with self._lock:
            job.submitted_s = self.clock()
            self.admission.admit(job)
            self._enqueue(job)

    def cancel(self, job: Job) -> None:
        """Cancel a job: it runs and delivers nothing more.

        An unstarted job is released at once, so a client can replace its own waiting request
        without rejection.
        """
        with self._lock:
            job.cancelled = True
            self._cancelled.append(job)
            self.pending_bytes -= sum(job.pending)
            job.pending.clear()
            if not job.started:
                self.admission.release(job, "cancelled")

    def event_taken(self, job: Job) -> bool:
        """Record that a client took an event of a job; resume the job if parked.

        Returns:
            True if the job was parked.
        """
        with self._lock:
            self.pending_bytes -= job.pending.popleft()
            was_parked, job.parked = job.parked, False
            if was_parked:
                self._enqueue(job)
            return was_parked

    def drain(self) -> None:
        """Reject new jobs; admitted ones continue. Takes no lock: for signal handlers, too."""
        self.admission.draining = True

    def abort(self, error: DomainError) -> None:
        """End every job with an error, on the model thread after the last step."""
        with self._lock:
            jobs = list(self.admission.jobs)
        for job in jobs:
            self._end(job, "cancelled" if job.cancelled else "failed", error)

    def serve_interactive(self) -> bool:
        """Advance interactive jobs for a bounded time; return whether work was done."""
        until_s = self.clock() + self._limits.round_s
        worked, owners = False, set[str]()
        while True:  # a keystroke's two or three calls, without other work between
            self._end_stopped()
            resumed = self._resume_ready(owners)
            owners |= self._urgent.turns.keys()
            num_slices = len(self._urgent.batches)
            if len(owners) > 1:
                num_slices = min(num_slices, MAX_SHARED_KINDS)
            answered = self._run_slices(self._urgent, self._limits.slice_s, num_slices=num_slices)
            with self._lock:
                for job in answered:
                    self._enqueue(job)
            if not (resumed or answered or len(self._urgent)):
                break
            worked, self._interactive_s = True, until_s
            if self.clock() >= until_s:
                break
        self._begin_next_turn()
        return worked

    def _resume_ready(self, owners: set[str]) -> bool:
        """Resume each ready job once, or only a few if several owners have jobs in this turn.

        Args:
            owners: owners of the jobs and calls of this turn; added to.

        Returns:
            Whether any job was resumed.
        """
        until_s = self.clock() + self._limits.pass_s
        most_kinds = len(self._urgent.batches) + MAX_SHARED_KINDS
        with self._lock:
            count = sum(map(len, self._ready.values()))
        for resumed in range(count):
            is_long = self.clock() >= until_s or len(self._urgent.batches) >= most_kinds
            if (is_long and len(owners) > 1) or (job := self._pop(self._ready)) is None:
                return bool(resumed)
            owners.add(job.options.owner)
            self._resume(job)
        return bool(count)

    def serve_bulk(self) -> bool:
        """Run a slice of long or bulk work, in turn; return whether work was done."""
        long_first = bool(len(self._long)) and not self._bulk_next
        self._bulk_next = long_first
        worked = not long_first and self._serve_bulk_jobs()
        if not worked and len(self._long):
            worked = True
            for job in self._run_slices(self._long, self._limits.slice_s):
                self._requeue(job)
        self._begin_next_turn()
        return worked

    def _serve_bulk_jobs(self) -> bool:
        """Resume bulk jobs to their next calls, run a slice of these; return whether work was done."""
        until_s = self.clock() + self._limits.bulk_slice_s / 2
        resumed = False
        for _ in range(BULK_JOBS_AT_ONCE - len(self._bulk)):
            if resumed and self.clock() >= until_s:
                return True
            if (job := self._pop(self._ready_bulk)) is None:
                break
            self._resume(job)
            resumed = True
        if not len(self._bulk):
            return resumed
        for job in self._run_slices(self._bulk, *self._bulk_slice()):
            self._requeue(job)
        return True

    def _bulk_slice(self) -> tuple[float, int]:
        """Return the duration and the minimum tokens of the next bulk slice.

        It is longer for late jobs, since long slices cost less per token.
        """
        limits, now_s = self._limits, self.clock()
        if not len(self._long) and now_s - self._interactive_s > limits.idle_after_s:
            return limits.idle_slice_s, MIN_SLICE_TOKENS
        slowness_s = max(
            (now_s - job.submitted_s) / max(job.options.tokens, MIN_LATE_TOKENS) for job in self._bulk.jobs
        )
        seconds = limits.bulk_slice_s * max(1.0, slowness_s * limits.bulk_tokens_per_s)
        return min(seconds, limits.late_bulk_slice_s), MIN_BULK_SLICE_TOKENS

    def _pop(self, queue: dict[str, deque[Job]]) -> Job | None:
        """Return the first unended job of the next owner, or None."""
        with self._lock:
            while queue:
                owner = next(iter(queue))
                jobs = queue.pop(owner)
                job = jobs.popleft()
                if jobs:
                    queue[owner] = jobs  # as the last
                if job in self.admission.jobs:
                    return job
        return None

    def _resume(self, job: Job) -> None:
        """Run a job up to its next call, event or end."""
        if not job.started:
            with self._lock:
                job.started = True
            self._metrics.queue_time.observe(self.clock() - job.submitted_s)
        answer, job.answer = job.answer, None
        began_s = time.thread_time()
        try:
            output = job.work.send(answer)
        except StopIteration as stop:
            self._end(job, "done", stop.value)
        except Exception as error:  # noqa: BLE001 - one job's fault must not stop others
            self._fail(job, error)
        else:
            if isinstance(output, ModelCall):
                queue = self._urgent if is_urgent(output) else self._long
                (self._bulk if job.options.bulk else queue).add(job, output)
                return
            if output is not None and job.streams:
                self._deliver_event(job, output)
            self._requeue(job)
        finally:
            self._metrics.stepped(time.thread_time() - began_s)

    def _deliver_event(self, job: Job, event: Any) -> None:
        with self._lock:
            if job.cancelled:
                return
            # rows and lines may be large, other events are small
            size = len(event) if isinstance(event, bytes) else getattr(event, "nbytes", 0)
            job.pending.append(size)
            self.pending_bytes += size
        job.deliver(WorkOutput(event, last=False))

    def _run_slices(
        self, queue: CallQueue, seconds: float, min_tokens: int = MIN_SLICE_TOKENS, *, num_slices: int = 1
    ) -> list[Job]:
        """Run slices of a queue; return the jobs whose calls were answered."""
        answered = []
        for _ in range(num_slices):
            began_s = time.thread_time()
            try:
                answers = queue.run_slice(seconds, min_tokens)
            except Exception as error:  # noqa: BLE001 - one request's fault must not stop others
                at_fault = queue.isolate_failure()
                if at_fault is not None:
                    self._fail(at_fault, error)
                continue
            finally:
                self._metrics.stepped(time.thread_time() - began_s)
            for job, answer in answers:
                job.answer = answer
                answered.append(job)
        return answered

    def _end_stopped(self) -> None:
        """End the jobs that are cancelled or whose deadline has passed."""
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
            late = self.admission.expired(self.clock())
        for job in cancelled:
            self._end(job, "cancelled")
        for job in late:
            allowed_ms = 1000 * (job.deadline_s - job.submitted_s)
            error = DeadlineExceededError(f"the request did not finish within {allowed_ms:.0f} ms")
            self._end(job, "deadline", error)

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, DomainError):
            _log.error("engine step failed", request_id=job.options.request_id, exc_info=error)
            error = EngineFailedError("the model failed on this request; the log has the details")
        self._end(job, "failed", error)

    def _requeue(self, job: Job) -> None:
        """Queue a job for the next turn, or park it.

        It is parked if its pending events, or those of all, are too many or too large. Events of a cancelled job are
        not pending.
        """
        limits = self._limits
        with self._lock:
            job.parked = bool(job.pending) and (
                len(job.pending) >= limits.max_pending_events
                or sum(job.pending) >= limits.max_job_pending_bytes
                or self.pending_bytes >= limits.max_pending_bytes
            )
            if not job.parked:
                self._next_turn.append(job)

    def _begin_next_turn(self) -> None:
        with self._lock:
            jobs, self._next_turn = self._next_turn, []
            for job in jobs:
                self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        queue = self._ready_bulk if job.options.bulk else self._ready
        queue.setdefault(job.options.owner, deque()).append(job)

    def _end(self, job: Job, how: str, outcome: Any = None) -> None:
        """Release a job; deliver its outcome unless cancelled."""
        for queue in (self._urgent, self._long, self._bulk):
            queue.remove(job)
        job.work.close()
        job.answer = None
        with self._lock:
            self.admission.release(job, how)
        if not job.cancelled:
            job.deliver(WorkOutput(outcome, last=True))
