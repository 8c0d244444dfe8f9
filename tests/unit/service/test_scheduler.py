"""The scheduler's promises one by one; all orders of events are in tests/property."""

import pytest

from models.errors import DeadlineExceededError, DrainingError, OverloadedError
from service.engine.job import Job
from service.engine.scheduler import Scheduler, SchedulerLimits


class Listener:
    def __init__(self):
        self.events, self.outcome = [], None

    def event(self, event):
        self.events.append(event)
        return True

    def result(self, result):
        self.outcome = result

    def error(self, error):
        self.outcome = error


def endless(name, log):
    while True:
        log.append(name)
        yield None


def made(clock=lambda: 0.0, **limits):
    return Scheduler(clock=clock, limits=SchedulerLimits(**{"max_jobs": 3, **limits}))


def test_jobs_take_turns():
    scheduler, log = made(), []
    for name in "abc":
        scheduler.submit(Job(endless(name, log), Listener(), deadline_s=1))
    for _ in range(7):
        scheduler.step()
    assert "".join(log) == "abcabca"


def test_one_job_too_many_is_told_when_to_come_back():
    scheduler = made(max_jobs=1, retry_after_s=2.5)
    scheduler.submit(Job(endless("a", []), Listener(), deadline_s=1))
    with pytest.raises(OverloadedError, match="1 requests") as caught:
        scheduler.submit(Job(endless("b", []), Listener(), deadline_s=1))
    assert caught.value.retry_after_s == 2.5


def test_out_of_time_is_an_error_that_names_the_limit():
    now, listener = [0.0], Listener()
    scheduler = made(clock=lambda: now[0])
    scheduler.submit(Job(endless("a", []), listener, deadline_s=0.25))
    scheduler.step()
    now[0] = 0.3
    scheduler.step()
    assert isinstance(listener.outcome, DeadlineExceededError)
    assert "250 ms" in str(listener.outcome)


def test_a_cancelled_job_is_closed_at_the_next_step():
    scheduler, log = made(), []
    job = Job(endless("a", log), Listener(), deadline_s=1)
    scheduler.submit(job)
    scheduler.step()
    scheduler.cancel(job)
    assert not scheduler.step()
    assert (log, len(scheduler), job.work.gi_frame) == (["a"], 0, None)


def test_a_job_rests_until_its_events_are_taken():
    scheduler, listener = made(max_untaken_events=2), Listener()
    job = Job((n for n in range(1, 6)), listener, deadline_s=1)
    scheduler.submit(job)
    while scheduler.step():
        pass
    assert listener.events == [1, 2]
    scheduler.take(job)
    while scheduler.step():
        pass
    assert listener.events == [1, 2, 3]


def test_a_resting_job_that_is_out_of_time_is_ended_when_woken():
    now, listener = [0.0], Listener()
    scheduler = made(clock=lambda: now[0], max_untaken_events=1)
    job = Job((n for n in range(1, 6)), listener, deadline_s=1)
    scheduler.submit(job)
    scheduler.step()
    now[0] = 2.0
    assert not scheduler.step()
    scheduler.wake(job)
    scheduler.step()
    assert isinstance(listener.outcome, DeadlineExceededError)


def test_draining_finishes_what_was_admitted():
    scheduler, listener = made(), Listener()
    scheduler.submit(Job(iter_to("done"), listener, deadline_s=1))
    scheduler.drain()
    with pytest.raises(DrainingError):
        scheduler.submit(Job(iter_to("late"), Listener(), deadline_s=1))
    while scheduler.step():
        pass
    assert listener.outcome == "done"


def iter_to(result):
    yield None
    return result
