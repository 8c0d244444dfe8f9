"""Async interface of the scheduler: one model thread; results go to the event loop."""

import asyncio
import contextlib
import math
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from models.calls import Work, WorkOutput
from models.errors import DrainingError
from service.engine.job import NO_OPTIONS, Job, RequestOptions
from service.engine.scheduler import Scheduler

_POLL_S = 0.01
_TIMER_RESOLUTION_S = 0.005
"""Maximum time by which an event loop timer (resolution: 1 ms) fires early."""
_PAUSE_EVERY_S, _PAUSE_S = 0.002, 1e-5
"""Time between two pauses of the model thread during bulk work, and their minimum; in fact 60 µs.

Numerical code releases Python's lock for shorter than a thread takes to wake up, so a waiting event loop might not get
the lock until the work is done: 150 ms without pauses, 10 ms with them.
"""
_Delivery: TypeAlias = tuple[Callable[[WorkOutput], None], WorkOutput]
R = TypeVar("R")


@dataclass(eq=False)
class Engine:
    """Owner of the model thread, which does all model work.

    Attributes:
        scheduler: scheduler whose turns the thread runs.
        request_timeout_s: time limit of a request.
        hang_timeout_s: time after which a turn, normally milliseconds, counts as hung; 0 for never.
    """

    scheduler: Scheduler
    request_timeout_s: float
    hang_timeout_s: float = 0.0

    def __post_init__(self) -> None:
        self._turn_began_s: float | None = None
        # a semaphore: per item, the thread checks for work once; much faster than threading.Event
        self._work_arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake = partial(self._work_arrived.put, None)
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: list[_Delivery] = []  # used by the model thread only
        self._thread = threading.Thread(target=self._run_thread, name="model", daemon=True)

    @property
    def is_hung(self) -> bool:
        """True if a turn takes too long or the model thread is dead: the process must restart."""
        began_s = self._turn_began_s
        return 0 < self.hang_timeout_s < (0.0 if began_s is None else self.scheduler.clock() - began_s)

    def start(self) -> None:
        """Start the model thread."""
        self._thread.start()

    async def close(self, *, drain_timeout_s: float) -> None:
        """Refuse new work, finish running requests within the timeout, then stop the thread."""
        self.scheduler.drain()
        deadline_s = self.scheduler.clock() + drain_timeout_s
        while len(self.scheduler) and self.scheduler.clock() < deadline_s:  # noqa: ASYNC110 - the scheduler has no async signal
            await asyncio.sleep(_POLL_S)
        self._stopping = True
        self._wake()
        await asyncio.to_thread(self._thread.join)

    def run(self, work: Work[Any, R], options: RequestOptions = NO_OPTIONS) -> asyncio.Future[R]:
        """Run work on the model thread, dropping its events.

        Returns:
            Future of its result or DomainError; cancel it to cancel the work.

        Raises:
            OverloadedError, DrainingError: the work is not admitted.
        """
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        job = self._submit(work, partial(_resolve, future), options, streams=False)
        future.add_done_callback(lambda ended: self._cancel(job) if ended.cancelled() else None)
        return future

    async def stream(
        self, work: Work[Any, Any], options: RequestOptions = NO_OPTIONS
    ) -> AsyncGenerator[Any, None]:
        """Run work on the model thread; yield its events as they come, then any result.

        It pauses while too many events are pending; closing the iterator cancels it.

        Raises:
            DomainError: raised by the work, or the work is not admitted.
        """
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[WorkOutput] = asyncio.Queue()  # bounded by the scheduler
        job = self._submit(work, items.put_nowait, options, streams=True)
        # a parked job runs no steps: wake the scheduler to end it after its deadline
        timer = loop.call_later(job.deadline_s - self.scheduler.clock() + _TIMER_RESOLUTION_S, self._wake)
        try:
            while True:
                item, last = await items.get()
                if isinstance(item, Exception):
                    raise item
                if item is not None:
                    yield item
                if last:
                    return
                if self.scheduler.event_taken(job):
                    self._wake()
        finally:
            timer.cancel()
            self._cancel(job)

    def _submit(
        self,
        work: Work[Any, Any],
        deliver: Callable[[WorkOutput], None],
        options: RequestOptions,
        *,
        streams: bool,
    ) -> Job:
        self._loop = asyncio.get_running_loop()
        allowed_s = math.inf if options.timeout_s is None else options.timeout_s
        deadline_s = self.scheduler.clock() + min(self.request_timeout_s, allowed_s)
        job = Job(work, lambda item: self._pending.append((deliver, item)), deadline_s, options, streams)
        self.scheduler.submit(job)
        # after all ready callbacks, so their requests share a batch
        self._loop.call_soon(self._wake)
        return job

    def _cancel(self, job: Job) -> None:
        self.scheduler.cancel(job)
        self._wake()

    def _run_thread(self) -> None:
        paused_s = 0.0
        while not self._stopping:
            self._turn_began_s = self.scheduler.clock()
            interactive = self.scheduler.serve_interactive()
            self._flush()  # interactive answers must not wait for the bulk slice
            bulk = self.scheduler.serve_bulk()
            self._flush()
            if bulk and (now_s := self.scheduler.clock()) - paused_s > _PAUSE_EVERY_S:
                time.sleep(_PAUSE_S)
                paused_s = now_s
            if not (interactive or bulk):
                self._turn_began_s = None
                self._work_arrived.get()
                while not self._work_arrived.empty():  # the next turn serves all of them
                    self._work_arrived.get()
        self._turn_began_s = None
        self.scheduler.abort(DrainingError("the service shut down before the request finished"))
        self._flush()

    def _flush(self) -> None:
        """Send deliveries to the event loop, at most twice a turn: waking it costs more than a step."""
        if self._pending and self._loop is not None:
            deliveries = self._pending.copy()
            self._pending.clear()
            with contextlib.suppress(RuntimeError):  # a closed loop: no request waits
                self._loop.call_soon_threadsafe(_deliver_all, deliveries)


def _deliver_all(deliveries: list[_Delivery]) -> None:
    for deliver, item in deliveries:
        deliver(item)


def _resolve(future: asyncio.Future[Any], item: WorkOutput) -> None:
    outcome, _ = item
    if future.done():  # cancelled meanwhile
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
