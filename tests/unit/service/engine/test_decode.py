"""Decode calls: rows of several calls step together, with the results of separate runs."""

import numpy as np
import pytest

from models.calls import run_call
from models.decoding.batch import SequenceBatch, row_seed
from models.decoding.decode import Decode, DecodeState
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import compile_rules
from models.language_model import EOS
from service.engine.decode import DecodeCallBatch
from tests.support.fake_models import FakeModel, fake_vocabulary


@pytest.fixture
def model():
    return FakeModel(fake_vocabulary())


def made(model, seed, *, rows=2, count=6, last=True, top=0, **options):
    """Decode call of a request with this seed."""
    prompt = np.array([3 + seed % 5])
    rules = compile_rules(DecodingParameters(max_tokens=99, **options), prompt)
    batch = SequenceBatch.of([rules] * rows, [row_seed(seed, 0, row) for row in range(rows)])
    state = model.advance(model.initial_state(rows), np.repeat(prompt, rows))
    return Decode(model, DecodeState(state, batch), count, top, last)


def told(drawn):
    tops = [[(top.ids.tolist(), top.log_probs.tolist()) for top in row] for row in drawn.tops]
    return drawn.tokens, drawn.log_probs, tops


def run(pool, answers, steps=1000, count=256):
    """Run up to `steps` slices or until the pool is empty; return the rows of each."""
    rows = []
    while len(pool) and len(rows) < steps:
        done = pool.run_slice(count)
        answers.update(done.answers)
        rows.append(done.rows)
    return rows


OPTIONS = [
    {},
    {"temperature": 0.3, "top_k": 3},
    {"ignore_eos": True, "repetition_penalty": 2.0},
    {"top": 2, "rows": 1},
    {"logit_bias": ((4, 3.0),), "rows": 3, "count": 1},
    {"strategy": "greedy", "min_tokens": 4},
]


def test_calls_that_join_at_any_time_get_what_they_would_alone(model):
    calls = [made(model, seed, **options) for seed, options in enumerate(OPTIONS * 3)]
    pool, answers = DecodeCallBatch(), {}
    for call in calls:
        pool.add(call)
        run(pool, answers, steps=2)
    run(pool, answers)
    assert [told(answers[call]) for call in calls] == [
        told(run_call(made(model, seed, **options))) for seed, options in enumerate(OPTIONS * 3)
    ]


def test_a_text_in_parts_is_the_text_at_once(model):
    """Also with another call in the pool."""
    whole = run_call(made(model, 1, count=8, ignore_eos=True))
    pool, answers, parts = DecodeCallBatch(), {}, [[], []]
    call = made(model, 1, count=2, last=False, ignore_eos=True)
    other = made(model, 2, count=11, ignore_eos=True)
    pool.add(other)
    for part in range(4):
        pool.add(call)
        while call not in answers:
            answers.update(pool.run_slice(256).answers)
        for row, tokens in zip(parts, answers[call].tokens, strict=True):
            row.extend(tokens)
        call = Decode(model, answers[call].unfinished, 2, 0, part == 2)
    run(pool, answers)
    assert parts == whole.tokens
    assert told(answers[other]) == told(run_call(made(model, 2, count=11, ignore_eos=True)))


def test_rows_that_end_leave(model):
    model.table[:, EOS] = 0.5
    pool = DecodeCallBatch()
    pool.add(made(model, 1, rows=8, count=50))
    rows = run(pool, {})
    assert rows[0] == 8
    assert rows == sorted(rows, reverse=True)
    assert len(rows) < 50


def test_ended_texts_have_no_unfinished_state(model):
    model.table[:, EOS] = 50.0
    drawn = run_call(made(model, 1, last=False))
    assert drawn.tokens == [[EOS], [EOS]]
    assert drawn.unfinished is None


def test_streams_that_go_on_together_copy_nothing(model):
    pool, answers, histories = DecodeCallBatch(), {}, []
    calls = [made(model, seed, count=1, last=False, ignore_eos=True) for seed in range(4)]
    for step in range(6):
        for call in calls[step % 4 :] + calls[: step % 4]:  # in any order
            pool.add(call)
        run(pool, answers)
        histories += [answers[call].unfinished.base.batch.history for call in calls]
        calls = [Decode(model, answers[call].unfinished, 1) for call in calls]
    assert {id(history) for history in histories} == {id(histories[0])}


def test_cancelled_call_does_not_change_others(model):
    """A cancelled call takes no further step; the results of the other calls do not change."""
    pool, answers = DecodeCallBatch(), {}
    calls = [made(model, seed, count=6, ignore_eos=True) for seed in range(3)]
    for call in calls:
        pool.add(call)
    run(pool, answers, steps=2)
    pool.remove(calls[1])
    assert run(pool, answers) == [4] * 4
    assert {id(call) for call in answers} == {id(calls[0]), id(calls[2])}
    for seed in (0, 2):
        assert told(answers[calls[seed]]) == told(run_call(made(model, seed, count=6, ignore_eos=True)))


def test_no_more_rows_step_together_than_there_is_room_for(model):
    pool, answers = DecodeCallBatch(), {}
    for seed in range(5):
        pool.add(made(model, seed, rows=3, count=4, ignore_eos=True))
    assert run(pool, answers, count=7) == [6] * 8 + [3] * 4
    assert len(answers) == 5


def test_a_call_of_more_rows_than_there_is_room_for_has_its_turn(model):
    pool = DecodeCallBatch()
    pool.add(made(model, 1, rows=9, count=1))
    assert run(pool, {}, count=2) == [9]


@pytest.mark.parametrize("where", ["next_log_probs", "advance"])
def test_only_who_is_at_fault_fails(model, monkeypatch, where):
    """Earlier steps of the other calls are not repeated."""
    works = getattr(model, where)

    def fails(state, *tokens):
        if 7 in state.last:
            raise ZeroDivisionError
        return works(state, *tokens)

    pool, answers, blamed = DecodeCallBatch(), {}, []
    never = {"logit_bias": ((7, -100.0),), "ignore_eos": True}
    calls = [made(model, seed, **never) for seed in range(4)]
    bad = made(model, 4, ignore_eos=True)  # its prompt is token 7
    for call in [*calls[:2], bad, *calls[2:]]:
        pool.add(call)
    monkeypatch.setattr(model, where, fails)
    while len(pool):
        try:
            answers.update(pool.run_slice(256).answers)
        except ZeroDivisionError:
            blamed.append(pool.isolate_failure())
    monkeypatch.undo()
    assert [call for call in blamed if call is not None] == [bad]
    for seed, call in enumerate(calls):
        assert told(answers[call]) == told(run_call(made(model, seed, **never)))
