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
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import uvloop

from models.errors import EngineError
from service.bench.connection import Connection, ConnectionPool, ExchangeError, Reply, error_message
from service.bench.plan import ClosedLoop, Load, LoadSettings, OpenLoop, Request, Target, arrival_times
from service.bench.results import TIMEOUT, LoadSummary, Objective, Observation, Recording, summarise_load

_CLOCK_MONOTONIC = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_TimerSpec = ctypes.c_long * 4
"""Seconds and nanoseconds of the interval, which is none, then those until the timer goes off."""


class PreciseClock:
    """One sleeper at a time, woken by a timer of Linux's; elsewhere by the event loop, a millisecond late.

    A thread that sleeps and wakes the loop was tried: it is late by 0.1 ms instead of 0.03, and where the machine is
    busy it is kept waiting twice. Python has these timers itself from 3.13 on.
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
        """Return at that time of `time.perf_counter`; if it has passed, after others had their turn."""
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
        except BlockingIOError:  # it was set anew meanwhile
            return
        if not self._waiter.done():
            self._waiter.set_result(None)


class RequestSender:
    """Sends requests to a target and adds what it sees to a recording.

    Args:
        target: who is asked.
        recording: what is added to; its terms bound connections and time.
    """

    def __init__(self, target: Target, recording: Recording) -> None:
        load, terms = recording.load, recording.terms
        self._recording = recording
        self._timeout_s = terms.timeout_s
        self._pool = ConnectionPool(
            target, load.clients if isinstance(load, ClosedLoop) else terms.max_connections
        )

    async def send(self, intended_s: float, data: bytes, num_items: int) -> bool:
        """Send the bytes of a request that was due at a time; whether there was an answer of any kind."""
        seen = Observation(intended_s, time.perf_counter(), num_items)
        try:
            async with asyncio.timeout(self._timeout_s), self._pool.connection() as connection:
                seen.sent_s = time.perf_counter()
                self._record_reply(seen, await connection.exchange(data))
        except TimeoutError:  # an OSError too, so it comes first
            self._record_failure(seen, TIMEOUT, f"no answer within {self._timeout_s:g} s")
        except ExchangeError as error:
            self._record_failure(seen, error.kind, str(error))
        except ConnectionRefusedError as error:
            self._record_failure(seen, "refused", str(error))
        except OSError as error:
            self._record_failure(seen, "connect", str(error))
        except asyncio.CancelledError:  # left out, it would be missing among the slow ones
            self._record_failure(seen, "unfinished", "under way when the load was ended early")
            self._recording.add(seen)
            raise
        self._recording.add(seen)
        return seen.status > 0

    def close(self) -> None:
        """Hang up, and note how it was with connections."""
        self._pool.close()
        self._recording.num_waited = self._pool.num_waited

    def _record_reply(self, seen: Observation, reply: Reply) -> None:
        seen.ended_s = reply.ended_s
        seen.status = reply.status
        seen.num_tokens, seen.token_times_s = reply.num_tokens, reply.token_times_s
        if not 200 <= reply.status < 300:
            self._record_error(seen, f"http_{reply.status}", error_message(reply.body))
        elif reply.error is not None:
            self._record_error(seen, "stream", reply.error)

    def _record_failure(self, seen: Observation, kind: str, message: str) -> None:
        seen.ended_s = time.perf_counter()
        self._record_error(seen, kind, message)

    def _record_error(self, seen: Observation, kind: str, message: str) -> None:
        seen.error = kind
        self._recording.examples.setdefault(kind, message)


RecordingCallback = Callable[[Recording], None]
_PROGRESS_INTERVAL_S = 0.5
_PAUSE_AFTER_FAILURE_S = 0.01
"""A client waits so long where nobody answered: there is nothing to measure, and no use in hammering."""


def run_load(
    target: Target,
    requests: Sequence[Request],
    load: Load,
    terms: LoadSettings,
    *,
    watch: RecordingCallback | None = None,
) -> Recording:
    """Put a load on a target; Ctrl-C ends it early.

    Args:
        target: who is asked.
        requests: that are sent in turn, for ever.
        load: how they are sent.
        terms: for how long, and with what.
        watch: called with what there is so far, twice a second.
    """
    recording = Recording(load, terms)
    with _gc_disabled(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_with_progress(target, requests, recording, watch))
        except KeyboardInterrupt:
            recording.interrupted = True
    return recording


async def fill_recording(target: Target, requests: Sequence[Request], recording: Recording) -> None:
    """The same inside an event loop: put the load of a recording on a target, and fill it."""
    asker = RequestSender(target, recording)
    encoded = itertools.cycle([(target.encode(request), request.num_items) for request in requests])
    recording.started_s, cpu_s = time.perf_counter(), time.thread_time()
    recording.window_start_s = recording.started_s + recording.terms.warmup_s
    try:
        if isinstance(recording.load, OpenLoop):
            await _open_loop(asker, encoded, recording.load, recording)
        else:
            await _closed_loop(asker, encoded, recording.load, recording)
    finally:
        recording.ended_s = time.perf_counter()
        recording.cpu_s = time.thread_time() - cpu_s
        asker.close()


async def _with_progress(
    target: Target, requests: Sequence[Request], recording: Recording, watch: RecordingCallback | None
) -> None:
    async def look() -> None:
        while watch is not None:
            await asyncio.sleep(_PROGRESS_INTERVAL_S)
            watch(recording)

    looking = asyncio.create_task(look())
    try:
        await fill_recording(target, requests, recording)
    finally:
        looking.cancel()


async def _open_loop(
    asker: RequestSender, encoded: Iterator[tuple[bytes, int]], load: OpenLoop, recording: Recording
) -> None:
    arrivals = arrival_times(load.arrivals, load.rate_per_s, load.seed)
    async with asyncio.TaskGroup() as tasks:
        with PreciseClock() as clock:
            for offset_s in schedule_arrivals(arrivals, recording.terms):
                intended_s = recording.started_s + offset_s
                await clock.sleep_until(intended_s)
                tasks.create_task(asker.send(intended_s, *next(encoded)))


def schedule_arrivals(arrivals: Iterator[float], terms: LoadSettings) -> Iterator[float]:
    """Those arrivals, in seconds after the start, that the warm-up and what is measured consist of."""
    measured = 0
    for offset_s in arrivals:
        if terms.duration_s is not None and offset_s >= terms.warmup_s + terms.duration_s:
            return
        yield offset_s
        measured += offset_s >= terms.warmup_s
        if measured == terms.num_requests:
            return


async def _closed_loop(
    asker: RequestSender, encoded: Iterator[tuple[bytes, int]], load: ClosedLoop, recording: Recording
) -> None:
    terms = recording.terms
    tickets = itertools.count() if terms.num_requests is None else iter(range(terms.num_requests))

    def goes_on(now_s: float) -> bool:
        if now_s < recording.window_start_s:
            return True
        if terms.duration_s is not None and now_s >= recording.window_start_s + terms.duration_s:
            return False
        return next(tickets, None) is not None

    async def client() -> None:
        while goes_on(now_s := time.perf_counter()):
            if not await asker.send(now_s, *next(encoded)):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.clients):
            tasks.create_task(client())


@contextlib.contextmanager
def _gc_disabled() -> Iterator[None]:
    """No garbage is collected meanwhile: a full collection would hold every answer up. Little is left lying."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_OVERLOADED = 429


def probe(target: Target, request: Request, timeout_s: float) -> None:
    """Ask once.

    Raises:
        EngineError: there is no answer, or one that says that the request is wrong or the service not ready.
    """
    place = f"{request.method} {target.path_of(request)} at {target.host}:{target.port}"
    try:
        reply = asyncio.run(_send_once(target, request, timeout_s))
    except TimeoutError:
        raise EngineError(f"{place} was not answered within {timeout_s:g} s") from None
    except (ExchangeError, OSError) as error:
        raise EngineError(f"{place} was not answered: {error}") from None
    if reply.error is not None:
        raise EngineError(f"{place} failed in the middle: {reply.error}")
    if not 200 <= reply.status < 300 and reply.status != _OVERLOADED:
        raise EngineError(f"{place} was answered {reply.status}: {error_message(reply.body)}")


async def _send_once(target: Target, request: Request, timeout_s: float) -> Reply:
    async with asyncio.timeout(timeout_s):
        connection = await Connection.open(target)
        try:
            return await connection.send(request)
        finally:
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is to be measured.

    Attributes:
        target: who is asked.
        requests: that are sent in turn.
        loads: one after the other; each waits for the last answer to the one before.
        terms: of each.
        objectives: of a good answer.
    """

    target: Target
    requests: Sequence[Request]
    loads: Sequence[Load]
    terms: LoadSettings
    objectives: Sequence[Objective] = ()

    def run(self, watch: RecordingCallback | None = None) -> list[LoadSummary]:
        """Measure; Ctrl-C ends the load that is on, and the rest is left out.

        Raises:
            EngineError: a single request beforehand was not answered, or refused.
        """
        probe(self.target, self.requests[0], self.terms.timeout_s)
        summaries = []
        for load in self.loads:
            recording = run_load(self.target, self.requests, load, self.terms, watch=watch)
            summaries.append(summarise_load(recording, self.objectives))
            if recording.interrupted:
                break
        return summaries

    def to_json(self) -> dict[str, Any]:
        """What the loads have in common, for programs."""
        return {
            "warmup_s": self.terms.warmup_s,
            "max_connections": self.terms.max_connections,
            "timeout_s": self.terms.timeout_s,
            "objectives_ms": {objective.metric: 1e3 * objective.limit_s for objective in self.objectives},
        }
