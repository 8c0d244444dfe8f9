"""When requests are due."""

from itertools import islice

import numpy as np
import pytest

from service.bench.driver import schedule_arrivals
from service.bench.plan import LoadSettings, arrival_times, constant_arrivals, poisson_arrivals


def test_constant_arrivals_keep_the_beat_for_ever():
    times = np.array(list(islice(constant_arrivals(400), 10_001)))
    assert times[0] == 0
    assert times[-1] == 25.0
    np.testing.assert_allclose(np.diff(times), 1 / 400, rtol=1e-9)


def test_poisson_gaps_are_exponential_with_the_rate_asked_for():
    gaps = np.diff(list(islice(poisson_arrivals(50, seed=3), 20_000)))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)
    assert np.median(gaps) == pytest.approx(np.log(2) / 50, rel=0.05)


def test_a_seed_draws_the_same_times_again():
    first, again, other = (list(islice(arrival_times("poisson", 10, seed), 50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_duration_bounds_the_warm_up_and_what_is_measured():
    times = list(schedule_arrivals(constant_arrivals(10), LoadSettings(duration_s=1, warmup_s=0.5)))
    assert len(times) == 15
    assert times[-1] < 1.5


def test_a_number_of_requests_counts_those_after_the_warm_up():
    times = list(schedule_arrivals(constant_arrivals(10), LoadSettings(num_requests=4, warmup_s=0.5)))
    assert [time for time in times if time >= 0.5] == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert len(times) == 9
