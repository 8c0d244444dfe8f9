"""Shapes of parameters, and networks in int8 that are read from files."""

import numpy as np
import pytest
import torch

from models.language_model import Vocabulary, pad_sequences, score_sequences
from models.neural.config import NetworkConfig, count_parameters, parameter_shapes, read_weights
from models.neural.int8.matrix import Parameters
from models.neural.int8.model import Int8Model, _token_vectors
from models.neural.network import Network, write_network
from models.tensor_files import PackedWeightCache
from tests.support import families

V = 31
VOCABULARY = Vocabulary([f"w{i}" for i in range(V - 3)])
SHAPES = {
    **families.NEURAL,
    "untied": {"tied": False},
    "square": {"cell": "gru", "embedding_size": 11, "residual": True, "learned_state": True},
    "untied adaptive": {"output": "adaptive", "cutoffs": (4, 9, 20), "tied": False},
    "square adaptive": {"output": "adaptive", "cutoffs": (4,), "embedding_size": 11},
    "multiplicative": {"cell": "gru", "attention": "multiplicative", "attention_window": 3},
    "no memory": {"cell": "feed-forward", "window": 1, "learned_state": True, "layer_norm": True},
}


@pytest.fixture(params=SHAPES)
def network(request):
    torch.manual_seed(4)
    config = NetworkConfig(**{"layers": 2, "embedding_size": 6, "hidden_size": 11, **SHAPES[request.param]})
    network = Network(config, V)
    network.output.initialise_from_counts(torch.arange(1.0, V + 1))  # ranks that differ from the ids
    for param in network.parameters():
        torch.nn.init.uniform_(param, -0.4, 0.4)
    return network.eval()


def test_shapes_are_those_of_the_modules(network):
    shapes = parameter_shapes(network.config, V)
    modules = network.state_dict()
    assert shapes == {name: tuple(modules[name].shape) for name in shapes}
    assert len(shapes) == len({tensor.data_ptr() for tensor in modules.values()})
    assert count_parameters(network.config, V) == sum(p.numel() for p in network.parameters())


def test_a_network_in_a_file_answers_as_the_one_in_memory(network, tmp_path):
    write_network(network, tmp_path)
    stored, built = (
        Int8Model(weights, VOCABULARY)
        for weights in (read_weights(tmp_path, vocab_size=V), network.weights())
    )
    batch = pad_sequences([[5, 9, 4, 30, 3], [7, 0], []])
    scores, expected = (score_sequences(one, one.initial_state(3), *batch) for one in (stored, built))
    np.testing.assert_array_equal(scores, expected)
    assert stored.memory() == built.memory()
    assert stored.num_parameters == built.num_parameters


def test_vectors_of_tokens_are_those_of_the_embedding(network):
    parameters = Parameters(network.weights().arrays, PackedWeightCache())
    with torch.inference_mode():
        expected = network.embedding(torch.arange(V)).numpy()
    np.testing.assert_allclose(_token_vectors(network.config, parameters), expected, rtol=1e-5, atol=1e-7)
