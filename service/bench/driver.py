"""Runs of loads: probe the target, send requests on schedule, record replies.

The clock uses a system alarm, accurate to about 10 µs; an event loop's timers are accurate to
milliseconds. Garbage collection is disabled during a load: a full one delays every reply.
"""

import asyncio
import gc
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Self

import uvloop

from models.errors import EngineError
from service.bench.connection import Connection, error_message
from service.bench.plan import ClosedLoop, Load, LoadSettings, OpenLoop, Request, Target
from service.bench.results import TIMEOUT, Observation, Recording
from service.http_client import ConnectionPool, ExchangeError

_LEAST_WAIT_S = 1e-6  # 0 would disable the alarm
_PROGRESS_INTERVAL_S = 0.5
_PAUSE_AFTER_FAILURE_S = 0.01
"""Pause of a closed-loop client after a failure, not to flood the server."""
RecordingCallback = Callable[[Recording], None]


class PreciseClock:
    """Clock for one sleeping task, woken by the alarm signal; for the main thread only.

    A sleeping thread that wakes the loop is worse: 0.1 ms late instead of 0.03 ms, and it waits twice for a core
    on a busy machine.
    """

    def __init__(self) -> None:
        self._expired = asyncio.Event()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, self._expired.set)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGALRM)

    async def sleep_until(self, time_s: float) -> None:
        """Sleep until a time of `perf_counter`; if past, yield to other tasks once."""
        left_s = time_s - time.perf_counter()
        if left_s <= 0:
            await asyncio.sleep(0)
            return
        self._expired.clear()
        signal.setitimer(signal.ITIMER_REAL, max(left_s, _LEAST_WAIT_S))
        await self._expired.wait()


class LoadRun:
    """Run of a load, with the requests in turn; the recording defines load and terms."""

    def __init__(self, target: Target, requests: Sequence[Request], recording: Recording) -> None:
        load, terms = recording.load, recording.terms
        self._recording, self._terms = recording, terms
        self._encoded = itertools.cycle([(target.encode(request), request.num_items) for request in requests])
        self._pool = ConnectionPool(
            partial(Connection.open, target),
            load.clients if isinstance(load, ClosedLoop) else terms.max_connections,
        )

    async def run(self, watch: RecordingCallback | None) -> None:
        """Send the requests; call `watch` now and then with the recording."""

        async def report() -> None:
            while watch is not None:
                await asyncio.sleep(_PROGRESS_INTERVAL_S)
                watch(recording)

        recording = self._recording
        reporter = asyncio.create_task(report())
        recording.started_s, cpu_s = time.perf_counter(), time.thread_time()
        arrivals = schedule_arrivals(recording.load, self._terms, recording.started_s)
        recording.window_start_s = recording.started_s + self._terms.warmup_s
        try:
            async with asyncio.TaskGroup() as tasks:
                if isinstance(recording.load, OpenLoop):
                    with PreciseClock() as clock:
                        for offset_s in arrivals:
                            await clock.sleep_until(recording.started_s + offset_s)
                            tasks.create_task(self._send(recording.started_s + offset_s))
                else:
                    for _ in range(recording.load.clients):
                        tasks.create_task(self._send_in_turn(arrivals))
        finally:
            recording.ended_s = time.perf_counter()
            recording.cpu_s = time.thread_time() - cpu_s
            recording.num_waited = self._pool.num_waited
            self._pool.close()
            reporter.cancel()

    async def _send_in_turn(self, arrivals: Iterator[float]) -> None:
        """Send requests as one client of a closed loop."""
        for offset_s in arrivals:
            if not await self._send(self._recording.started_s + offset_s):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _send(self, intended_s: float) -> bool:
        """Send the next request, due at `intended_s`; return true if any reply arrived."""
        data, num_items = next(self._encoded)
        seen = Observation(intended_s, time.perf_counter(), num_items)
        error: tuple[str, str] | None = None
        try:
            async with asyncio.timeout(self._terms.timeout_s), self._pool.connection() as connection:
                seen.sent_s = time.perf_counter()
                reply = await connection.exchange(data)
            seen.ended_s, seen.status = reply.ended_s, reply.status
            seen.num_tokens, seen.token_times_s = reply.num_tokens, reply.token_times_s
            if not 200 <= reply.status < 300:
                error = f"http_{reply.status}", error_message(reply.body)
            elif reply.error is not None:
                error = "stream", reply.error
        except TimeoutError:  # a subclass of OSError, so it comes first
            error = TIMEOUT, f"no reply within {self._terms.timeout_s:g} s"
        except ExchangeError as failure:
            error = failure.kind, str(failure)
        except OSError as failure:
            error = "refused" if isinstance(failure, ConnectionRefusedError) else "connect", str(failure)
        except asyncio.CancelledError:  # recorded, or slow requests would be too few
            error = "unfinished", "in flight when the load was ended early"
            raise
        finally:
            if error is not None:
                seen.ended_s = seen.ended_s or time.perf_counter()
                seen.error = error[0]
                self._recording.examples.setdefault(*error)
            self._recording.add(seen)
        return seen.status > 0


def schedule_arrivals(load: Load, terms: LoadSettings, started_s: float) -> Iterator[float]:
    """Yield seconds after `started_s` when requests are due, warm-up included; in a closed loop, now."""
    offsets, measured = iter(lambda: time.perf_counter() - started_s, None), 0
    for offset_s in load.arrival_times() if isinstance(load, OpenLoop) else offsets:
        if terms.duration_s is not None and offset_s >= terms.warmup_s + terms.duration_s:
            return
        yield offset_s
        measured += offset_s >= terms.warmup_s
        if measured == terms.num_requests:
            return


def run_load(
    target: Target,
    requests: Sequence[Request],
    load: Load,
    terms: LoadSettings,
    *,
    watch: RecordingCallback | None = None,
) -> Recording:
    """Run a load against a target, with the requests in turn; Ctrl-C ends it early.

    `watch` is called with the recording so far, twice per second.
    """
    recording = Recording(load, terms)
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(LoadRun(target, requests, recording).run(watch))
    except KeyboardInterrupt:
        recording.interrupted = True
    finally:
        gc.enable()
    return recording


def probe(target: Target, request: Request, timeout_s: float) -> None:
    """Send one request as a check.

    Raises:
        EngineError: the reply is incomplete, or its status is neither 2xx nor 429.
    """
    terms = LoadSettings(num_requests=1, timeout_s=timeout_s)
    recording = run_load(target, [request], ClosedLoop(1), terms)
    if recording.interrupted:
        raise KeyboardInterrupt
    [seen] = recording.observations
    if seen.error in {None, "http_429"}:
        return
    what = f"got status {seen.status}" if seen.status else "got no reply"
    if seen.error == "stream":
        what = "failed during the stream"
    problem = recording.examples[str(seen.error)]
    raise EngineError(f"POST {target.path_of(request)} at {target.host}:{target.port} {what}: {problem}")
