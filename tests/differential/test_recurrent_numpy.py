"""The recurrent networks against their equations, written out gate by gate in float64."""

import numpy as np
import pytest
import torch

from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.vocabulary import BOS, Vocabulary

VOCABULARY = Vocabulary([f"w{i}" for i in range(20)])
SHAPES = [
    {"layers": 1, "embedding_size": 8, "hidden_size": 8},
    {"layers": 2, "embedding_size": 8, "hidden_size": 13},
    {"layers": 2, "embedding_size": 5, "hidden_size": 9, "tied": False},
]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_step(x, h, c, w):
    i, f, g, o = np.split(w["weight_ih"] @ x + w["bias_ih"] + w["weight_hh"] @ h + w["bias_hh"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(x, h, c, w):
    xr, xz, xn = np.split(w["weight_ih"] @ x + w["bias_ih"], 3)
    hr, hz, hn = np.split(w["weight_hh"] @ h + w["bias_hh"], 3)
    z = sigmoid(xz + hz)
    return (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h, c


def reference_log_probs(network, tokens):
    """Log-probabilities [T, V] of what follows each prefix of `<s>` and the tokens."""
    config = network.config
    weights = {name: p.detach().numpy().astype(np.float64) for name, p in network.named_parameters()}
    output = weights["embedding.weight"] if config.tied else weights["output.weight"]
    advance = lstm_step if config.cell == "lstm" else gru_step
    h, c = np.zeros((2, config.layers, config.hidden_size))
    rows = []
    for token in [BOS, *tokens]:
        x = weights["embedding.weight"][token]
        for layer in range(config.layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            gates = {name: weights[f"body.cells.{layer}.kernel.{name}_l0"] for name in names}
            x, c[layer] = advance(x, h[layer], c[layer], gates)
            h[layer] = x
        if "projection.weight" in weights:
            x = weights["projection.weight"] @ x + weights["projection.bias"]
        logits = output @ x + weights["output.bias"]
        logits[BOS] = -np.inf
        rows.append(logits - np.log(np.exp(logits).sum()))
    return np.stack(rows)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_model_computes_the_gate_equations(cell, shape):
    """Each step's whole distribution and each whole score are the equations' within 1e-5."""
    torch.manual_seed(3)
    network = Network(NetworkConfig(cell=cell, **shape), len(VOCABULARY))
    for parameter in network.parameters():
        torch.nn.init.uniform_(parameter, -0.8, 0.8)  # far from linear
    model = NeuralModel(network, VOCABULARY)
    tokens = np.random.default_rng(5).integers(2, len(VOCABULARY), 45)
    expected = reference_log_probs(network, tokens)
    state = model.initial_state(1)
    scores = model.score(state, tokens[None], np.array([45]))[0]
    np.testing.assert_allclose(scores, expected[np.arange(45), tokens], atol=1e-5)
    for t, token in enumerate(tokens):
        np.testing.assert_allclose(model.next_log_probs(state)[0], expected[t], atol=1e-5)
        state = model.advance(state, np.array([token]))
