"""How far a run is, and its learning rate."""

import pytest

from training.neural.optimization import Schedule
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


def test_one_cycle_rises_falls_and_anneals_in_straight_lines():
    run = schedule(schedule="one-cycle", learning_rate=1.0, warmup=0.25, anneal=0.25)
    rate = run.learning_rate
    assert rate(0.125) == pytest.approx((1 / 25 + 1) / 2)
    assert rate(0.25) == 1.0
    assert rate(0.5) == pytest.approx((1 / 25 + 1) / 2)
    assert rate(0.75) == pytest.approx(1 / 25)
    assert rate(0.875) == pytest.approx(1 / 50)
    assert rate(1.0) == 0


def test_one_cycle_without_an_anneal_ends_where_it_began():
    run = schedule(schedule="one-cycle", learning_rate=1.0, warmup=0.5, anneal=0)
    assert run.learning_rate(1.0) == pytest.approx(1 / 25) == run.learning_rate(0)


def test_steps_multiply_the_rate_where_they_are():
    run = schedule(schedule="step", learning_rate=1.0, warmup=0, decay_at=(0.4, 0.8), decay_factor=0.5)
    assert [run.learning_rate(done) for done in (0, 0.39, 0.4, 0.8, 1)] == [1, 1, 0.5, 0.25, 0.25]


def test_a_constant_rate_is_constant_after_the_warmup():
    run = schedule(schedule="constant", learning_rate=0.5, warmup=0.1)
    assert run.learning_rate(0.05) == 0.25
    assert {run.learning_rate(done) for done in (0.1, 0.5, 1)} == {0.5}


def test_time_that_was_used_before_counts():
    clock = Clock()
    run = schedule(clock, steps_per_epoch=10**6, max_minutes=1)
    run.resume_from(30)
    clock.now += 15
    assert run.seconds == 45
    assert run.done(1) == 0.75
