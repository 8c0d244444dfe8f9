"""How far a run is, and its learning rate."""

import pytest

from training.neural.schedule import Schedule
from training.neural.settings import TrainSettings


class Clock:
    """Stands still until it is set."""

    now = 100.0

    def __call__(self):
        return self.now


def schedule(clock=None, steps_per_epoch=10, **changes):
    return Schedule(TrainSettings(**changes), steps_per_epoch=steps_per_epoch, clock=clock or Clock())


def test_updates_count_where_time_is_not_bounded():
    assert schedule(max_minutes=None, epochs=4).done(10) == 0.25


def test_time_counts_where_it_runs_out_first():
    clock = Clock()
    run = schedule(clock, max_minutes=1, epochs=4)
    clock.now += 45
    assert run.done(10) == 0.75
    clock.now += 45
    assert run.done(10) == 1.0
    assert run.reached(10) == "max_minutes"


def test_the_bound_that_ends_a_run_is_named():
    assert schedule(epochs=2).reached(20) == "epochs"
    assert schedule(epochs=2, max_steps=5).reached(5) == "max_steps"
    assert schedule(epochs=2, max_steps=50).reached(20) == "epochs"


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    run = schedule(learning_rate=0.5, warmup=0.2)
    rates = [run.learning_rate(share / 100) for share in range(101)]
    assert max(rates) == rates[20] == 0.5
    assert rates[10] == pytest.approx(0.25)
    assert rates[60] == pytest.approx(0.25)  # half way down
    assert 0 < rates[0] < 0.01
    assert rates[100] == pytest.approx(0)


def test_without_warmup_the_rate_starts_at_its_peak():
    assert schedule(learning_rate=0.5, warmup=0).learning_rate(0) == 0.5
