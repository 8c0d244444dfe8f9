"""Quantised models against float64 arithmetic on rounded numbers, and against single precision."""

import numpy as np
import pytest
import torch

from models.errors import InputError
from models.language_model import (
    BOS,
    SCORES,
    Vocabulary,
    Want,
    pad_sequences,
    prefill_sequences,
    score_sequences,
)
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.neural.network import Network

VOCABULARY = Vocabulary([f"w{i}" for i in range(67)])
SHAPES = [
    {"cell": "lstm", "layers": 2, "embedding_size": 12, "hidden_size": 12},
    {"cell": "lstm", "layers": 1, "embedding_size": 9, "hidden_size": 13, "learned_state": True},
    {"cell": "gru", "layers": 2, "embedding_size": 7, "hidden_size": 70, "tied": False},
    {"cell": "elman", "layers": 2, "embedding_size": 12, "hidden_size": 12, "residual": True},
    {"cell": "elman", "embedding_size": 5, "hidden_size": 9, "activation": "relu", "learned_state": True},
    {
        "cell": "mingru",
        "layers": 3,
        "embedding_size": 9,
        "hidden_size": 66,
        "residual": True,
        "layer_norm": True,
    },
    {
        "cell": "lstm",
        "layers": 2,
        "embedding_size": 13,
        "hidden_size": 13,
        "residual": True,
        "layer_norm": True,
    },
    {"cell": "feed-forward", "layers": 1, "embedding_size": 9, "hidden_size": 13, "window": 4},
    {"cell": "feed-forward", "layers": 3, "embedding_size": 6, "hidden_size": 18, "window": 3}
    | {"residual": True, "layer_norm": True, "activation": "relu"},
    {"cell": "feed-forward", "layers": 1, "embedding_size": 9, "hidden_size": 9, "window": 1},
    {"cell": "elman", "embedding_size": 7, "hidden_size": 9, "attention": "scaled", "attention_window": 4}
    | {"attention_size": 5},
    {"cell": "lstm", "embedding_size": 9, "hidden_size": 9, "attention": "additive", "attention_window": 3}
    | {"attention_size": 6, "layers": 2, "residual": True, "layer_norm": True, "learned_state": True},
    {"cell": "gru", "embedding_size": 8, "hidden_size": 13, "attention": "multiplicative"}
    | {"attention_window": 5, "tied": False},
    {"cell": "gru", "embedding_size": 16, "hidden_size": 16, "output": "adaptive", "cutoffs": (7, 30)},
    {"cell": "lstm", "embedding_size": 9, "hidden_size": 12, "output": "adaptive", "cutoffs": (20,)}
    | {"tied": False, "attention": "scaled", "attention_window": 2, "attention_size": 3},
]


def network_of(shape, scale=0.5):
    torch.manual_seed(5)
    network = Network(NetworkConfig(**shape), len(VOCABULARY))
    for param in network.parameters():
        torch.nn.init.uniform_(param, -scale, scale)
    return network.eval()


def rounded(vectors):
    """Round each vector to 255 steps, in float64."""
    scales = np.abs(vectors).max(axis=-1, keepdims=True, initial=1e-30) / 127
    return np.floor(vectors / scales + 0.5) * scales


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Reference:
    """Float64 network with rounded weights and activations, one text at a time."""

    def __init__(self, network):
        self.config = network.config
        self.weights = {name: value.detach().double().numpy() for name, value in network.state_dict().items()}
        self.top, *carried = (part[:, 0].detach().double().numpy() for part in network.initial_hidden(1))
        self.h, self.c = carried[0].copy(), carried[1 if network.config.cell == "lstm" else 0].copy()
        self.seen = []
        self.inner = "body.inner." if network.config.attention != "none" else "body."
        with torch.inference_mode():
            self.embedded = network.embedding(torch.arange(len(VOCABULARY))).double().numpy()
        self.bounds = (0, *network.config.cutoffs, len(VOCABULARY))

    def read(self, token):
        x = rounded(self.embedded)[token]
        if self.config.cell == "feed-forward":
            seen = np.concatenate([self.h, x[None]])
            x, self.h = seen.ravel(), seen[1:]
        for layer in range(self.config.layers):
            inputs = rounded(self.norm(layer, x))
            above = getattr(self, self.config.cell.replace("-", "_"))(layer, inputs)
            x = above + x if self.config.residual and len(x) == len(above) else above
        self.top = self.attended(self.norm(self.config.layers, x))

    def attended(self, x):
        if self.config.attention == "none":
            return x
        self.seen = [*self.seen, x.copy()][-self.config.attention_window :]
        score = {name.removeprefix("body.scores."): value for name, value in self.weights.items()}
        query = rounded(score["queries.weight"]) @ rounded(x) + score.get("queries.bias", 0.0)
        keys = [
            rounded(score["keys.weight"]) @ rounded(h) if "keys.weight" in score else h for h in self.seen
        ]
        if self.config.attention == "additive":
            scores = np.array([score["reduction.weight"][0] @ np.tanh(query + key) for key in keys])
        else:
            scale = self.config.attention_size**-0.5 if self.config.attention == "scaled" else 1.0
            scores = np.array([query @ key * scale for key in keys])
        shares = np.exp(scores - scores.max())
        context = (shares / shares.sum()) @ np.array(self.seen)
        return x + rounded(self.weights["body.projection.weight"]) @ rounded(context)

    def norm(self, number, x):
        if not self.config.layer_norm:
            return x
        weight, bias = (self.weights[f"{self.inner}norms.{number}.{name}"] for name in ("weight", "bias"))
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * weight + bias

    def products(self, layer, inputs):
        """Contributions of the inputs and the last outputs to each gate."""
        of_inputs, of_hidden, *biases = (
            self.weights[f"{self.inner}cells.{layer}.kernel.{name}_l0"]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        x = rounded(of_inputs) @ inputs + biases[0]
        u = rounded(of_hidden) @ rounded(self.h[layer]) + biases[1]
        return x.reshape(-1, self.config.hidden_size), u.reshape(-1, self.config.hidden_size)

    def activation(self, x):
        return np.tanh(x) if self.config.activation == "tanh" else np.maximum(x, 0)

    def feed_forward(self, layer, inputs):
        weight, bias = (self.weights[f"{self.inner}layers.{layer}.{name}"] for name in ("weight", "bias"))
        return self.activation(rounded(weight) @ inputs + bias)

    def elman(self, layer, inputs):
        x, u = self.products(layer, inputs)
        self.h[layer] = self.activation(x[0] + u[0])
        return self.h[layer]

    def lstm(self, layer, inputs):
        i, f, g, o = np.add(*self.products(layer, inputs))
        self.c[layer] = sigmoid(f) * self.c[layer] + sigmoid(i) * np.tanh(g)
        self.h[layer] = sigmoid(o) * np.tanh(self.c[layer])
        return self.h[layer]

    def gru(self, layer, inputs):
        x, u = self.products(layer, inputs)
        r, z = sigmoid(x[:2] + u[:2])
        self.h[layer] = (1 - z) * np.tanh(x[2] + r * u[2]) + z * self.h[layer]
        return self.h[layer]

    def mingru(self, layer, inputs):
        weight, bias = (
            self.weights[f"{self.inner}cells.{layer}.gates.{name}"] for name in ("weight", "bias")
        )
        z, n = np.split(rounded(weight) @ inputs + bias, 2)
        candidate = np.where(n > 0, n + 0.5, sigmoid(n))
        self.h[layer] = (1 - sigmoid(z)) * self.h[layer] + sigmoid(z) * candidate
        return self.h[layer]

    def log_probs(self):
        features = self.top.reshape(-1)
        if "projection.weight" in self.weights:
            features = rounded(self.weights["projection.weight"]) @ rounded(features)
            features = features + self.weights["projection.bias"]
        if self.config.output == "adaptive":
            return self.adaptive_log_probs(features)
        matrix = self.weights["embedding.weight" if self.config.tied else "output.weight"]
        logits = rounded(matrix) @ rounded(features) + self.weights["output.bias"]
        logits[BOS] = -np.inf
        return logits - np.log(np.exp(logits).sum())

    def adaptive_log_probs(self, features):
        def log_softmax(logits):
            return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

        vectors = "embedding." if self.config.tied else "output.vectors."
        size, x = self.bounds[1], rounded(features)
        head = np.concatenate([self.weights[f"{vectors}tables.0"], self.weights["output.clusters"]])
        logits = rounded(head) @ x + self.weights["output.biases.0"]
        logits[0] = -np.inf
        head = log_softmax(logits)
        parts = [head[:size]]
        for tail in range(1, len(self.bounds) - 1):
            narrow = rounded(self.weights[f"{vectors}projections.{tail - 1}"]) @ x
            inside = rounded(self.weights[f"{vectors}tables.{tail}"]) @ rounded(narrow)
            parts.append(log_softmax(inside + self.weights[f"output.biases.{tail}"]) + head[size + tail - 1])
        return np.concatenate(parts)[self.weights[f"{vectors}rank"].astype(int)]


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_equal_float64_arithmetic_on_the_rounded_numbers(shape):
    network = network_of(shape)
    model, reference = Int8Model(network.weights(), VOCABULARY), Reference(network)
    state = model.empty_state(1)
    for token in (BOS, 5, 0, 69, 2, 17, 5, 33):
        state = model.advance(state, np.array([token]))
        reference.read(token)
        # an activation halfway between two steps may round either way
        assert model.next_log_probs(state)[0] == pytest.approx(reference.log_probs(), abs=2e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_near_those_in_single_precision(shape):
    network = network_of(shape, scale=0.2)
    batch = pad_sequences(np.random.default_rng(0).integers(2, 70, (9, 21)))
    quantised, single = Int8Model(network.weights(), VOCABULARY), NeuralModel(network, VOCABULARY)
    got = score_sequences(quantised, quantised.initial_state(9), *batch)
    want = score_sequences(single, single.initial_state(9), *batch)
    assert np.abs(got - want).max() < 0.03
    assert abs(got.mean() - want.mean()) < 0.002


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "output" not in shape])
def test_unnormalised_scores_are_off_by_the_logarithm_of_the_sum(shape):
    model = Int8Model(network_of(shape).weights(), VOCABULARY)
    start, batch = model.initial_state(2), pad_sequences([[5, 9], [7]])
    off = model.read(start, *batch, SCORES._replace(normalised=False)).log_probs - score_sequences(
        model, start, *batch
    )
    assert off[0, 0] == pytest.approx(off[1, 0], abs=1e-5)
    assert off[0, 1] != pytest.approx(off[0, 0], abs=1e-5)
    assert off[1, 1] == 0


def test_ids_that_are_no_tokens_are_refused():
    model = Int8Model(network_of(SHAPES[0]).weights(), VOCABULARY)
    for bad in (70, -1, 10**12):
        with pytest.raises(InputError, match=rf"token id {bad} is not in \[0, 70\)"):
            model.advance(model.initial_state(2), np.array([3, bad]))


def test_fewer_tokens_than_rows_are_refused():
    """Otherwise a kernel would write out of bounds."""
    model = Int8Model(network_of(SHAPES[0]).weights(), VOCABULARY)
    with pytest.raises(ValueError, match="reshape"):
        model.advance(model.initial_state(3), np.array([4, 5]))


def test_padding_of_a_row_is_not_read():
    model = Int8Model(network_of(SHAPES[0]).weights(), VOCABULARY)
    tokens, lengths = np.array([[5, 6, 7], [8, -1, 10**12]]), np.array([3, 1])
    assert not score_sequences(model, model.initial_state(2), tokens, lengths)[1, 1:].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_features_are_what_the_output_layer_reads_before_each_token(shape):
    model = Int8Model(network_of(shape).weights(), VOCABULARY)
    tokens, lengths = pad_sequences([[5, 9, 4], [7], []])
    start = model.initial_state(3)
    scores, _, before = model.read(start, tokens, lengths, Want(scores=True, before=True))
    assert (scores == score_sequences(model, start, tokens, lengths)).all()
    features = model.features(before)
    assert (features == model.features(model.read(start, tokens, lengths, Want(before=True)).before)).all()
    assert features.shape == (4, model.feature_size)
    assert (features[[0, 3]] == model.features(start)[:2]).all()
    after_two = prefill_sequences(model, start, tokens[:, :2], np.array([2, 0, 0]))
    assert (features[2] == model.features(after_two)[0]).all()
    assert (model.next_log_probs(before)[2] == model.next_log_probs(after_two)[0]).all()


def test_states_are_values():
    model = Int8Model(network_of(SHAPES[0]).weights(), VOCABULARY)
    state = prefill_sequences(model, model.initial_state(2), *pad_sequences([[5, 6], [7, 8]]))
    before = [part.copy() for part in state.hidden]
    model.advance(state, np.array([3, 4]))
    prefill_sequences(model, state, *pad_sequences([[9], [4, 4]]))
    joined = state.select(np.array([1, 0])).concatenate([state])
    assert all((part == kept).all() for part, kept in zip(state.hidden, before, strict=True))
    assert (model.next_log_probs(joined) == model.next_log_probs(state)[[1, 0, 0, 1]]).all()


def test_a_vocabulary_of_another_size_is_refused():
    with pytest.raises(InputError, match="the network predicts 70 tokens, the vocabulary has 4"):
        Int8Model(network_of(SHAPES[0]).weights(), Vocabulary(["a"]))


def test_a_layer_so_wide_that_sums_could_leave_32_bits_is_not_computed_in_integers():
    widest = {"cell": "feed-forward", "window": 64, "embedding_size": 2048}
    assert NetworkConfig(**widest).int8_problem is None
    problem = NetworkConfig(**widest | {"embedding_size": 2049}).int8_problem
    assert problem == "int8 supports layer inputs of up to 131072 numbers, given 131136"
