"""The scheduler's async shell: one model thread, and outcomes carried back to the event loop."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar, cast

from models.errors import DrainingError
from service.engine.job import Job, Work
from service.engine.scheduler import Scheduler

R = TypeVar("R")
_POLL_S = 0.01


class Engine:
    """Owns the thread on which all model work is done.

    Args:
        scheduler: whose steps that thread takes.
        clock: the one the scheduler was given.
        request_timeout_s: after which a request is given up.
    """

    def __init__(self, scheduler: Scheduler, *, clock: Callable[[], float], request_timeout_s: float) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        # tokens, each of which lets the thread look for work once; much faster than threading.Event
        self._work_arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="model", daemon=True)

    def start(self) -> None:
        """Start the model thread."""
        self._thread.start()

    async def close(self, *, drain_timeout_s: float) -> None:
        """Take no new work, finish what is under way, then stop the thread.

        Args:
            drain_timeout_s: after so long the requests still under way end with DrainingError.
        """
        self.scheduler.drain()
        give_up_s = self._clock() + drain_timeout_s
        while len(self.scheduler) and self._clock() < give_up_s:  # noqa: ASYNC110 - a synchronous scheduler signals nobody
            await asyncio.sleep(_POLL_S)
        self._stopping = True
        self._work_arrived.put(None)
        await asyncio.to_thread(self._thread.join)

    def run(self, work: Work[Any, R], *, request_id: str = "") -> asyncio.Future[R]:
        """Do the work; events are dropped.

        Returns:
            Its result to come, or a LanguageModelError. Cancelling it cancels the work.

        Raises:
            OverloadedError, DrainingError: the work is not taken.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        job = self._submit(work, _ResultOnly(loop, future), request_id)
        future.add_done_callback(lambda ended: self._cancel(job) if ended.cancelled() else None)
        return future

    async def stream(self, work: Work[Any, Any], *, request_id: str = "") -> AsyncGenerator[Any, None]:
        """Do the work and give its events as they come, and last its result unless that is None.

        The work rests while its events are not taken; closing the iterator cancels it.

        Raises:
            LanguageModelError: the work's own, or the engine cannot do it.
        """
        loop = asyncio.get_running_loop()
        events = _Events(loop)
        job = self._submit(work, events, request_id)
        # a resting job takes no steps, so its deadline must be looked at on purpose
        timer = loop.call_later(self._request_timeout_s, self._wake, job)
        try:
            while True:
                item, last = await events.queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is not None:
                    yield item
                if last:
                    return
                self.scheduler.take(job)
                self._work_arrived.put(None)
        finally:
            timer.cancel()
            self._cancel(job)

    def _submit(self, work: Work[Any, Any], listener: "_ResultOnly | _Events", request_id: str) -> Job:
        job = Job(work, listener, self._clock() + self._request_timeout_s, request_id)
        self.scheduler.submit(job)
        self._work_arrived.put(None)
        return job

    def _cancel(self, job: Job) -> None:
        self.scheduler.cancel(job)
        self._work_arrived.put(None)

    def _wake(self, job: Job) -> None:
        self.scheduler.wake(job)
        self._work_arrived.put(None)

    def _serve(self) -> None:
        while not self._stopping:
            if not self.scheduler.step():
                self._work_arrived.get()
        self.scheduler.abort(DrainingError("the service shut down before the request was done"))


class _ResultOnly:
    """Carries one result or error to a future of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self._loop = loop
        self._future = future

    def event(self, event: object) -> bool:  # noqa: ARG002 - a listener's signature
        """Drop it."""
        return False

    def result(self, result: object) -> None:
        """Settle the future."""
        self._loop.call_soon_threadsafe(self._settle, result)

    def error(self, error: Exception) -> None:
        """Settle the future."""
        self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, outcome: object) -> None:
        if self._future.done():  # cancelled while the outcome was on its way
            return
        if isinstance(outcome, Exception):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)


class _Events:
    """Carries events, then the outcome, to a queue of the event loop, as (item, whether it is the last)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.queue: asyncio.Queue[tuple[Any, bool]] = asyncio.Queue()  # bounded by the scheduler

    def event(self, event: object) -> bool:
        """Queue it."""
        self._put(event, last=False)
        return True

    def result(self, result: object) -> None:
        """Queue it as the last."""
        self._put(result, last=True)

    def error(self, error: Exception) -> None:
        """Queue it as the last."""
        self._put(error, last=True)

    def _put(self, item: object, *, last: bool) -> None:
        self._loop.call_soon_threadsafe(self.queue.put_nowait, cast("tuple[Any, bool]", (item, last)))
