"""What tokens are drawn by, beside the whole distribution."""

import numpy as np
import pytest
import torch

from models.language_model import BLOCK_TOKENS, BlockSampler, supports
from models.neural.config import NetworkConfig
from models.neural.model import BlockSamplingModel, Int8Model
from models.neural.network import Network
from models.neural.packed.matrix import FLOAT_PACKING, SPLIT_FLOAT_PACKING
from models.neural.packed.network import pack_network
from models.vocabulary import Vocabulary

VOCAB_SIZE = 2500  # more than one piece of the output layer, and no multiple of a block
TEMPERATURES = np.array([1, 0.3, 2.5, 1, 0.01], np.float32)


@pytest.fixture(scope="module", params=["int8", "digits", "floats"])
def model(request):
    torch.manual_seed(3)
    network = Network(NetworkConfig(cell="gru", embedding_size=20, hidden_size=20), VOCAB_SIZE).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    vocabulary = Vocabulary([f"w{i}" for i in range(VOCAB_SIZE - 3)])
    if request.param == "int8":
        return Int8Model(network, vocabulary)
    model = BlockSamplingModel(network, vocabulary)
    model.__dict__["_served"] = pack_network(
        network, {"digits": SPLIT_FLOAT_PACKING, "floats": FLOAT_PACKING}[request.param]
    )
    return model


@pytest.fixture(scope="module")
def state(model):
    return model.advance(model.initial_state(5), np.array([5, 100, 2000, 7, 9]))


def test_weights_are_those_of_the_distribution(model, state):
    assert supports(model, BlockSampler)
    weighed, log_probs = model.block_sums(state, TEMPERATURES), model.next_log_probs(state).astype(np.float64)
    scores = (log_probs - log_probs.max(axis=1, keepdims=True)) / TEMPERATURES[:, None]
    starts = np.arange(0, VOCAB_SIZE, BLOCK_TOKENS)
    assert weighed.sums == pytest.approx(np.add.reduceat(np.exp(scores), starts, axis=1), rel=2e-5, abs=1e-30)
    assert weighed.highest - weighed.log_sums == pytest.approx(log_probs.max(axis=1), abs=1e-5)


def test_logits_of_a_block_less_the_logarithm_of_the_sum_are_the_log_probabilities(model, state):
    weighed, log_probs = model.block_sums(state, TEMPERATURES), model.next_log_probs(state)
    rows, blocks = np.array([4, 0, 0, 2]), np.array([0, 39, 3, 17])
    logits = model.logits(weighed, rows, blocks)
    for row, block, some in zip(rows, blocks, logits, strict=True):
        expected = log_probs[row, block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
        assert (some[: len(expected)] - weighed.log_sums[row] == expected).all()
        assert (some[len(expected) :] == -np.inf).all()


def test_a_row_is_weighed_as_it_is_alone(model, state, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    rows = np.arange(150) % len(state)  # several groups of rows in each thread
    temperatures = np.resize(TEMPERATURES, len(rows))
    together = model.block_sums(state.select(rows), temperatures)
    for row in (0, 1, 15, 16, 49, 77, 99, 149):
        alone = model.block_sums(state.select(rows[[row]]), temperatures[[row]])
        assert (alone.sums[0] == together.sums[row]).all()
        assert alone.log_sums[0] == together.log_sums[row]
