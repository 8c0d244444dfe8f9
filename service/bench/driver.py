"""Running a load: probe the target, send requests at their times, record the replies.

The clock wakes to some ten microseconds by a Linux timer; an event loop's own timers count whole
milliseconds. Garbage collection is switched off during a load, because a full collection delays
every reply.
"""

import asyncio
import contextlib
import ctypes
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import uvloop

from models.errors import EngineError
from service.bench.connection import Connection, Reply, error_message
from service.bench.plan import ClosedLoop, Load, LoadSettings, OpenLoop, Request, Target
from service.bench.results import TIMEOUT, Observation, Recording
from service.http_client import ConnectionPool, ExchangeError

_CLOCK_MONOTONIC = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_TimerSpec = ctypes.c_long * 4
"""Seconds and nanoseconds of the interval, here 0, then those until the timer expires."""


class PreciseClock:
    """Clock for one sleeping task, woken by a Linux timer; elsewhere by the event loop, up to 1 ms late.

    A thread that sleeps and wakes the loop was tried: it is late by 0.1 ms instead of 0.03, and on a busy machine
    it waits twice for a core. Python itself has these timers from 3.13 on.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        if hasattr(_LIBC, "timerfd_create"):
            file = _LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if file < 0:
                raise OSError(ctypes.get_errno(), "no timer can be had")
            self._file = file
            asyncio.get_running_loop().add_reader(file, self._wake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)

    async def sleep_until(self, time_s: float) -> None:
        """Sleep until a time of `time.perf_counter`; if it has passed, only yield to other tasks."""
        left_s = time_s - time.perf_counter()
        if left_s <= 0 or self._file is None:
            await asyncio.sleep(max(left_s, 0))
            return
        seconds, fraction_s = divmod(left_s, 1)
        self._waiter = asyncio.get_running_loop().create_future()
        spec = _TimerSpec(0, 0, int(seconds), max(int(fraction_s * 1e9), 1))
        _LIBC.timerfd_settime(self._file, 0, ctypes.byref(spec), None)
        await self._waiter

    def _wake(self) -> None:
        if self._file is None or self._waiter is None:
            return
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # the timer was set again in the meantime
            return
        if not self._waiter.done():
            self._waiter.set_result(None)


class RequestSender:
    """Sender of requests to a target; it adds observations to a recording.

    Args:
        target: the server.
        recording: collects the observations; its terms bound connections and time.
    """

    def __init__(self, target: Target, recording: Recording) -> None:
        load, terms = recording.load, recording.terms
        self._recording = recording
        self._timeout_s = terms.timeout_s
        self._pool = ConnectionPool(
            partial(Connection.open, target),
            load.clients if isinstance(load, ClosedLoop) else terms.max_connections,
        )

    async def send(self, intended_s: float, data: bytes, num_items: int) -> bool:
        """Send the bytes of a request due at `intended_s`; return whether there was a reply of any status."""
        observation = Observation(intended_s, time.perf_counter(), num_items)
        error: tuple[str, str] | None = None
        try:
            async with asyncio.timeout(self._timeout_s), self._pool.connection() as connection:
                observation.sent_s = time.perf_counter()
                reply = await connection.exchange(data)
            observation.ended_s, observation.status = reply.ended_s, reply.status
            observation.num_tokens, observation.token_times_s = reply.num_tokens, reply.token_times_s
            if not 200 <= reply.status < 300:
                error = f"http_{reply.status}", error_message(reply.body)
            elif reply.error is not None:
                error = "stream", reply.error
        except TimeoutError:  # an OSError too, so it comes first
            error = TIMEOUT, f"no answer within {self._timeout_s:g} s"
        except ExchangeError as failure:
            error = failure.kind, str(failure)
        except OSError as failure:
            error = "refused" if isinstance(failure, ConnectionRefusedError) else "connect", str(failure)
        except asyncio.CancelledError:  # if left out, slow requests would be under-represented
            error = "unfinished", "under way when the load was ended early"
            raise
        finally:
            if error is not None:
                observation.ended_s = observation.ended_s or time.perf_counter()
                observation.error = error[0]
                self._recording.examples.setdefault(*error)
            self._recording.add(observation)
        return observation.status > 0

    def close(self) -> None:
        """Close the connections, and record how many requests waited for one."""
        self._pool.close()
        self._recording.num_waited = self._pool.num_waited


RecordingCallback = Callable[[Recording], None]
_PROGRESS_INTERVAL_S = 0.5
_PAUSE_AFTER_FAILURE_S = 0.01
"""Pause of a closed loop's client after a failed request, so as not to flood an unreachable server."""


def run_load(
    target: Target,
    requests: Sequence[Request],
    load: Load,
    terms: LoadSettings,
    *,
    watch: RecordingCallback | None = None,
) -> Recording:
    """Run a load against a target; Ctrl-C ends it early.

    Args:
        target: the server.
        requests: sent cyclically.
        load: open or closed loop.
        terms: durations and bounds.
        watch: called with the recording so far, twice a second.
    """
    recording = Recording(load, terms)
    with _gc_disabled(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_fill(recording, target, requests, watch))
        except KeyboardInterrupt:
            recording.interrupted = True
    return recording


async def _fill(
    recording: Recording, target: Target, requests: Sequence[Request], watch: RecordingCallback | None
) -> None:
    async def report() -> None:
        while watch is not None:
            await asyncio.sleep(_PROGRESS_INTERVAL_S)
            watch(recording)

    reporter = asyncio.create_task(report())
    sender = RequestSender(target, recording)
    encoded = itertools.cycle([(target.encode(request), request.num_items) for request in requests])
    recording.started_s, cpu_s = time.perf_counter(), time.thread_time()
    recording.window_start_s = recording.started_s + recording.terms.warmup_s
    try:
        if isinstance(recording.load, OpenLoop):
            await _open_loop(sender, encoded, recording.load, recording)
        else:
            await _closed_loop(sender, encoded, recording.load, recording)
    finally:
        recording.ended_s = time.perf_counter()
        recording.cpu_s = time.thread_time() - cpu_s
        sender.close()
        reporter.cancel()


async def _open_loop(
    sender: RequestSender, encoded: Iterator[tuple[bytes, int]], load: OpenLoop, recording: Recording
) -> None:
    async with asyncio.TaskGroup() as tasks:
        with PreciseClock() as clock:
            for offset_s in schedule_arrivals(load, recording.terms):
                intended_s = recording.started_s + offset_s
                await clock.sleep_until(intended_s)
                tasks.create_task(sender.send(intended_s, *next(encoded)))


def schedule_arrivals(load: OpenLoop, terms: LoadSettings) -> Iterator[float]:
    """Yield the arrivals of the warm-up and the measurement, in seconds after the start."""
    measured = 0
    for offset_s in load.arrival_times():
        if terms.duration_s is not None and offset_s >= terms.warmup_s + terms.duration_s:
            return
        yield offset_s
        measured += offset_s >= terms.warmup_s
        if measured == terms.num_requests:
            return


async def _closed_loop(
    sender: RequestSender, encoded: Iterator[tuple[bytes, int]], load: ClosedLoop, recording: Recording
) -> None:
    terms = recording.terms
    numbers = itertools.count() if terms.num_requests is None else iter(range(terms.num_requests))

    def continues(now_s: float) -> bool:
        if now_s < recording.window_start_s:
            return True
        if terms.duration_s is not None and now_s >= recording.window_start_s + terms.duration_s:
            return False
        return next(numbers, None) is not None

    async def client() -> None:
        while continues(now_s := time.perf_counter()):
            if not await sender.send(now_s, *next(encoded)):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.clients):
            tasks.create_task(client())


@contextlib.contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection in the block: a full collection would delay replies."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_OVERLOADED = 429


def probe(target: Target, request: Request, timeout_s: float) -> None:
    """Send one request as a check.

    Raises:
        EngineError: there is no complete reply, or its status is neither 2xx nor 429.
    """
    target_name = f"POST {target.path_of(request)} at {target.host}:{target.port}"

    async def send() -> Reply:
        async with asyncio.timeout(timeout_s):
            connection = await Connection.open(target)
            try:
                return await connection.send(request)
            finally:
                connection.close()

    try:
        reply = asyncio.run(send())
    except TimeoutError:
        raise EngineError(f"{target_name} was not answered within {timeout_s:g} s") from None
    except (ExchangeError, OSError) as error:
        raise EngineError(f"{target_name} was not answered: {error}") from None
    if reply.error is not None:
        raise EngineError(f"{target_name} failed in the middle: {reply.error}")
    if not 200 <= reply.status < 300 and reply.status != _OVERLOADED:
        raise EngineError(f"{target_name} was answered {reply.status}: {error_message(reply.body)}")
