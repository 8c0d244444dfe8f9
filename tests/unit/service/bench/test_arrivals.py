"""Due times of requests, and precise sleeping."""

import asyncio
import signal
import time
from itertools import islice

import numpy as np
import pytest

from service.bench.driver import PreciseClock, schedule_arrivals
from service.bench.plan import LoadSettings, OpenLoop

pytestmark = pytest.mark.timeout(method="thread")  # the clock needs SIGALRM itself


def test_constant_arrivals_keep_the_beat_for_ever():
    times = np.array(list(islice(OpenLoop(400, "constant").arrival_times(), 10_001)))
    assert times[0] == 0
    assert times[-1] == 25.0
    np.testing.assert_allclose(np.diff(times), 1 / 400, rtol=1e-9)


def test_poisson_gaps_are_exponential_with_the_rate_asked_for():
    gaps = np.diff(list(islice(OpenLoop(50, seed=3).arrival_times(), 20_000)))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)
    assert np.median(gaps) == pytest.approx(np.log(2) / 50, rel=0.05)


def test_a_seed_draws_the_same_times_again():
    first, again, other = (list(islice(OpenLoop(10, seed=seed).arrival_times(), 50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_duration_bounds_the_warm_up_and_what_is_measured():
    times = list(schedule_arrivals(OpenLoop(10, "constant"), LoadSettings(duration_s=1, warmup_s=0.5), 0.0))
    assert len(times) == 15
    assert times[-1] < 1.5


def test_a_number_of_requests_counts_those_after_the_warm_up():
    times = list(schedule_arrivals(OpenLoop(10, "constant"), LoadSettings(num_requests=4, warmup_s=0.5), 0.0))
    assert [time for time in times if time >= 0.5] == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert len(times) == 9


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
    assert sorted(late)[20] < 0.0005  # event loops have a resolution of 1 ms


def test_late_sleeper_yields_to_other_tasks():
    async def turns():
        done = []
        task = asyncio.create_task(asyncio.sleep(0, done.append("other")))
        with PreciseClock() as clock:
            await clock.sleep_until(time.perf_counter() - 1)
        await task
        return done

    assert asyncio.run(turns()) == ["other"]


def test_a_clock_leaves_no_alarm_behind():
    async def left_early():
        with PreciseClock() as clock:
            await asyncio.wait({asyncio.create_task(clock.sleep_until(time.perf_counter() + 60))}, timeout=0)

    asyncio.run(left_early())
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_sleeper_can_be_woken_by_cancelling():
    async def asleep():
        with PreciseClock() as clock:
            async with asyncio.timeout(0.01):
                await clock.sleep_until(time.perf_counter() + 60)

    with pytest.raises(TimeoutError):
        asyncio.run(asleep())
