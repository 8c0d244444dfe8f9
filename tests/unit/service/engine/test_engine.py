"""The async engine: outcomes reach the event loop, and its thread survives every fault."""

import asyncio
import threading
import time

import pytest

from models.errors import DrainingError, EngineFailedError, InputError
from service.engine.engine import Engine
from service.engine.metrics import Metrics
from service.engine.scheduler import Scheduler, SchedulerLimits


def run_with_engine(test, *, timeout_s=5.0):
    async def main():
        scheduler = Scheduler(
            clock=time.monotonic, limits=SchedulerLimits(max_jobs=10, max_pending_events=2), metrics=Metrics()
        )
        engine = Engine(scheduler, request_timeout_s=timeout_s)
        engine.start()
        try:
            return await test(engine)
        finally:
            await engine.close(drain_timeout_s=0)

    return asyncio.run(main())


def work(*events, result=None, error=None, log=None):
    try:
        yield from events
        if error is not None:
            raise error
        return result
    finally:
        if log is not None:
            log.append(threading.current_thread().name)


def test_work_is_done_on_the_model_thread():
    log = []
    assert run_with_engine(lambda engine: engine.run(work(1, None, 2, 3, 4, result="r", log=log))) == "r"
    assert log == ["model"]


def test_a_stream_gives_events_and_last_the_result():
    async def collect(engine):
        return [item async for item in engine.stream(work(1, None, 2, 3, 4, result="r"))]

    assert run_with_engine(collect) == [1, 2, 3, 4, "r"]


def test_domain_errors_pass_and_others_become_ours():
    async def both(engine):
        with pytest.raises(InputError):
            await engine.run(work(error=InputError("no")))
        with pytest.raises(EngineFailedError):
            await engine.run(work(error=ZeroDivisionError()))
        return await engine.run(work(result="still there"))

    assert run_with_engine(both) == "still there"


def test_closing_a_stream_cancels_its_work():
    log = []

    async def close_early(engine):
        stream = engine.stream(work(*range(1, 1000), log=log))
        assert await anext(stream) == 1
        await stream.aclose()
        await until(lambda: len(engine.scheduler) == 0)

    run_with_engine(close_early)
    assert log == ["model"]


def test_a_stream_that_rests_ends_at_its_deadline_though_the_loop_looks_early(monkeypatch):
    async def rest(engine):
        loop = asyncio.get_running_loop()
        on_time = loop.call_later

        def early(delay_s, *call):  # like uvloop's rounding
            return on_time(max(0.0, delay_s - 0.002), *call)

        monkeypatch.setattr(loop, "call_later", early)
        stream = engine.stream(work(*range(1, 1000)))
        assert await anext(stream) == 1
        await until(lambda: len(engine.scheduler) == 0)
        await stream.aclose()

    run_with_engine(rest, timeout_s=0.1)


def test_cancelling_the_caller_cancels_the_work():
    def endless():
        while True:
            time.sleep(0.001)
            yield None

    async def cancel(engine):
        future = engine.run(endless())
        await asyncio.sleep(0.01)
        future.cancel()
        await until(lambda: len(engine.scheduler) == 0)

    run_with_engine(cancel)


def test_unfinished_job_gets_a_draining_error_at_close():
    async def leave(engine):
        future = engine.run(forever())
        await engine.close(drain_timeout_s=0.02)
        with pytest.raises(DrainingError):
            await future

    def forever():
        while True:
            time.sleep(0.001)
            yield None

    run_with_engine(leave)


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come about")
