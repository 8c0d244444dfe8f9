"""Invariants of every family: rows sum to one; full reads equal single steps; batches equal single rows."""

import numpy as np
import pytest

from models.arrays import to_numpy
from models.checkpoint.load import StorableModel
from models.language_model import BOS, EOS, LanguageModel, pad_sequences, prefill_sequences, score_sequences
from tests.support import families


@pytest.fixture(params=families.NAMES)
def model(request):
    return families.model(request.param)


@pytest.fixture
def batch():
    """Ragged rows: empty, short, long, with `<unk>` and `</s>` and `<s>` inside."""
    random = np.random.default_rng(3)
    rows = [random.integers(0, 40, n).tolist() for n in (7, 0, 1, 12, 5, 3)]
    return pad_sequences([*rows, [5, EOS, BOS, 6, 0, EOS]])


def stepwise(model, state, ids):
    """Reference scores of one sequence, token by token."""
    scores = []
    for token in ids:
        scores.append(float(to_numpy(model.next_log_probs(state))[0, token]))
        state = model.advance(state, np.array([token]))
    return np.array(scores), state


def test_rows_sum_to_one_and_the_start_is_never_predicted(model):
    state = model.initial_state(5)
    for column in np.random.default_rng(1).integers(0, 40, (8, 5)):
        log_probs = to_numpy(model.next_log_probs(state))
        assert log_probs.dtype == np.float32
        assert np.exp(log_probs, dtype=np.float64).sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert (log_probs[:, BOS] == -np.inf).all()
        assert np.isfinite(np.delete(log_probs, BOS, axis=1)).all()
        state = model.advance(state, column)


@pytest.mark.parametrize("start", ["initial_state", "empty_state"])
def test_whole_sequences_score_as_step_by_step(model, batch, start):
    tokens, lengths = batch
    whole = score_sequences(model, getattr(model, start)(len(tokens)), tokens, lengths)
    for row, ids, length in zip(whole, tokens, lengths, strict=True):
        expected, _ = stepwise(model, getattr(model, start)(1), ids[:length])
        assert row[:length] == pytest.approx(expected, abs=1e-5)
        assert (row[length:] == 0).all()


def test_a_row_scores_the_same_alone_and_in_any_company(model, batch):
    tokens, lengths = batch
    together = score_sequences(model, model.initial_state(len(tokens)), tokens, lengths)
    backwards = score_sequences(model, model.initial_state(len(tokens)), tokens[::-1], lengths[::-1])[::-1]
    for row in range(len(tokens)):
        alone = score_sequences(model, model.initial_state(1), tokens[[row]], lengths[[row]])
        finite = np.isfinite(together[row])
        assert together[row][finite] == pytest.approx(alone[0][finite], abs=1e-5)
        assert backwards[row][finite] == pytest.approx(alone[0][finite], abs=1e-5)


def test_reading_a_context_at_once_leaves_the_state_of_reading_it_step_by_step(model, batch):
    tokens, lengths = batch
    state = prefill_sequences(model, model.initial_state(len(tokens)), tokens, lengths)
    after = to_numpy(model.next_log_probs(state))
    for row, (ids, length) in enumerate(zip(tokens, lengths, strict=True)):
        _, single = stepwise(model, model.initial_state(1), ids[:length])
        expected = to_numpy(model.next_log_probs(single))[0]
        assert np.exp(after[row]) == pytest.approx(np.exp(expected), abs=1e-6)


def test_score_of_a_whole_is_that_of_its_halves(model):
    ids = [5, 9, 12, 0, 33, 7, EOS]
    whole = score_sequences(model, model.initial_state(1), *pad_sequences([ids]))[0]
    first = score_sequences(model, model.initial_state(1), *pad_sequences([ids[:4]]))[0]
    state = prefill_sequences(model, model.initial_state(1), *pad_sequences([ids[:4]]))
    second = score_sequences(model, state, *pad_sequences([ids[4:]]))[0]
    assert np.concatenate([first, second]) == pytest.approx(whole, abs=1e-5)


def test_states_are_values(model):
    """Advancing, selecting and joining leave a state unchanged; rows keep their next-token distributions."""
    state = prefill_sequences(model, model.initial_state(3), *pad_sequences([[5, 6], [7, 8], [9, 4]]))
    before = to_numpy(model.next_log_probs(state)).copy()
    model.advance(state, np.array([3, 4, 5]))
    picked = state.select(np.array([2, 0, 0]))
    joined = picked.concatenate([state, state.select(np.array([1]))])
    assert (len(picked), len(joined)) == (3, 7)
    expected = before[[2, 0, 0, 0, 1, 2, 1]]
    assert np.exp(to_numpy(model.next_log_probs(joined))) == pytest.approx(np.exp(expected), abs=1e-6)
    assert (to_numpy(model.next_log_probs(state)) == before).all()


def test_every_family_has_what_the_protocols_name(model):
    for protocol in (LanguageModel, StorableModel):
        names = [n for n in dir(protocol) if not n.startswith("_")]
        assert all(hasattr(model, name) for name in names)


def test_a_batch_of_no_rows_has_no_answers(model):
    none, size = np.zeros(0, np.int64), len(model.vocabulary)
    state = model.advance(model.initial_state(3).select(none), none)
    assert to_numpy(model.next_log_probs(state)).shape == (0, size)
    assert score_sequences(model, state, np.zeros((0, 4), np.int64), none).shape == (0, 4)
    assert len(prefill_sequences(model, state, np.zeros((0, 4), np.int64), none)) == 0


@pytest.mark.parametrize(
    "laid",
    [np.asfortranarray, lambda ids: np.repeat(ids, 2, axis=1)[:, ::2], lambda ids: ids.astype(np.int32)],
    ids=["columns", "apart", "int32"],
)
def test_ids_mean_the_same_however_they_lie_in_memory(model, batch, laid):
    tokens, lengths = batch
    start = model.initial_state(len(tokens))
    expected = score_sequences(model, start, tokens, lengths)
    assert (score_sequences(model, start, laid(tokens), lengths) == expected).all()
    before, after = (prefill_sequences(model, start, ids, lengths) for ids in (tokens, laid(tokens)))
    assert (to_numpy(model.next_log_probs(after)) == to_numpy(model.next_log_probs(before))).all()
