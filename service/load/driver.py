"""Puts a load on a target and records what comes of it."""

import asyncio
import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import uvloop

from service.load.arrivals import arrival_times
from service.load.asking import RequestSender
from service.load.clock import PreciseClock
from service.load.loads import ClosedLoop, Load, LoadSettings, OpenLoop
from service.load.observation import Recording
from service.load.target import Request, Target

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
