"""Results do not depend on batching: concurrent requests, and calls that join and leave a batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.calls import Predict, Read, ScoreChoices, Step, materialize, run_call, run_to_completion
from models.language_model import SCORES, STATE, ReadResult, Want, pad_sequences, score_sequences
from models.mixture import MixtureModel
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.network import Network
from models.scoring.sequences import build_tree, score_tree
from service.engine.batching import split_budget
from service.engine.call_queues import start_batch
from service.engine.job import Job, RequestOptions
from service.engine.metrics import Metrics
from service.engine.prefill import slice_width
from service.engine.scheduler import Scheduler, SchedulerLimits
from tests.support import families
from tests.support.fake_models import take_turn

texts = st.lists(st.lists(st.integers(3, 9), min_size=1, max_size=9), min_size=1, max_size=6)


def int8(layers=2):
    torch.manual_seed(3)
    vocabulary = families.tokenizer().vocabulary
    config = NetworkConfig(cell="lstm", layers=layers, embedding_size=13, hidden_size=17)
    return Int8Model(Network(config, len(vocabulary)).weights(), vocabulary)


INT8 = int8()
EXACT = {
    "ngram": families.model("ngram"),
    "int8": INT8,
    "int8 mixture": MixtureModel([families.model("ngram"), INT8], [0.4, 0.6]),
}
NEAR = {
    name: families.model(name) for name in ("lstm", "feed-forward", "mixture by context", "cached mixture")
}


class Outcome:
    def __call__(self, item):
        assert item.last
        if isinstance(item.value, Exception):
            raise item.value
        self.told = item.value


def scoring(model, some):
    tokens, lengths = pad_sequences(some)
    answer = yield from Read(model, model.initial_state(len(some)), tokens, lengths, SCORES)
    return answer.log_probs


def stepping(model, some):
    """Run greedy steps of a few rows and reorder the rows at each step."""
    tokens, lengths = pad_sequences(some)
    state = (yield from Read(model, model.initial_state(len(some)), tokens, lengths, STATE)).state
    log_probs = yield from Predict(model, state)
    told = [log_probs.copy()]
    for _ in range(4):
        order = np.argsort(log_probs[:, 3], kind="stable")
        chosen = log_probs[order, 3:].argmax(axis=1) + 3
        state, log_probs = yield from Step(model, state.select(order), chosen)
        told.append(log_probs.copy())
    return np.concatenate(told)


def run_together(works, bulk):
    now = [0.0]

    def clock():  # time advances, so slices end at odd positions
        now[0] += 1e-4
        return now[0]

    scheduler = Scheduler(
        clock=clock,
        limits=SchedulerLimits(max_jobs=99, slice_s=2e-4, bulk_slice_s=2e-4),
        metrics=Metrics(),
    )
    outcomes = [Outcome() for _ in works]
    for work, outcome, is_bulk in zip(works, outcomes, bulk, strict=True):
        scheduler.submit(Job(work, outcome, 1e9, RequestOptions(bulk=is_bulk), streams=True))
    while take_turn(scheduler):
        pass
    assert len(scheduler) == 0
    return [outcome.told for outcome in outcomes]


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
@settings(max_examples=15, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.sampled_from([scoring, stepping]), texts, st.booleans()), min_size=1, max_size=7
    )
)
def test_company_changes_no_answer(name, requests):
    model = (EXACT | NEAR)[name]
    together = run_together(
        [kind(model, some) for kind, some, _ in requests], [bulk for *_, bulk in requests]
    )
    for told, (kind, some, _) in zip(together, requests, strict=True):
        wanted = run_to_completion(kind(model, some))
        if name in EXACT:
            np.testing.assert_array_equal(told, wanted)
        else:
            np.testing.assert_allclose(told, wanted, atol=2e-5)


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
@settings(max_examples=20, deadline=None)
@given(
    some=st.lists(st.lists(st.integers(3, 4), min_size=1, max_size=6), min_size=2, max_size=12),
    contexts=st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_shared_beginnings_are_scored_once_with_equal_results(name, some, contexts):
    model = (EXACT | NEAR)[name]
    used, numbers = np.unique(contexts[: len(some)], return_inverse=True)
    tokens, lengths = pad_sequences(some)
    levels = run_to_completion(build_tree(numbers, tokens, lengths))
    before = model.advance(model.initial_state(len(used)), used + 5)
    told = run_to_completion(score_tree(model, before, levels, tokens.shape))
    wanted = score_sequences(model, before.select(numbers), tokens, lengths)
    np.testing.assert_allclose(told, wanted, atol=2e-5)


def test_equal_texts_are_one_row_a_level():
    tokens, lengths = pad_sequences([[3, 4, 5, 6]] * 10 + [[3, 4, 7, 8]] * 10)
    levels = run_to_completion(build_tree(np.zeros(20, np.int64), tokens, lengths))
    assert [len(level.tokens) for level in levels] == [1, 1, 2, 2]


MODEL = families.model("ngram")  # exact, whatever else is in the batch
pool_texts = st.lists(st.lists(st.integers(3, 9), max_size=20), min_size=1, max_size=5)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("join"), pool_texts),
        st.tuples(st.sampled_from(["go on", "leave"]), st.integers(1, 40)),
    ),
    max_size=30,
)


def read_of(want):
    def made(some):
        tokens, lengths = pad_sequences(some)
        return Read(MODEL, MODEL.initial_state(len(some)), tokens, lengths, want)

    return made


def choices_of(some):
    rows = np.repeat(np.arange(len(some)), [len(row) for row in some])
    tokens = np.array([token for row in some for token in row], dtype=np.int64)
    return ScoreChoices(MODEL, MODEL.initial_state(len(some)), rows, tokens)


KINDS = {
    "scores": read_of(SCORES),
    "both": read_of(Want(scores=True, state=True)),
    "states": read_of(STATE),
    "choices": choices_of,
}


def flat(answer):
    """Numbers of an answer, with states replaced by their next-token log-probabilities."""
    if isinstance(answer, np.ndarray):
        return [answer]
    if isinstance(answer, ReadResult):
        return [answer.log_probs, *([] if answer.state is None else flat(answer.state))]
    return [MODEL.next_log_probs(materialize(answer))]


def alone(call):
    """Answer of a call by itself, without what it does not want."""
    answer = run_call(call)
    if not isinstance(call, Read):
        return answer
    scores = answer.log_probs if call.want.scores else ReadResult().log_probs
    return ReadResult(scores, answer.state if call.want.state else None)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), moves=moves)
def test_calls_in_a_batch_are_answered_as_alone(kind, moves):
    pool, here, answers = start_batch(KINDS[kind]([[3]])), [], {}
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
        for mine, wanted in zip(flat(answer), flat(alone(call)), strict=True):
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
