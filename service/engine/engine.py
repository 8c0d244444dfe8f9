"""Async interface of the scheduler: one model thread, and results returned to the event loop."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from models.errors import DrainingError
from service.engine.job import Job, Work, run_to_completion
from service.engine.scheduler import Scheduler

R = TypeVar("R")
_POLL_S = 0.01
_TIMER_RESOLUTION_S = 0.005
"""By less than this may a timer of the event loop, which counts milliseconds, be early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """On what terms a request's work is done.

    Attributes:
        request_id: for the log.
        timeout_s: after which it is given up; None for the engine's own.
        bulk: whether it gives way to interactive requests.
        tokens: how many it is expected to read and generate.
    """

    request_id: str = ""
    timeout_s: float | None = None
    bulk: bool = False
    tokens: int = 0


_DEFAULT_OPTIONS = RequestOptions()


class Engine:
    """Owns the thread on which all model work is done.

    Args:
        scheduler: whose steps that thread takes.
        clock: the one the scheduler was given.
        request_timeout_s: after which a request is given up.
        hang_timeout_s: after which a turn of that thread, which takes milliseconds, is taken to be endless; 0 is never.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float],
        request_timeout_s: float,
        hang_timeout_s: float = 0.0,
    ) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._hang_timeout_s = hang_timeout_s
        self._turn_began_s: float | None = None
        # tokens, each of which lets the thread look for work once; much faster than threading.Event
        self._work_arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        self._callbacks = _CallbackBuffer()
        self._thread = threading.Thread(target=self._run_thread, name="model", daemon=True)

    @property
    def is_hung(self) -> bool:
        """Whether a model computes without end, or the model thread has died: only another process helps."""
        began_s = self._turn_began_s
        return 0 < self._hang_timeout_s < (0.0 if began_s is None else self._clock() - began_s)

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

    def run_inline(self, work: Work[Any, R]) -> R:
        """Do work at once on the caller's thread: for what takes less than handing it over.

        Raises:
            OverloadedError, DrainingError: the work is not taken.
            LanguageModelError: the work's own.
        """
        self.scheduler.check_capacity()
        return run_to_completion(work)

    def run(self, work: Work[Any, R], terms: RequestOptions = _DEFAULT_OPTIONS) -> asyncio.Future[R]:
        """Do the work; events are dropped.

        Returns:
            Its result to come, or a LanguageModelError. Cancelling it cancels the work.

        Raises:
            OverloadedError, DrainingError: the work is not taken.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        job = self._submit(work, _FutureListener(self._callbacks, future), terms)
        future.add_done_callback(lambda ended: self._cancel(job) if ended.cancelled() else None)
        return future

    async def stream(
        self, work: Work[Any, Any], terms: RequestOptions = _DEFAULT_OPTIONS
    ) -> AsyncGenerator[Any, None]:
        """Do the work and give its events as they come, and last its result unless that is None.

        The work rests while its events are not taken; closing the iterator cancels it.

        Raises:
            LanguageModelError: the work's own, or the engine cannot do it.
        """
        loop = asyncio.get_running_loop()
        events = _QueueListener(self._callbacks)
        job = self._submit(work, events, terms)
        # a resting job takes no steps, so its deadline must be looked at on purpose, and not before it
        timer = loop.call_later(job.deadline_s - self._clock() + _TIMER_RESOLUTION_S, self._wake)
        try:
            while True:
                item, last = await events.queue.get()
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
        self, work: Work[Any, Any], listener: "_FutureListener | _QueueListener", terms: RequestOptions
    ) -> Job:
        self._callbacks.bind(asyncio.get_running_loop())
        timeout_s = self._request_timeout_s
        if terms.timeout_s is not None:
            timeout_s = min(timeout_s, terms.timeout_s)
        job = Job(
            work,
            listener,
            self._clock() + timeout_s,
            request_id=terms.request_id,
            bulk=terms.bulk,
            tokens=terms.tokens,
        )
        self.scheduler.submit(job)
        self._wake()
        return job

    def _cancel(self, job: Job) -> None:
        self.scheduler.cancel(job)
        self._wake()

    def _wake(self) -> None:
        self._work_arrived.put(None)

    def _run_thread(self) -> None:
        while not self._stopping:
            self._turn_began_s = self._clock()
            interactive = self.scheduler.serve_interactive()
            self._callbacks.flush()  # before the slice: who has typed waits for no more of it
            bulk = self.scheduler.serve_bulk()
            self._callbacks.flush()
            if not (interactive or bulk):
                self._turn_began_s = None
                self._work_arrived.get()
        self._turn_began_s = None
        self.scheduler.abort(DrainingError("the service shut down before the request was done"))
        self._callbacks.flush()


class _Callback(NamedTuple):
    function: Callable[[Any], None]
    argument: Any


class _CallbackBuffer:
    """What the model thread has to say to the event loop, sent once a turn: waking the loop costs more than a step."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._letters: list[_Callback] = []

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that letters go to."""
        self._loop = loop

    def put(self, receive: Callable[[Any], None], content: object) -> None:
        """Have `receive(content)` called on the loop."""
        self._letters.append(_Callback(receive, content))

    def flush(self) -> None:
        """Send what has gathered."""
        if self._letters and self._loop is not None:
            letters, self._letters = self._letters, []
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to hear it
                self._loop.call_soon_threadsafe(_run_callbacks, letters)


def _run_callbacks(letters: list[_Callback]) -> None:
    for letter in letters:
        letter.function(letter.argument)


class _FutureListener:
    """Carries one result or error to a future of the event loop."""

    def __init__(self, post: _CallbackBuffer, future: asyncio.Future[Any]) -> None:
        self._callbacks = post
        self._future = future

    def event(self, event: object) -> bool:  # noqa: ARG002 - a listener's signature
        """Drop it."""
        return False

    def result(self, result: object) -> None:
        """Settle the future."""
        self._callbacks.put(self._resolve, result)

    def error(self, error: Exception) -> None:
        """Settle the future."""
        self._callbacks.put(self._resolve, error)

    def _resolve(self, outcome: object) -> None:
        if self._future.done():  # cancelled while the outcome was on its way
            return
        if isinstance(outcome, Exception):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)


class _QueueListener:
    """Carries events, then the outcome, to a queue of the event loop, as (item, whether it is the last)."""

    def __init__(self, post: _CallbackBuffer) -> None:
        self._callbacks = post
        self.queue: asyncio.Queue[tuple[Any, bool]] = asyncio.Queue()  # bounded by the scheduler

    def event(self, event: object) -> bool:
        """Queue it."""
        self._callbacks.put(self.queue.put_nowait, (event, False))
        return True

    def result(self, result: object) -> None:
        """Queue it as the last."""
        self._callbacks.put(self.queue.put_nowait, (result, True))

    def error(self, error: Exception) -> None:
        """Queue it as the last."""
        self._callbacks.put(self.queue.put_nowait, (error, True))
