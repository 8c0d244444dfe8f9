"""The n-gram model on a device returns the CPU model's results for any model and batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_model import Vocabulary, prefill_sequences, score_sequences
from models.ngram.build import NGramWeights, build_automaton, quantise_automaton
from models.ngram.cuda import kernels
from models.ngram.cuda.model import TensorNGramModel, TensorNGramState
from models.ngram.model import NGramModel, NGramState
from tests.reference.backoff import random_model, to_orders
from tests.support.families import DEVICES

TOLERANCE = 1e-5
relaxed = settings(max_examples=40, deadline=None)
numbers = st.integers(0, 2**32 - 1)


class Pair:
    """Random model on the CPU and on a device, with a batch of all its states, some repeated."""

    def __init__(self, seed, device, order=None):
        self.random = np.random.default_rng(seed)
        self.vocab_size = int(self.random.integers(4, 10))
        order = order or int(self.random.integers(1, 6))
        # suffixes of n-grams may be missing, as after entropy pruning
        orders = to_orders(random_model(seed, vocab_size=self.vocab_size, order=order))
        automaton = build_automaton([self.disturbed(*one) for one in orders] if seed % 2 else orders)
        if seed % 3 == 0:
            automaton = quantise_automaton(automaton)
        self.cpu = NGramModel(automaton, Vocabulary([f"w{i}" for i in range(self.vocab_size - 3)]))
        self.device = TensorNGramModel(self.cpu, device=device)
        states = np.arange(automaton.num_states, dtype=np.int32)
        ids = self.random.permutation(np.concatenate([states, self.random.choice(states, 5)]))
        self.state = NGramState(ids)
        self.device_state = TensorNGramState(torch.tensor(ids, device=device))

    def disturbed(self, ngrams, weights):
        """Weights as files may have them: back-offs of contexts without successors, and impossible n-grams."""
        noise = self.random.choice([0, 0, -0.5, 0.25, -np.inf], len(ngrams.words)).astype(np.float32)
        ruled_out = self.random.random(len(ngrams.words)) < 0.1
        probs = np.where(ruled_out, np.float32(-np.inf), weights.log10_probs)
        return ngrams, NGramWeights(probs, weights.log10_backoffs + noise)

    def sequences(self):
        """Rows of all lengths, 0 included."""
        tokens = self.random.integers(0, self.vocab_size, (len(self.state), 9))
        return tokens, self.random.integers(0, 10, len(self.state))


def ids_of(state):
    return state.ids.cpu().numpy()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@relaxed
@given(numbers, st.sampled_from(DEVICES))
def test_distributions_are_the_same(seed, device):
    pair = Pair(seed, device)
    got = pair.device.next_log_probs(pair.device_state)
    assert (got.dtype, got.device.type) == (torch.float32, device)
    np.testing.assert_allclose(got.cpu(), pair.cpu.next_log_probs(pair.state), atol=TOLERANCE)


@relaxed
@given(numbers, st.sampled_from(DEVICES))
def test_every_token_leads_to_the_same_state(seed, device):
    pair = Pair(seed, device)
    for word in range(pair.vocab_size):
        column = np.full(len(pair.state), word)
        expected = pair.cpu.advance(pair.state, column).ids
        assert np.array_equal(ids_of(pair.device.advance(pair.device_state, column)), expected)


@relaxed
@given(numbers, st.sampled_from(DEVICES))
def test_sequences_score_the_same_and_by_the_same_ngrams(seed, device):
    pair = Pair(seed, device)
    tokens, lengths = pair.sequences()
    expected = pair.cpu.score_detailed(pair.state, tokens, lengths)
    got = pair.device.score_detailed(pair.device_state, tokens, lengths)
    assert np.array_equal(got.orders, expected.orders)
    np.testing.assert_allclose(got.log_probs, expected.log_probs, atol=TOLERANCE)
    np.testing.assert_allclose(got.log_backoffs, expected.log_backoffs, atol=TOLERANCE)
    assert np.array_equal(score_sequences(pair.device, pair.device_state, tokens, lengths), got.log_probs)


@relaxed
@given(numbers, st.sampled_from(DEVICES))
def test_a_context_leads_to_the_same_state(seed, device):
    pair = Pair(seed, device)
    tokens, lengths = pair.sequences()
    expected = prefill_sequences(pair.cpu, pair.state, tokens, lengths).ids
    assert np.array_equal(
        ids_of(prefill_sequences(pair.device, pair.device_state, tokens, lengths)), expected
    )


@relaxed
@given(numbers, st.sampled_from(DEVICES))
def test_the_top_of_a_distribution_is_the_top_of_the_whole_and_equals_stand_in_order_of_id(seed, device):
    pair = Pair(seed, device)
    k = int(pair.random.integers(1, pair.vocab_size + 1))
    top = pair.device.top_k(pair.device_state, k)
    whole = pair.device.next_log_probs(pair.device_state).cpu().numpy()
    expected = np.argsort(-whole, axis=1, kind="stable")[:, :k]
    assert np.array_equal(top.ids, expected)
    assert np.array_equal(top.log_probs, np.take_along_axis(whole, expected, axis=1))
    np.testing.assert_allclose(top.log_probs, pair.cpu.top_k(pair.state, k).log_probs, atol=TOLERANCE)


@pytest.mark.parametrize("entries", [1, 40, 300])
def test_stretches_of_rows_change_nothing(device, entries, monkeypatch):
    pair = Pair(7, device, order=4)
    whole = pair.device.next_log_probs(pair.device_state)
    top = pair.device.top_k(pair.device_state, 3)
    monkeypatch.setattr(kernels, "MAX_MATRIX_ENTRIES", entries)
    assert torch.equal(pair.device.next_log_probs(pair.device_state), whole)
    assert np.array_equal(pair.device.top_k(pair.device_state, 3).ids, top.ids)


@pytest.mark.parametrize("positions", [1, 7, 100])
def test_stretches_of_tokens_change_nothing(device, positions, monkeypatch):
    pair = Pair(8, device, order=4)
    tokens, lengths = pair.sequences()
    whole = score_sequences(pair.device, pair.device_state, tokens, lengths)
    monkeypatch.setattr(kernels, "MAX_TOKENS_AT_ONCE", positions)
    assert np.array_equal(score_sequences(pair.device, pair.device_state, tokens, lengths), whole)


def test_no_rows_are_no_trouble(device):
    pair = Pair(9, device, order=3)
    state = pair.device.initial_state(0)
    none, no_lengths = np.zeros((0, 4), np.int64), np.zeros(0, np.int64)
    assert pair.device.next_log_probs(state).shape == (0, pair.vocab_size)
    assert pair.device.top_k(state, 2).ids.shape == (0, 2)
    assert score_sequences(pair.device, state, none, no_lengths).shape == (0, 4)
    assert len(prefill_sequences(pair.device, state, none, no_lengths)) == 0
    assert len(pair.device.advance(state, no_lengths)) == 0
