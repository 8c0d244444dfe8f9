"""The recurrent model as the rest of the program sees it."""

import numpy as np
import pytest
import torch

from models.errors import InvalidInputError
from models.language_model import Prefiller, SequenceScorer, pad_sequences
from models.neural import sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.vocabulary import BOS, Vocabulary


def test_model_has_the_optional_capabilities(model):
    assert isinstance(model, SequenceScorer)
    assert isinstance(model, Prefiller)


def test_results_are_float32_numpy_on_a_cpu(model):
    state = model.initial_state(2)
    tokens, lengths = pad_sequences([[3, 4], [5]])
    for array in (model.next_log_probs(state), model.score(state, tokens, lengths)):
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float32


def test_initial_state_is_the_empty_state_after_bos(model):
    after = model.advance(model.empty_state(3), np.full(3, BOS))
    want = model.next_log_probs(after)
    np.testing.assert_allclose(model.next_log_probs(model.initial_state(3)), want, atol=1e-6)
    assert not any(part.any() for part in model.empty_state(3).hidden)


def test_advancing_leaves_the_state_as_it_was(model):
    state = model.initial_state(40)
    before = model.next_log_probs(state).copy()
    tokens = np.full((40, 5), 4)
    model.advance(state, tokens[:, 0])
    model.score(state, tokens, np.arange(40) % 6)
    model.prefill(state, tokens, np.arange(40) % 6)
    np.testing.assert_array_equal(model.next_log_probs(state), before)


def test_sequences_of_no_tokens_score_nothing(model):
    scores = model.score(
        model.initial_state(2), np.zeros((2, 0), dtype=np.int64), np.zeros(2, dtype=np.int64)
    )
    assert scores.shape == (2, 0)


def test_ids_past_the_lengths_are_ignored(model):
    state = model.initial_state(2)
    lengths = np.array([2, 0])
    first = model.score(state, np.array([[3, 4, 5], [6, 7, 8]]), lengths)
    second = model.score(state, np.array([[3, 4, 9], [9, 9, 9]]), lengths)
    np.testing.assert_array_equal(first, second)
    assert not first[1].any()


def test_what_lies_past_the_lengths_may_be_no_ids(model):
    state, lengths = model.initial_state(2), np.array([3, 1])
    want = model.score(state, np.array([[3, 4, 5], [6, 7, 8]]), lengths)
    got = model.score(state, np.array([[3, 4, 5], [6, -1, 10**6]]), lengths)
    np.testing.assert_array_equal(got, want)


def test_slices_of_the_vocabulary_projection_change_nothing(model, monkeypatch):
    tokens, lengths = pad_sequences([[3, 4, 5, 6, 7], [8, 9], [10]])
    whole = model.score(model.initial_state(3), tokens, lengths)
    monkeypatch.setattr(sequences, "MAX_LOGITS", 2 * len(model.vocabulary))  # two positions at a time
    np.testing.assert_allclose(model.score(model.initial_state(3), tokens, lengths), whole, atol=1e-6)


def test_groups_and_stretches_change_nothing(model, monkeypatch):
    generator = np.random.default_rng(0)
    tokens, lengths = pad_sequences(
        [generator.integers(2, 15, size) for size in generator.integers(0, 40, 20)]
    )
    state = model.initial_state(20)
    whole = model.score(state, tokens, lengths)
    monkeypatch.setattr(sequences, "GROUP_ROWS", 3)
    monkeypatch.setattr(sequences, "SEGMENT_STEPS", 8)
    np.testing.assert_allclose(model.score(state, tokens, lengths), whole, atol=1e-6)


def test_both_kernels_of_a_step_agree(model, monkeypatch):
    state = model.initial_state(5)
    tokens = np.arange(3, 8)
    plain = model.advance(state, tokens)
    monkeypatch.setattr(sequences, "PLAIN_CELL_ROWS", 0)
    for got, want in zip(model.advance(state, tokens).hidden, plain.hidden, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_rows_are_padded_to_few_counts():
    counts = [sequences._padded_row_count(rows) for rows in range(1, 257)]
    assert all(rows <= count <= 1.5 * rows for rows, count in enumerate(counts, start=1))
    assert len(set(counts)) == 16


def test_a_tied_matrix_counts_once(vocabulary):
    def count(**shape):
        network = Network(NetworkConfig(embedding_size=4, hidden_size=4, **shape), len(vocabulary))
        return NeuralModel(network, vocabulary).num_parameters

    assert count(tied=False) - count(tied=True) == 4 * len(vocabulary)


def test_family_is_the_cell(model):
    assert model.family == model.config.cell
    assert model.normalised


def test_a_network_for_another_vocabulary_is_refused():
    network = Network(NetworkConfig(embedding_size=4, hidden_size=4), 9)
    with pytest.raises(InvalidInputError, match=r"predicts 9 tokens, the vocabulary has 4"):
        NeuralModel(network, Vocabulary(["a"]))


def test_nothing_is_dropped_in_serving(vocabulary):
    torch.manual_seed(1)
    network = Network(NetworkConfig(embedding_size=4, hidden_size=4, dropout=0.9), len(vocabulary))
    model = NeuralModel(network, vocabulary)
    first = model.next_log_probs(model.initial_state(1))
    np.testing.assert_array_equal(model.next_log_probs(model.initial_state(1)), first)
