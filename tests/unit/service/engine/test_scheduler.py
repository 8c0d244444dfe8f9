"""Guarantees of the scheduler one by one; tests/property covers any order of events."""

import numpy as np
import pytest

from models.calls import Predict, Read
from models.errors import DeadlineExceededError, DrainingError, EngineFailedError, OverloadedError
from models.language_model import STATE
from service.engine.batching import SliceResult
from service.engine.call_queues import ImmediateBatch
from service.engine.job import Job, RequestOptions
from service.engine.metrics import Metrics
from service.engine.scheduler import Scheduler, SchedulerLimits
from tests.support.fake_models import NumberModel, Numbers, take_turn


class Listener:
    def __init__(self):
        self.events, self.outcome = [], None

    def __call__(self, item):
        if item.last:
            self.outcome = item.value
        else:
            self.events.append(item.value)


def endless(name, log):
    while True:
        log.append(name)
        yield None


def made(clock=lambda: 0.0, **limits):
    return Scheduler(clock=clock, limits=SchedulerLimits(**{"max_jobs": 3, **limits}), metrics=Metrics())


def test_jobs_take_turns():
    scheduler, log = made(), []
    for name in "abc":
        scheduler.submit(Job(endless(name, log), Listener(), deadline_s=1))
    for _ in range(3):
        take_turn(scheduler)
    assert "".join(log) == "abcabcabc"


def test_one_job_too_many_is_told_when_to_come_back():
    scheduler = made(max_jobs=1, retry_after_s=2.5)
    scheduler.submit(Job(endless("a", []), Listener(), deadline_s=1))
    with pytest.raises(OverloadedError, match="1 requests") as caught:
        scheduler.submit(Job(endless("b", []), Listener(), deadline_s=1))
    assert caught.value.retry_after_s == 2.5


def old(count=32, *, age_s=0.41, owner="", parks=False, **options):
    """Scheduler with interactive requests of an age, and its metrics."""
    now, metrics = [0.0], Metrics()
    limits = SchedulerLimits(max_jobs=100, max_pending_events=1, retry_after_s=2.5)
    scheduler = Scheduler(clock=lambda: now[0], limits=limits, metrics=metrics)
    for _ in range(count):
        job = Job(endless("", []), Listener(), 9, RequestOptions(owner=owner, **options))
        scheduler.submit(job)
        job.parked = parks
    now[0] = age_s
    return scheduler, metrics


def test_an_interactive_request_is_refused_while_those_before_are_old():
    scheduler, metrics = old()
    with pytest.raises(OverloadedError, match=r"32 requests .* 1\.0 times as old .* the 0\.4 s") as caught:
        submitted(scheduler)
    assert caught.value.retry_after_s == 2.5
    assert b'gramophone_rejections_total{reason="age"} 1.0' in metrics.exposition()


@pytest.mark.parametrize(
    "before",
    [
        {"age_s": 0.39},
        {"count": 31},
        {"bulk": True},
        {"parks": True},
        {"owner": "other"},
        {"tokens": 1024 + 10},  # 0.05 s more
    ],
    ids=str,
)
def test_it_is_admitted_if_those_before_do_not_hold_it_up(before):
    scheduler, _ = old(**before)
    submitted(scheduler)
    assert len(scheduler) == before.get("count", 32) + 1


def test_a_bulk_request_is_admitted_however_old_the_interactive_ones_are():
    scheduler, _ = old(age_s=100.0)
    submitted(scheduler, bulk=True)
    assert len(scheduler) == 33


def test_out_of_time_is_an_error_that_names_the_limit():
    now, listener = [0.0], Listener()
    scheduler = made(clock=lambda: now[0])
    scheduler.submit(Job(endless("a", []), listener, deadline_s=0.25))
    take_turn(scheduler)
    now[0] = 0.3
    take_turn(scheduler)
    assert isinstance(listener.outcome, DeadlineExceededError)
    assert "250 ms" in str(listener.outcome)


def test_a_cancelled_job_is_closed_at_the_next_step():
    scheduler, log = made(), []
    job = Job(endless("a", log), Listener(), deadline_s=1)
    scheduler.submit(job)
    take_turn(scheduler)
    scheduler.cancel(job)
    assert not take_turn(scheduler)
    assert (log, len(scheduler), job.work.gi_frame) == (["a"], 0, None)


def submitted(scheduler, owner="", *, bulk=False, tokens=0, work=None):
    job = Job(
        work or endless(owner, []),
        Listener(),
        deadline_s=1,
        options=RequestOptions(owner=owner, bulk=bulk, tokens=tokens),
    )
    scheduler.submit(job)
    return job


def test_tokens_are_counted_and_given_back():
    scheduler = made(max_tokens=100)
    jobs = [submitted(scheduler, tokens=tokens) for tokens in (20, 50)]
    with pytest.raises(
        OverloadedError,
        match=r"70 tokens are queued or running and this request adds 40; the maximum is 100$",
    ):
        submitted(scheduler, tokens=40)
    assert scheduler.admission.num_tokens.used == 70
    scheduler.cancel(jobs[1])
    take_turn(scheduler)
    submitted(scheduler, tokens=40)
    assert scheduler.admission.num_tokens.used == 60


@pytest.mark.parametrize("bulk", [True, False])
def test_a_job_of_any_number_of_tokens_leaves_capacity_to_others(bulk):
    scheduler = made(max_jobs=9, max_tokens=100)
    largest = submitted(scheduler, bulk=bulk, tokens=10**9)
    for tokens in (10**9, 60):
        with pytest.raises(OverloadedError, match=r"51 tokens .* adds 51; the maximum is 100"):
            submitted(scheduler, bulk=bulk, tokens=tokens)
    submitted(scheduler, bulk=bulk, tokens=49)
    submitted(scheduler, bulk=not bulk, tokens=50)  # the share of the other kind
    submitted(scheduler, "other", bulk=bulk, tokens=10**9)  # and the only one of another key
    scheduler.cancel(largest)
    take_turn(scheduler)
    assert scheduler.admission.num_tokens.used == 49 + 50 + 51


def filled(scheduler, owner, **options):
    """Submit jobs of an owner until one is refused; return their number and the error."""
    for number in range(10**4):
        try:
            submitted(scheduler, owner, **options)
        except OverloadedError as error:
            return number, error
    return None


def test_borrowed_capacity_returns_as_jobs_end():
    scheduler = made(max_jobs=12)
    borrowed = [submitted(scheduler, "hostile") for _ in range(12)]
    assert filled(scheduler, "hostile")[1].code == "overloaded"
    number, error = filled(scheduler, "other")
    assert (number, error.code) == (6, "share_exceeded")
    assert str(error) == (
        "18 requests are queued or running and this request adds 1; the maximum is 12, and the share of this "
        "key's interactive requests 6, of which 6 are taken"
    )
    for job in borrowed[:7]:
        scheduler.cancel(job)
    assert filled(scheduler, "hostile")[0] == 1
    assert [filled(scheduler, owner)[0] for owner in ("third", "fourth")] == [4, 3]


def test_refusals_are_counted_by_their_reason():
    scheduler = made(max_jobs=4, max_tokens=40)
    filled(scheduler, "a", tokens=20)
    filled(scheduler, "b")
    filled(scheduler, "b", bulk=True)
    filled(scheduler, "a")
    scheduler.drain()
    with pytest.raises(DrainingError):
        submitted(scheduler)
    lines = scheduler._metrics.exposition().decode().splitlines()
    told = {line for line in lines if line.startswith("gramophone_rejections_total{")}
    assert told >= {
        'gramophone_rejections_total{reason="tokens"} 1.0',
        'gramophone_rejections_total{reason="share_exceeded"} 3.0',
        'gramophone_rejections_total{reason="draining"} 1.0',
        'gramophone_rejections_total{reason="states_full"} 0.0',
    }


def test_a_job_rests_until_its_events_are_taken():
    scheduler, listener = made(max_pending_events=2), Listener()
    job = Job((n for n in range(1, 6)), listener, deadline_s=1, streams=True)
    scheduler.submit(job)
    while take_turn(scheduler):
        pass
    assert listener.events == [1, 2]
    scheduler.event_taken(job)
    while take_turn(scheduler):
        pass
    assert listener.events == [1, 2, 3]


@pytest.mark.parametrize("limit", ["max_job_pending_bytes", "max_pending_bytes"])
@pytest.mark.parametrize("event", [bytes(10), np.zeros(10, dtype=np.uint8)], ids=["bytes", "array"])
def test_a_job_rests_while_its_events_are_large(limit, event):
    scheduler, listeners = made(**{limit: 15}), [Listener(), Listener()]
    jobs = [Job((event for _ in range(5)), listener, deadline_s=1, streams=True) for listener in listeners]
    for job in jobs:
        scheduler.submit(job)
    while take_turn(scheduler):
        pass
    assert [len(listener.events) for listener in listeners] == (
        [2, 2] if limit == "max_job_pending_bytes" else [2, 1]
    )
    scheduler.cancel(jobs[0])
    scheduler.event_taken(jobs[1])
    while take_turn(scheduler):
        pass
    assert len(listeners[1].events) == 3


def test_a_resting_job_that_is_out_of_time_is_ended():
    now, listener = [0.0], Listener()
    scheduler = made(clock=lambda: now[0], max_pending_events=1)
    scheduler.submit(Job((n for n in range(1, 6)), listener, deadline_s=1, streams=True))
    take_turn(scheduler)
    now[0] = 2.0
    take_turn(scheduler)
    assert isinstance(listener.outcome, DeadlineExceededError)


def test_draining_finishes_what_was_admitted():
    scheduler, listener = made(), Listener()
    scheduler.submit(Job(iter_to("done"), listener, deadline_s=1))
    scheduler.drain()
    with pytest.raises(DrainingError):
        scheduler.submit(Job(iter_to("late"), Listener(), deadline_s=1))
    while take_turn(scheduler):
        pass
    assert listener.outcome == "done"


def iter_to(result):
    yield None
    return result


def predicting(model, number, times=1):
    for _ in range(times):
        log_probs = yield from Predict(model, Numbers([number]))
    return float(log_probs[0, 0])


def test_calls_of_a_kind_are_answered_together_and_each_gets_its_own():
    model, scheduler, listeners = NumberModel(), made(), [Listener() for _ in range(3)]
    for number, listener in enumerate(listeners):
        scheduler.submit(Job(predicting(model, number), listener, deadline_s=1))
    while take_turn(scheduler):
        pass
    assert (model.batches, [listener.outcome for listener in listeners]) == ([3], [0, 1, 2])


def test_one_that_fails_does_not_take_its_batch_with_it():
    model, scheduler, listeners = NumberModel(poison=1), made(), [Listener() for _ in range(3)]
    for number, listener in enumerate(listeners):
        scheduler.submit(Job(predicting(model, number), listener, deadline_s=1))
    while take_turn(scheduler):
        pass
    assert [listeners[0].outcome, listeners[2].outcome] == [0, 2]
    assert isinstance(listeners[1].outcome, EngineFailedError)


def test_a_long_text_is_read_in_slices_and_others_go_between():
    model, scheduler, log = NumberModel(), made(), []

    def long_text():
        yield from Read(model, Numbers([0]), np.zeros((1, 5000), int), np.array([5000]), STATE)
        log.append("long")

    def short():
        yield from predicting(model, 1, times=3)
        log.append("short")

    for work in (long_text(), short()):
        scheduler.submit(Job(work, Listener(), deadline_s=1))
    while take_turn(scheduler):
        pass
    assert log == ["short", "long"]
    assert sum(width for _, width in (b for b in model.batches if isinstance(b, tuple))) == 5000


def reading(model, tokens, log, name):
    yield from Read(model, Numbers([0]), np.zeros((1, tokens), int), np.array([tokens]), STATE)
    log.append(name)


def test_texts_join_those_that_are_read_already():
    model, scheduler, log = NumberModel(), made(slice_s=2e-3), []
    scheduler.submit(Job(reading(model, 600, log, "first"), Listener(), deadline_s=1))
    take_turn(scheduler)
    scheduler.submit(Job(reading(model, 600, log, "second"), Listener(), deadline_s=1))
    take_turn(scheduler)
    assert [rows for rows, _ in model.batches] == [1, 2]


def test_a_keystroke_waits_for_no_slice_of_the_texts_of_others():
    model, scheduler, log = NumberModel(), made(), []
    for name in ("long", "longer"):
        scheduler.submit(Job(reading(model, 5000, log, name), Listener(), deadline_s=1))
    take_turn(scheduler)
    scheduler.submit(Job(reading(model, 3, log, "keystroke"), Listener(), deadline_s=1))
    scheduler.serve_interactive()
    assert log == ["keystroke"]


def test_job_submitted_between_steps_joins_the_next_batch():
    model, scheduler, listeners = NumberModel(), made(), [Listener(), Listener()]

    def first():
        scheduler.submit(Job(predicting(model, 2, times=2), listeners[1], deadline_s=1))
        yield from predicting(model, 1, times=3)

    scheduler.submit(Job(first(), listeners[0], deadline_s=1))
    scheduler.serve_interactive()
    assert (model.batches, listeners[1].outcome) == ([1, 2, 2], 2)


def test_a_cancelled_text_leaves_those_it_was_read_with():
    model, scheduler, log = NumberModel(), made(slice_s=2e-3), []
    jobs = [Job(reading(model, 600, log, name), Listener(), deadline_s=1) for name in "ab"]
    for job in jobs:
        scheduler.submit(job)
    take_turn(scheduler)
    scheduler.cancel(jobs[0])
    while take_turn(scheduler):
        pass
    assert ([rows for rows, _ in model.batches[:2]], log) == ([2, 1], ["b"])


def test_a_long_text_has_every_other_slice_however_much_bulk_there_is():
    model, scheduler, log = NumberModel(), made(max_jobs=5), []
    for _ in range(4):
        scheduler.submit(
            Job(
                reading(model, 3000, log, "bulk"), Listener(), deadline_s=1, options=RequestOptions(bulk=True)
            )
        )
    scheduler.submit(Job(reading(model, 60_000, log, "long"), Listener(), deadline_s=1))
    while take_turn(scheduler):
        pass
    assert log == ["long", *["bulk"] * 4]


def test_bulk_gives_way_but_is_done():
    model, scheduler, log = NumberModel(), made(), []

    def named(name, times):
        yield from predicting(model, 1, times=times)
        log.append(name)

    scheduler.submit(Job(named("bulk", 3), Listener(), deadline_s=1, options=RequestOptions(bulk=True)))
    scheduler.submit(Job(named("keystroke", 3), Listener(), deadline_s=1))
    while take_turn(scheduler):
        pass
    assert log == ["keystroke", "bulk"]


def test_bulk_that_is_late_has_longer_slices_up_to_a_bound():
    now_s, model = [0.0], NumberModel()
    scheduler = made(lambda: now_s[0], idle_after_s=float("inf"))
    job = Job(
        reading(model, 9999, [], "bulk"),
        Listener(),
        deadline_s=99,
        options=RequestOptions(bulk=True, tokens=1500),
    )
    scheduler.submit(job)
    for now_s[0] in (0.0, 0.3, 0.6, 1.2, 60.0):  # estimated 0.3 s: 1500 tokens at 5000 per second
        take_turn(scheduler)
    assert [width for _, width in model.batches] == pytest.approx([60, 60, 120, 240, 250], abs=1)


def test_a_waiting_job_that_nobody_waits_for_makes_room_at_once():
    scheduler, log = made(max_jobs=1), []
    first, second = (Job(endless(name, log), Listener(), deadline_s=1) for name in "ab")
    scheduler.submit(first)
    scheduler.cancel(first)
    scheduler.submit(second)
    take_turn(scheduler)
    assert (len(scheduler), scheduler.admission.num_waiting, log) == (1, 0, ["b"])
    assert first.work.gi_frame is None  # closed, so it holds no memory


class SlowModel(NumberModel):
    """Model of which every call takes a millisecond, as every step of a job does.

    Attributes:
        now_s: time.
        log: the owner of each step.
    """

    def __init__(self):
        super().__init__()
        self.now_s, self.log = 0.0, []

    def _look_at(self, state, batch):
        self.now_s += 1e-3
        super()._look_at(state, batch)

    def work(self, name, calls=1, step_s=1e-3, model=None, rows=1):
        for _ in range(calls):
            self.log.append(name)
            self.now_s += step_s
            yield from Predict(model or self, Numbers([1] * rows))


class SlowRowsModel(SlowModel):
    """Model of which every row of a call takes ten microseconds."""

    def _look_at(self, state, batch):
        self.now_s += 1e-5 * len(state) - 1e-3
        super()._look_at(state, batch)


class LookupModel(SlowModel):
    """Model whose calls are not merged."""

    is_lookup = True


@pytest.mark.parametrize("step_s", [0.0, 1e-3], ids=["calls", "steps"])
@pytest.mark.parametrize("kind", [SlowModel, LookupModel], ids=["merged", "lookups"])
def test_a_keystroke_waits_for_few_steps_of_a_key_with_many_requests(kind, step_s):
    model = kind()
    scheduler = made(lambda: model.now_s, max_jobs=500)
    for _ in range(200):
        submitted(scheduler, "hostile", work=model.work("hostile", 50, step_s))
    take_turn(scheduler)
    began_s = model.now_s
    keystroke = submitted(scheduler, "other", work=model.work("other", 3, step_s))
    while keystroke in scheduler.admission.jobs:
        take_turn(scheduler)
    assert model.now_s - began_s < 3 * 8e-3


def test_old_requests_of_one_key_refuse_its_own_only():
    now_s = [0.0]
    scheduler = made(lambda: now_s[0], max_jobs=500)
    for _ in range(40):
        submitted(scheduler, "hostile")
    now_s[0] = 0.9
    with pytest.raises(OverloadedError, match="times as old"):
        submitted(scheduler, "hostile")
    for _ in range(20):
        submitted(scheduler, "other")
    now_s[0] = 1.8
    for _ in range(10):
        submitted(scheduler, "other")
    number, error = filled(scheduler, "other")
    assert (number, error.code) == (10, "overloaded")


def test_a_keystroke_waits_for_few_calls_of_its_own_kind():
    model = SlowRowsModel()
    scheduler = made(lambda: model.now_s, max_jobs=500)
    for _ in range(200):
        submitted(scheduler, "hostile", work=model.work("hostile", 50, 0.0, rows=200))
    take_turn(scheduler)
    began_s = model.now_s
    keystrokes = [submitted(scheduler, "other", work=model.work("other", 3, 0.0)) for _ in range(2)]
    while any(job in scheduler.admission.jobs for job in keystrokes):
        take_turn(scheduler)
    assert model.now_s - began_s < 3 * 25e-3


def test_calls_of_one_key_are_answered_in_their_order():
    batch = ImmediateBatch()
    calls = [Predict(NumberModel(), Numbers([1])) for _ in range(9)]
    model = calls[0].model
    answered = []
    for call in calls[:6]:
        batch.add(Predict(model, call.state), "one")
    expected = list(batch._running)
    while len(batch):
        answered += [call for call, _ in batch.run_slice(1).answers]
        if calls:
            expected.append(Predict(model, calls.pop().state))
            batch.add(expected[-1], "one")
    assert answered == expected


def test_a_key_that_comes_ends_the_pass_of_another():
    model = SlowModel()
    scheduler = made(lambda: model.now_s, max_jobs=500)

    def newcomer():
        submitted(scheduler, "other", work=model.work("other", 2))
        yield from model.work("hostile")

    for number in range(200):
        submitted(scheduler, "hostile", work=newcomer() if number == 100 else model.work("hostile"))
    while model.log.count("other") < 2:
        scheduler.serve_interactive()
    assert len(model.log) < 110


def test_requests_of_one_key_share_their_batches_however_many():
    model = SlowModel()
    scheduler = made(lambda: model.now_s, max_jobs=500)
    for _ in range(200):
        submitted(scheduler, work=model.work(""))
    take_turn(scheduler)
    assert model.batches == [200]


def test_bulk_requests_of_two_keys_take_turns():
    scheduler, log = made(max_jobs=500), []

    def named(name):
        log.append(name)
        yield from predicting(NumberModel(), 1)

    for owner in ["hostile"] * 100 + ["other"] * 3:
        submitted(scheduler, owner, bulk=True, work=named(owner))
    while take_turn(scheduler):
        pass
    assert log[:6] == ["hostile", "other"] * 3


def test_a_keystroke_waits_for_few_slices_of_calls_that_take_many(monkeypatch):
    model = LookupModel()
    scheduler = made(lambda: model.now_s, max_jobs=500)
    run_slice = ImmediateBatch.run_slice

    def unfinished(batch, count):
        """Answer no call of the key that takes many slices."""
        if batch.oldest.model is model:
            return run_slice(batch, count)
        model.now_s += 1e-3
        return SliceResult(1, 1, [])

    monkeypatch.setattr(ImmediateBatch, "run_slice", unfinished)
    for _ in range(200):
        submitted(scheduler, "hostile", work=model.work("hostile", 50, 0.0, LookupModel()))
    take_turn(scheduler)
    began_s = model.now_s
    keystrokes = [submitted(scheduler, "other", work=model.work("other", 3, 0.0)) for _ in range(2)]
    while any(job in scheduler.admission.jobs for job in keystrokes):
        take_turn(scheduler)
    assert model.now_s - began_s < 3 * 8e-3
