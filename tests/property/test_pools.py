"""Calls that join a pool at any time, leave it, and are cut at odd places: each is told what it is told alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_model import pad_sequences, score_sequences
from service.engine.batching import split_budget
from service.engine.calls import ScoreChoices, run_single
from service.engine.prefill import Read, slice_width
from tests import families

MODEL = families.model("ngram")  # exact, whatever the company
texts = st.lists(st.lists(st.integers(3, 9), max_size=20), min_size=1, max_size=5)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("join"), texts), st.tuples(st.sampled_from(["go on", "leave"]), st.integers(1, 40))
    ),
    max_size=30,
)


def read_of(scorer, keep):
    def made(some):
        tokens, lengths = pad_sequences(some)
        return Read(MODEL, MODEL.initial_state(len(some)), tokens, lengths, scorer, keep)

    return made


def choices_of(some):
    rows = np.repeat(np.arange(len(some)), [len(row) for row in some])
    tokens = np.array([token for row in some for token in row], dtype=np.int64)
    return ScoreChoices(MODEL, MODEL.initial_state(len(some)), rows, tokens)


KINDS = {
    "scores": read_of(score_sequences, keep=False),
    "both": read_of(score_sequences, keep=True),
    "states": read_of(None, keep=True),
    "choices": choices_of,
}


def flat(answer):
    """The numbers of an answer, states as what they predict."""
    if isinstance(answer, np.ndarray):
        return [answer]
    if isinstance(answer, tuple):
        return [part for one in answer for part in flat(one)]
    return [MODEL.next_log_probs(answer.materialized)]


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), moves=moves)
def test_whoever_joins_is_told_what_it_is_told_alone(kind, moves):
    pool, here, answers = KINDS[kind]([[3]]).batch(), [], {}
    for move, given_ in [*moves, *[("go on", 1000)] * 30]:
        if move == "join":
            here.append(KINDS[kind](given_))
            pool.add(here[-1])
        elif move == "leave" and here:
            pool.remove(here.pop(given_ % len(here)))
        elif len(pool):
            told = dict(pool.run_slice(given_).answers)
            answers |= told
            here = [call for call in here if call not in told]
    assert not here
    assert not len(pool)
    for call, answer in answers.items():
        for mine, wanted in zip(flat(answer), flat(run_single(call)), strict=True):
            np.testing.assert_array_equal(mine, wanted)


@given(
    calls=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2000)), max_size=30), room=st.integers(1, 300)
)
def test_shares_use_all_the_room_and_no_more(calls, room):
    wanted, left = [min(pair) for pair in calls], [pair[1] for pair in calls]
    shares = split_budget(wanted, left, room)
    assert sum(shares) == min(room, sum(wanted))
    assert all(0 <= share <= most for share, most in zip(shares, wanted, strict=True))


@given(left=st.lists(st.integers(1, 300), min_size=1, max_size=40), count=st.integers(1, 500))
def test_columns_stay_within_the_tokens_of_a_slice(left, count):
    width = slice_width(np.array(left), count)
    assert 1 <= width <= max(left)
    assert width == 1 or sum(min(width, length) for length in left) <= count
