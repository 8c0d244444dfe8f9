"""Sleeping until a time."""

import asyncio
import time
from pathlib import Path

import pytest

from service.bench import driver as clocks
from service.bench.driver import PreciseClock


async def lateness_s(count, gap_s):
    late, due_s = [], time.perf_counter()
    with PreciseClock() as clock:
        for _ in range(count):
            due_s += gap_s
            await clock.sleep_until(due_s)
            late.append(time.perf_counter() - due_s)
    return late


def test_it_wakes_at_the_time_and_never_before():
    late = asyncio.run(lateness_s(100, 0.0023))
    assert min(late) >= 0
    assert sorted(late)[20] < 0.0005  # a millisecond is what event loops count in


def test_other_systems_make_do_with_the_event_loop(monkeypatch):
    monkeypatch.setattr(clocks, "_LIBC", object())
    late = asyncio.run(lateness_s(5, 0.002))
    assert min(late) > -0.001


def test_whoever_is_late_lets_others_have_their_turn():
    async def turns():
        done = []
        task = asyncio.create_task(asyncio.sleep(0, done.append("other")))
        with PreciseClock() as clock:
            await clock.sleep_until(time.perf_counter() - 1)
        await task
        return done

    assert asyncio.run(turns()) == ["other"]


def num_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_clock_leaves_no_file_behind():
    before = num_files()
    asyncio.run(lateness_s(1, 0.001))
    assert num_files() == before


def test_a_sleeper_can_be_woken_by_cancelling():
    async def asleep():
        with PreciseClock() as clock:
            async with asyncio.timeout(0.01):
                await clock.sleep_until(time.perf_counter() + 60)

    with pytest.raises(TimeoutError):
        asyncio.run(asleep())
