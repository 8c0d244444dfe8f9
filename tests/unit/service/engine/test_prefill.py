"""Texts of several calls in one pool: composition of batches and memory of states."""

import weakref

import numpy as np
import pytest

from models.calls import Read, materialize, run_call
from models.language_model import SCORES, STATE, ReadResult, Want
from service.engine.call_queues import is_urgent
from service.engine.prefill import ReadBatch
from tests.support.fake_models import Numbers


class Letters:
    """Model whose state is the sum of a text's tokens; records its calls and fails on one token."""

    family, vocabulary = "letters", range(100)

    def __init__(self, poison=None):
        self.asked, self.states, self.poison = [], [], poison

    def read(self, state, tokens, lengths, want):  # noqa: ARG002 - all results are computed
        is_read = np.arange(tokens.shape[1]) < lengths[:, None]
        if self.poison is not None and self.poison in tokens[is_read]:
            raise ZeroDivisionError
        self.asked.append([int(length) for length in lengths])
        read = np.where(is_read, tokens, 0)
        before = state.numbers[:, None] + read.cumsum(axis=1) - read
        after = Numbers(state.numbers + read.sum(axis=1))
        self.states.append(weakref.ref(after))
        return ReadResult(np.where(is_read, before, 0).astype(np.float32), after, Numbers(before[is_read]))


def text(model, length, *, rows=1, keep=False, first=1):
    tokens = np.arange(first, first + rows * length).reshape(rows, length) % 90
    return Read(
        model, Numbers(np.zeros(rows, int)), tokens, np.full(rows, length), SCORES._replace(state=keep)
    )


def joined(*calls):
    pool = ReadBatch()
    for call in calls:
        pool.add(call)
    return pool


def finish(pool, count):
    answers = []
    while len(pool):
        answers += pool.run_slice(count).answers
    return dict(answers)


def test_a_text_that_comes_later_is_read_beside_those_under_way():
    model = Letters()
    first, second = text(model, 20), text(model, 20, first=7)
    pool = joined(first)
    pool.run_slice(8)
    pool.add(second)
    answers = finish(pool, 16)
    assert model.asked == [[8], [8, 8], [4, 12]]
    for call in (first, second):
        np.testing.assert_array_equal(answers[call].log_probs, run_call(call).log_probs)


@pytest.mark.parametrize("count", [1, 7, 40, 1000])
@pytest.mark.parametrize("state", [False, True])
def test_states_before_tokens_are_those_of_a_whole_read(count, state):
    model, want = Letters(), Want(scores=True, state=state, before=True)
    lengths = np.array([5, 0, 19, 5, 1])
    calls = [
        Read(model, Numbers(np.arange(5)), np.arange(first, first + 100).reshape(5, 20) % 90, lengths, want)
        for first in (1, 30)
    ]
    answers = finish(joined(*calls), count)
    for call in calls:
        whole = run_call(call)
        np.testing.assert_array_equal(answers[call].log_probs, whole.log_probs)
        np.testing.assert_array_equal(materialize(answers[call].before).numbers, whole.before.numbers)
        if state:
            np.testing.assert_array_equal(materialize(answers[call].state).numbers, whole.state.numbers)


def test_a_short_text_does_not_wait_for_a_long_one():
    model = Letters()
    long, short = text(model, 2000), text(model, 5)
    pool = joined(long, short)
    done = pool.run_slice(100)
    assert [call for call, _ in done.answers] == [short]
    assert model.asked == [[10, 5]]


def test_a_long_text_goes_on_however_many_short_ones_come():
    model = Letters()
    long = text(model, 60)
    pool, answered, slices = joined(long), [], 0
    while long not in answered:
        for _ in range(20):
            pool.add(text(model, 3))
        answered = [call for call, _ in pool.run_slice(32).answers]
        slices += 1
    assert slices <= 60 / 5


def test_a_call_of_many_texts_is_read_a_slice_at_a_time():
    model = Letters()
    many = text(model, 6, rows=1000)
    answers = finish(joined(many), 64)
    assert max(sum(lengths) for lengths in model.asked) <= 64
    np.testing.assert_array_equal(answers[many].log_probs, run_call(many).log_probs)


def test_texts_of_one_call_come_back_in_their_order():
    model = Letters()
    tokens = np.arange(1, 41).reshape(4, 10)
    call = Read(
        model, Numbers([10, 20, 30, 40]), tokens, np.array([7, 0, 10, 3]), Want(scores=True, state=True)
    )
    scores, state, _ = finish(joined(call), 5)[call]
    assert state.materialized.numbers.tolist() == [
        10 + sum(range(1, 8)),
        20,
        30 + sum(range(21, 31)),
        40 + 96,
    ]
    assert [int(np.count_nonzero(row)) for row in scores] == [7, 0, 10, 3]


@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_read_is_answered_too(rows):
    model = Letters()
    call = Read(model, Numbers(np.arange(rows)), np.zeros((rows, 3), int), np.zeros(rows, int), STATE)
    assert finish(joined(call), 1)[call].state.materialized.numbers.tolist() == list(range(rows))
    assert not model.asked


def test_the_one_at_fault_is_found_and_the_others_go_on():
    model = Letters(poison=99)
    good = [text(model, 20, first=n) for n in range(3)]
    bad = Read(model, Numbers([0]), np.full((1, 20), 99), np.array([20]), SCORES)
    pool = joined(good[0], bad, *good[1:])
    answers, blamed = [], []
    while len(pool):
        try:
            answers += pool.run_slice(16).answers
        except ZeroDivisionError:
            blamed.append(pool.isolate_failure())
    assert [call for call in blamed if call] == [bad]
    assert {call for call, _ in answers} == set(good)
    for call, answer in answers:
        np.testing.assert_array_equal(answer.log_probs, run_call(call).log_probs)


def test_removed_call_is_read_no_further():
    model = Letters()
    gone, stays = text(model, 20), text(model, 20)
    pool = joined(gone, stays)
    pool.run_slice(16)
    pool.remove(gone)
    assert list(finish(pool, 16)) == [stays]
    assert [len(lengths) for lengths in model.asked] == [2, 1]


def test_a_text_at_rest_keeps_no_others_alive():
    model = Letters()
    oldest, resting, gone = text(model, 100), text(model, 40), text(model, 9)
    pool = joined(oldest, resting, gone)
    pool.run_slice(24)
    joint = model.states[-1]
    pool.remove(gone)
    pool.add(text(model, 1))
    pool.run_slice(2)  # for the shortest and oldest texts
    assert joint() is None


def test_finished_text_releases_the_joint_state():
    model = Letters()
    tokens = np.ones((2, 40), int)
    pool = joined(Read(model, Numbers([0, 0]), tokens, np.array([8, 40]), STATE), text(model, 50))
    pool.run_slice(24)
    joint = model.states[-1]
    pool.run_slice(24)
    assert joint() is None


@pytest.mark.parametrize(
    ("lengths", "urgent"),
    [([8], True), ([9], False), ([3, 5], True), ([5, 8], False), ([1] * 8, True), ([8, 8, 8], False)],
)
def test_a_read_of_few_tokens_is_urgent(lengths, urgent):
    tokens = np.zeros((len(lengths), max(lengths)), np.int64)
    call = Read(Letters(), Numbers(np.zeros(len(lengths))), tokens, np.array(lengths), STATE)
    assert is_urgent(call) == urgent
