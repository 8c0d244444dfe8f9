"""The neural model through the language-model interface, its features and block weights."""

import numpy as np
import pytest
import torch

from models.errors import InputError
from models.kernels.threads import THREADS
from models.language_model import (
    BLOCK_TOKENS,
    BOS,
    BlockSampler,
    SequenceReader,
    Vocabulary,
    Want,
    pad_sequences,
    prefill_sequences,
    score_sequences,
    supports,
)
from models.neural import model as torch_model
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests.support import families


def test_model_has_the_optional_capabilities(model):
    assert isinstance(model, SequenceReader)


def test_results_are_float32_numpy_on_a_cpu(model):
    state = model.initial_state(2)
    tokens, lengths = pad_sequences([[3, 4], [5]])
    for array in (model.next_log_probs(state), score_sequences(model, state, tokens, lengths)):
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
    score_sequences(model, state, tokens, np.arange(40) % 6)
    prefill_sequences(model, state, tokens, np.arange(40) % 6)
    np.testing.assert_array_equal(model.next_log_probs(state), before)


def test_sequences_of_no_tokens_score_nothing(model):
    scores = score_sequences(
        model, model.initial_state(2), np.zeros((2, 0), dtype=np.int64), np.zeros(2, dtype=np.int64)
    )
    assert scores.shape == (2, 0)


def test_ids_past_the_lengths_are_ignored(model):
    state = model.initial_state(2)
    lengths = np.array([2, 0])
    first = score_sequences(model, state, np.array([[3, 4, 5], [6, 7, 8]]), lengths)
    second = score_sequences(model, state, np.array([[3, 4, 9], [9, 9, 9]]), lengths)
    np.testing.assert_array_equal(first, second)
    assert not first[1].any()


def test_padding_may_be_invalid_ids(model):
    state, lengths = model.initial_state(2), np.array([3, 1])
    want = score_sequences(model, state, np.array([[3, 4, 5], [6, 7, 8]]), lengths)
    got = score_sequences(model, state, np.array([[3, 4, 5], [6, -1, 10**6]]), lengths)
    np.testing.assert_array_equal(got, want)


def test_slices_of_the_vocabulary_projection_change_nothing(model, monkeypatch):
    tokens, lengths = pad_sequences([[3, 4, 5, 6, 7], [8, 9], [10]])
    whole = score_sequences(model, model.initial_state(3), tokens, lengths)
    monkeypatch.setattr(torch_model, "MAX_LOGITS", 2 * len(model.vocabulary))  # two positions at a time
    np.testing.assert_allclose(
        score_sequences(model, model.initial_state(3), tokens, lengths), whole, atol=1e-6
    )


def test_groups_and_stretches_change_nothing(model, monkeypatch):
    generator = np.random.default_rng(0)
    tokens, lengths = pad_sequences(
        [generator.integers(2, 15, size) for size in generator.integers(0, 40, 20)]
    )
    state = model.initial_state(20)
    whole = score_sequences(model, state, tokens, lengths)
    monkeypatch.setattr(torch_model, "GROUP_ROWS", 3)
    monkeypatch.setattr(torch_model, "SEGMENT_STEPS", 8)
    np.testing.assert_allclose(score_sequences(model, state, tokens, lengths), whole, atol=1e-6)


def test_both_kernels_of_a_step_agree(model, monkeypatch):
    state = model.initial_state(5)
    tokens = np.arange(3, 8)
    plain = model.advance(state, tokens)
    monkeypatch.setattr(torch_model, "PLAIN_CELL_ROWS", 0)
    for got, want in zip(model.advance(state, tokens).hidden, plain.hidden, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_rows_are_padded_to_few_counts():
    counts = [torch_model._padded_row_count(rows) for rows in range(1, 257)]
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
    with pytest.raises(InputError, match=r"predicts 9 tokens, the vocabulary has 4"):
        NeuralModel(network, Vocabulary(["a"]))


def test_nothing_is_dropped_in_serving(vocabulary):
    torch.manual_seed(1)
    network = Network(NetworkConfig(embedding_size=4, hidden_size=4, dropout=0.9), len(vocabulary))
    model = NeuralModel(network, vocabulary)
    first = model.next_log_probs(model.initial_state(1))
    np.testing.assert_array_equal(model.next_log_probs(model.initial_state(1)), first)


BATCH = pad_sequences([[5, 9, 7, 4], [6]])


@pytest.mark.parametrize("name", families.NEURAL)
def test_the_output_layer_makes_the_distribution_of_the_features(name):
    model = families.model(name)
    state = prefill_sequences(model, model.initial_state(2), *BATCH)
    features = model.features(state)
    assert features.shape == (2, model.feature_size)
    with torch.inference_mode():
        log_probs = model.network.output.log_probs(torch.from_numpy(features))
    np.testing.assert_allclose(log_probs.numpy(), model.next_log_probs(state), atol=1e-5)


@pytest.mark.parametrize("name", families.NEURAL)
def test_features_along_a_text_are_those_of_its_states(name):
    model = families.model(name)
    before = model.read(model.initial_state(2), *BATCH, Want(before=True)).before
    assert len(before) == BATCH[1].sum()
    state = prefill_sequences(model, model.initial_state(1), *pad_sequences([[5, 9, 7]]))
    assert model.features(before)[3] == pytest.approx(model.features(state)[0], abs=1e-5)
    assert model.next_log_probs(before)[3] == pytest.approx(model.next_log_probs(state)[0], abs=1e-5)


@pytest.mark.parametrize(
    "batch", [BATCH, pad_sequences([[5, 9, 7, 4, 8], [6, 6, 5, 9, 7]]), pad_sequences([[5] * 300])]
)
@pytest.mark.parametrize("name", families.NEURAL)
def test_scores_features_and_state_come_together(name, batch):
    model = families.model(name)
    start = model.initial_state(len(batch[0]))
    reading = model.read(start, *batch, Want(scores=True, state=True, before=True))
    state = prefill_sequences(model, start, *batch)
    assert reading.log_probs == pytest.approx(score_sequences(model, start, *batch), abs=1e-5)
    alone = model.read(start, *batch, Want(before=True)).before
    assert model.features(reading.before) == pytest.approx(model.features(alone), abs=1e-5)
    assert model.features(reading.state) == pytest.approx(model.features(state), abs=1e-5)
    assert model.next_log_probs(
        model.read(start, *batch, Want(scores=True, state=True)).state
    ) == pytest.approx(model.next_log_probs(state), abs=1e-5)


@pytest.mark.parametrize("name", families.NEURAL)
def test_features_of_integers_are_near_those_of_floats(name):
    single = families.model(name)
    rounded = Int8Model(single.network.weights(), single.vocabulary)
    one, other = (
        model.features(model.read(model.initial_state(2), *BATCH, Want(before=True)).before).astype(
            np.float64
        )
        for model in (single, rounded)
    )
    cosines = (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosines.min() > 0.99


VOCAB_SIZE = 2500  # several slices of the output layer, not a multiple of a block
TEMPERATURES = np.array([1, 0.3, 2.5, 1, 0.01], np.float32)


@pytest.fixture(
    scope="module", params=[{}, {"output": "adaptive", "cutoffs": (100, 1000)}], ids=["full", "adaptive"]
)
def block_model(request):
    torch.manual_seed(3)
    config = NetworkConfig(cell="gru", embedding_size=20, hidden_size=20, **request.param)
    network = Network(config, VOCAB_SIZE).eval()
    for param in network.parameters():
        torch.nn.init.normal_(param, std=0.7)
    vocabulary = Vocabulary([f"w{i}" for i in range(VOCAB_SIZE - 3)])
    return Int8Model(network.weights(), vocabulary)


@pytest.fixture(scope="module")
def block_state(block_model):
    return block_model.advance(block_model.initial_state(5), np.array([5, 100, 2000, 7, 9]))


def test_weights_are_those_of_the_distribution(block_model, block_state):
    assert supports(block_model, BlockSampler)
    weighed, log_probs = (
        block_model.block_sums(block_state, TEMPERATURES),
        block_model.next_log_probs(block_state).astype(np.float64),
    )
    scores = (log_probs - log_probs.max(axis=1, keepdims=True)) / TEMPERATURES[:, None]
    starts = np.arange(0, VOCAB_SIZE, BLOCK_TOKENS)
    assert weighed.sums == pytest.approx(np.add.reduceat(np.exp(scores), starts, axis=1), rel=2e-5, abs=1e-30)
    assert weighed.highest - weighed.log_sums == pytest.approx(log_probs.max(axis=1), abs=1e-5)


def test_logits_of_a_block_less_the_logarithm_of_the_sum_are_the_log_probabilities(block_model, block_state):
    weighed, log_probs = (
        block_model.block_sums(block_state, TEMPERATURES),
        block_model.next_log_probs(block_state),
    )
    rows, blocks = np.array([4, 0, 0, 2]), np.array([0, 39, 3, 17])
    logits = block_model.logits(weighed, rows, blocks)
    for row, block, some in zip(rows, blocks, logits, strict=True):
        expected = log_probs[row, block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
        assert (some[: len(expected)] - weighed.log_sums[row] == expected).all()
        assert (some[len(expected) :] == -np.inf).all()


def test_a_row_is_weighed_as_it_is_alone(block_model, block_state, monkeypatch):
    monkeypatch.setattr(THREADS, "limit", 2)
    rows = np.arange(150) % len(block_state)  # several groups of rows in each thread
    temperatures = np.resize(TEMPERATURES, len(rows))
    together = block_model.block_sums(block_state.select(rows), temperatures)
    for row in (0, 1, 15, 16, 49, 77, 99, 149):
        alone = block_model.block_sums(block_state.select(rows[[row]]), temperatures[[row]])
        assert (alone.sums[0] == together.sums[row]).all()
        assert alone.log_sums[0] == together.log_sums[row]
