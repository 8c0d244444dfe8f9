"""Who is let in: a bounded number of jobs, and of tokens that they are expected to read and generate."""

import math
from collections.abc import Collection

from models.errors import DrainingError, OverloadedError
from service.engine.job import Job
from service.engine.observer import SchedulerObserver


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
