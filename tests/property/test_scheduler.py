"""The scheduler against a simple model of its guarantees, for any order of events."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from models.calls import Predict, Read
from models.errors import DeadlineExceededError, DrainingError, EngineFailedError, InputError, OverloadedError
from models.language_model import STATE
from service.engine.job import Job, RequestOptions
from service.engine.scheduler import Scheduler, SchedulerLimits
from tests.support.fake_models import NumberModel, Numbers, take_turn

MAX_JOBS, MAX_TOKENS, MAX_UNTAKEN = 3, 100, 2
MAX_AGE_S, MIN_LATE_JOBS = 0.5, 1
MOST_JOBS = 3 + 3 // 2 + 3 // 3
"""Jobs at once if two owners with two kinds of jobs come one after the other."""
ENDS = ("result", "invalid", "fault")
CHUNKS = (None, "event", "ask", "read", "poison", "poisoned text")
POISON = -1
MODEL = NumberModel(poison=POISON)


@pytest.fixture(autouse=True, scope="module")
def _few_late_jobs():
    """Let the age of so few jobs matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.engine.scheduler.MIN_LATE_JOBS", MIN_LATE_JOBS)
        yield


def charged(options):
    """Return the tokens that a request counts as."""
    return min(options.tokens, MAX_TOKENS // 2 + 1)


class Recorder:
    """Record every delivered item."""

    def __init__(self):
        self.events, self.outcomes, self.silent = [], [], False

    def __call__(self, item):
        assert not self.silent
        (self.outcomes if item.last else self.events).append(item.value)


def work(chunks, end, number, log):
    """Job that logs and yields its chunks, calls a model in between, and ends as specified by `end`."""
    for chunk in chunks:
        log.append(chunk)
        if chunk == "ask":
            log_probs = yield from Predict(MODEL, Numbers([number]))
            assert log_probs.tolist() == [[number] * 7]
        elif chunk == "read":
            yield from Read(MODEL, Numbers([number]), np.zeros((1, 90), int), np.array([90]), STATE)
        elif chunk == "poison":
            yield from Predict(MODEL, Numbers([POISON]))
        elif chunk == "poisoned text":
            yield from Read(MODEL, Numbers([POISON]), np.zeros((1, 90), int), np.array([90]), STATE)
        else:
            yield chunk
    if end == "invalid":
        raise InputError("wrong")
    if end == "fault":
        raise ZeroDivisionError
    return "done"


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, steps, takes, cancels, advances time and drains; also receives the scheduler's metrics."""

    jobs = Bundle("jobs")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.num_ended = 0
        self.scheduler = Scheduler(
            clock=lambda: self.now,
            limits=SchedulerLimits(
                max_jobs=MAX_JOBS,
                max_tokens=MAX_TOKENS,
                max_age_s=MAX_AGE_S,
                max_pending_events=MAX_UNTAKEN,
                slice_s=2e-4,
                bulk_slice_s=2e-4,
            ),
            metrics=self,
        )
        self.live = []
        self.draining = False
        self.queue_time = SimpleNamespace(observe=self.started)
        self.ended_jobs = SimpleNamespace(labels=lambda how: SimpleNamespace(inc=partial(self.ended, how)))

    def started(self, waited_s):
        assert waited_s >= 0

    def rejected(self, reason):
        assert reason in {"requests", "tokens", "age", "share_exceeded", "draining"}

    def stepped(self, seconds):
        assert seconds >= 0

    def ended(self, how):
        assert how in {"done", "failed", "cancelled", "deadline"}
        self.num_ended += 1

    def answered(self, kind, rows):
        assert kind in {"predict", "read"}
        assert 1 <= rows <= MOST_JOBS

    @rule(
        target=jobs,
        chunks=st.lists(st.sampled_from(CHUNKS), max_size=6),
        end=st.sampled_from(ENDS),
        bulk=st.booleans(),
        tokens=st.integers(0, 150),
        owner=st.sampled_from(["one", "other"]),
    )
    def submit(self, chunks, end, bulk, tokens, owner):
        recorder, log = Recorder(), []
        asked = work(chunks, end, len(self.live), log)
        options = RequestOptions(bulk=bulk, tokens=tokens, owner=owner)
        job = Job(asked, recorder, self.now + 10, options, streams=True)
        try:
            self.scheduler.submit(job)
        except DrainingError:
            assert self.draining
            return multiple()
        except OverloadedError:
            assert self.is_too_much(options) or self.is_too_late(options)
            return multiple()
        assert not self.is_too_much(options, job)
        assert not self.is_too_late(options, job)
        entry = (job, recorder, chunks, end, log)
        self.live.append(entry)
        return entry

    def is_too_much(self, options, admitted=None):
        """Return whether a request exceeds the maximum and the share of its owner and kind."""
        others = [job.options for job in self.scheduler.admission.jobs if job is not admitted]
        return any(
            sum(map(cost, others)) + cost(options) > maximum
            and mine + cost(options) > maximum // len({one.party for one in (options, *others) if cost(one)})
            for maximum, cost in ((MAX_JOBS, lambda _: 1), (MAX_TOKENS, charged))
            if (mine := sum(cost(one) for one in others if one.party == options.party)) or cost is not charged
        )

    def is_too_late(self, options, admitted=None):
        """Return whether interactive jobs are old and most are of the request's owner, by an equal part of each."""
        jobs = [job for job in self.scheduler.admission.jobs if not (job.options.bulk or job.parked)]
        ages = [self.now - job.submitted_s for job in jobs if job is not admitted]
        owners = [job.options.owner for job in jobs if job is not admitted]
        if options.bulk or len(ages) < MIN_LATE_JOBS:
            return False
        part = len(owners) / len({options.owner, *owners})
        return owners.count(options.owner) >= part and sum(ages) > MAX_AGE_S * len(ages)

    @rule()
    def step(self):
        take_turn(self.scheduler)

    @rule(entry=jobs)
    def event_taken(self, entry):
        job, *_ = entry
        if job.pending and not job.cancelled:
            self.scheduler.event_taken(job)

    @rule(entry=consumes(jobs))
    def cancel(self, entry):
        job, recorder, *_, log = entry
        self.scheduler.cancel(job)
        recorder.silent = True
        steps = len(log)
        for _ in range(2 * MAX_JOBS):
            take_turn(self.scheduler)
        assert len(log) == steps  # no further step

    @rule(seconds=st.sampled_from([0.25, 1.0, 20.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @precondition(lambda self: not self.draining)
    @rule()
    def drain(self):
        self.scheduler.drain()
        self.draining = True

    @invariant()
    def never_more_than_the_limit(self):
        assert 0 <= self.scheduler.admission.num_waiting <= len(self.scheduler) <= MOST_JOBS
        assert all(len(job.pending) <= MAX_UNTAKEN for job, *_ in self.live)
        assert self.scheduler.admission.num_tokens.used <= MAX_TOKENS + 3 * (MAX_TOKENS // 2 + 1)

    @invariant()
    def nobody_is_answered_twice(self):
        assert all(len(recorder.outcomes) <= 1 for _, recorder, *_ in self.live)

    def teardown(self):
        """Run all jobs to their end and check that no outcome is lost or wrong."""
        for _ in range(1000):
            for job, recorder, *_ in self.live:
                if job.pending and not recorder.silent:
                    self.scheduler.event_taken(job)
            if not take_turn(self.scheduler) and not len(self.scheduler):
                break
        assert len(self.scheduler) == 0
        admission = self.scheduler.admission
        assert (admission.num_waiting, admission.num_jobs.used, admission.num_tokens.used) == (0, 0, 0)
        assert self.num_ended == len(self.live)
        for job, recorder, chunks, end, _ in self.live:
            assert recorder.silent or len(recorder.outcomes) == 1
            assert job.work.gi_frame is None  # finished or closed
            if recorder.outcomes:
                check_outcome(recorder, chunks, end)


def check_outcome(recorder, chunks, end):
    outcome = recorder.outcomes[0]
    if isinstance(outcome, DeadlineExceededError):
        return
    poisoned = [place for place, chunk in enumerate(chunks) if chunk in {"poison", "poisoned text"}]
    reached = chunks[: poisoned[0]] if poisoned else chunks
    assert recorder.events == ["event"] * reached.count("event")
    if poisoned:
        assert isinstance(outcome, EngineFailedError)
        return
    expected = {"result": str, "invalid": InputError, "fault": EngineFailedError}[end]
    assert isinstance(outcome, expected)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
