"""The networks against their equations, written out token by token in float64."""

import numpy as np
import pytest
import torch

from models.language_model import BOS, Vocabulary, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network

VOCABULARY = Vocabulary([f"w{i}" for i in range(20)])
CELLS = ("feed-forward", "elman", "lstm", "gru", "mingru")
SHAPES = [
    {"layers": 1, "embedding_size": 8, "hidden_size": 8},
    {"layers": 2, "embedding_size": 8, "hidden_size": 13},
    {"layers": 2, "embedding_size": 5, "hidden_size": 9, "tied": False},
]
NORMED = {"layers": 3, "embedding_size": 11, "hidden_size": 11, "residual": True, "layer_norm": True}
ATTENTIVE = {"embedding_size": 7, "hidden_size": 9, "attention_window": 6, "attention_size": 5}
OPTIONS = [
    *((cell, shape) for cell in CELLS for shape in SHAPES),
    *((cell, NORMED) for cell in CELLS),
    *((cell, {"layers": 2, "residual": True, "embedding_size": 5, "hidden_size": 9}) for cell in CELLS),
    ("elman", {"activation": "relu", "embedding_size": 7, "hidden_size": 9}),
    ("feed-forward", {"activation": "relu", "window": 8, **NORMED}),
    ("feed-forward", {"window": 1, "embedding_size": 7, "hidden_size": 9}),
    *((cell, {"learned_state": True, "layers": 2, **SHAPES[0]}) for cell in ("elman", "lstm", "mingru")),
    *(("lstm", {"attention": kind, **ATTENTIVE}) for kind in ("additive", "multiplicative", "scaled")),
    ("feed-forward", {"attention": "scaled", **ATTENTIVE}),
    ("gru", {"attention": "additive", "learned_state": True, **NORMED, "attention_window": 40}),
]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def normed(x, weights, name):
    if f"{name}.weight" not in weights:
        return x
    scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def activated(config, x):
    return np.tanh(x) if config.activation == "tanh" else np.maximum(x, 0)


def recurrent_step(config, x, h, c, w):
    """Return the new output and cell state."""
    if config.cell == "mingru":
        z, n = np.split(w["gates.weight"] @ x + w["gates.bias"], 2)
        return (1 - sigmoid(z)) * h + sigmoid(z) * np.where(n > 0, n + 0.5, sigmoid(n)), c
    of_x = w["kernel.weight_ih_l0"] @ x + w["kernel.bias_ih_l0"]
    of_h = w["kernel.weight_hh_l0"] @ h + w["kernel.bias_hh_l0"]
    if config.cell == "elman":
        return activated(config, of_x + of_h), c
    if config.cell == "lstm":
        i, f, g, o = np.split(of_x + of_h, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    (xr, xz, xn), (hr, hz, hn) = np.split(of_x, 3), np.split(of_h, 3)
    z = sigmoid(xz + hz)
    return (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h, c


def recurrent_outputs(config, embedded, weights):
    """Return the outputs [T, H] of the top layer after each of T vectors."""
    initial = [weights.get(f"initial.{part}") for part in range(2)]
    h, c = ([np.zeros(config.hidden_size)] * config.layers if s is None else list(s[:, 0]) for s in initial)
    outputs = []
    for vector in embedded:
        x = vector
        for layer in range(config.layers):
            prefix = f"cells.{layer}."
            own = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
            below = normed(x, weights, f"norms.{layer}")
            h[layer], c[layer] = recurrent_step(config, below, h[layer], c[layer], own)
            skips = config.residual and len(x) == config.hidden_size
            x = h[layer] + x if skips else h[layer]
        outputs.append(normed(x, weights, f"norms.{config.layers}"))
    return np.stack(outputs)


def feed_forward_outputs(config, embedded, weights):
    """Return the outputs [T, H] of a feed-forward network over a window, with zeros before the text."""
    padded = np.concatenate([np.zeros((config.window - 1, config.embedding_size)), embedded])
    outputs = []
    for t in range(len(embedded)):
        x = padded[t : t + config.window].ravel()
        for layer in range(config.layers):
            below = normed(x, weights, f"norms.{layer}")
            above = weights[f"layers.{layer}.weight"] @ below + weights[f"layers.{layer}.bias"]
            skips = config.residual and len(x) == config.hidden_size
            x = activated(config, above) + x if skips else activated(config, above)
        outputs.append(normed(x, weights, f"norms.{config.layers}"))
    return np.stack(outputs)


def attended_outputs(config, outputs, w):
    """Add to each output the attention-weighted mean of its window, which includes the output itself."""
    answers = []
    for t, query in enumerate(outputs):
        seen = outputs[max(0, t - config.attention_window + 1) : t + 1]
        if config.attention == "additive":
            inner = w["scores.queries.weight"] @ query + w["scores.queries.bias"]
            scores = np.tanh(inner + seen @ w["scores.keys.weight"].T) @ w["scores.reduction.weight"][0]
        elif config.attention == "multiplicative":
            scores = seen @ w["scores.queries.weight"] @ query
        else:
            scores = seen @ w["scores.keys.weight"].T @ w["scores.queries.weight"] @ query
            scores /= np.sqrt(config.attention_size)
        answers.append(query + w["projection.weight"] @ (softmax(scores) @ seen))
    return np.stack(answers)


def reference_log_probs(network, tokens):
    """Log-probabilities [T, V] of the next token after each prefix of `<s>` and the tokens."""
    config = network.config
    weights = {name: p.detach().numpy().astype(np.float64) for name, p in network.named_parameters()}
    of_body = {name.removeprefix("body."): w for name, w in weights.items() if name.startswith("body.")}
    of_layers = {name.removeprefix("inner."): w for name, w in of_body.items()}
    embedded = weights["embedding.weight"][[BOS, *tokens]]
    compute = feed_forward_outputs if config.cell == "feed-forward" else recurrent_outputs
    x = compute(config, embedded, of_layers)
    if config.attention != "none":
        x = attended_outputs(config, x, of_body)
    if "projection.weight" in weights:
        x = x @ weights["projection.weight"].T + weights["projection.bias"]
    logits = x @ weights["embedding.weight" if config.tied else "output.weight"].T + weights["output.bias"]
    logits[:, BOS] = -np.inf
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("cell", "options"), OPTIONS)
def test_model_computes_the_equations(cell, options):
    """Each step's distribution and each sequence's score match the equations within 1e-5."""
    torch.manual_seed(3)
    network = Network(NetworkConfig(cell=cell, **options), len(VOCABULARY))
    for param in network.parameters():
        torch.nn.init.uniform_(param, -0.8, 0.8)  # far from linear
    model = NeuralModel(network, VOCABULARY)
    tokens = np.random.default_rng(5).integers(2, len(VOCABULARY), 45)
    expected = reference_log_probs(network, tokens)
    state = model.initial_state(1)
    scores = score_sequences(model, state, tokens[None], np.array([45]))[0]
    np.testing.assert_allclose(scores, expected[np.arange(45), tokens], atol=1e-5)
    for t, token in enumerate(tokens):
        np.testing.assert_allclose(model.next_log_probs(state)[0], expected[t], atol=1e-5)
        state = model.advance(state, np.array([token]))
