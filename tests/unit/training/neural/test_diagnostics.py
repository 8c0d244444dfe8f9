"""Gradients by lag and gate statistics against closed forms; training of unnormalised scores."""

import numpy as np
import pytest
import torch
from torch import nn

from models.language_model import BOS, EOS, SCORES, Want, is_self_normalised, pad_sequences
from models.neural.cells import Body
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.neural.network import Network
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.neural.diagnostics import (
    diagnose,
    gate_saturation,
    gradient_by_lag,
    log_normalisers,
    sample_segments,
)
from training.neural.settings import TrainSettings
from training.neural.trainer import train_network
from training.progress import Progress
from training.recipe import Recipe

V, H = 15, 10


def network(cell="lstm", layers=2):
    torch.manual_seed(3)
    return Network(NetworkConfig(cell=cell, layers=layers, embedding_size=6, hidden_size=H), V)


def some_tokens(length=9, rows=4):
    return torch.as_tensor(np.random.default_rng(0).integers(2, V, (length, rows)))


class Decaying(Body):
    """Body with h ← a h + W x, whose gradient after k steps is a^k."""

    def __init__(self, a):
        super().__init__()
        self.width, self.a, self.reads = H, a, nn.Linear(6, H)

    def start(self, batch):
        return (torch.zeros(1, batch, H),)

    def forward(self, inputs, carried):
        outputs = []
        h = carried[0][0]
        for x in inputs:
            h = self.a * h + self.reads(x)
            outputs.append(h)
        return torch.stack(outputs), (h[None],)


@pytest.mark.parametrize("a", [0.5, 1.0, 1.5])
def test_gradients_of_a_linear_recurrence_are_powers(a):
    net = network()
    net.body = Decaying(a)
    norms = np.array(gradient_by_lag(net, some_tokens()))
    assert len(norms) == 8
    assert norms / norms[0] == pytest.approx(a ** np.arange(8.0), rel=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradients_are_those_of_finite_differences(cell):
    net, tokens, lag = network(cell).double().eval(), some_tokens(7, 1), 3
    with torch.no_grad():
        _, carried = net(tokens[: 6 - lag], net.initial_hidden(1))

        def loss(hidden):
            top = net(tokens[6 - lag : 6], hidden)[1][0][0]
            return -float(net.output.target_log_probs(net.features(top), tokens[6]))

        squares = 0.0
        for number, part in enumerate(carried):
            for place in np.ndindex(*part.shape):
                moved = [[p.clone() for p in carried] for _ in range(2)]
                for sign, hidden in zip((1, -1), moved, strict=True):
                    hidden[number][place] += sign * 1e-6
                squares += ((loss(tuple(moved[0])) - loss(tuple(moved[1]))) / 2e-6) ** 2
    assert gradient_by_lag(net, tokens)[lag] == pytest.approx(squares**0.5, rel=1e-4)


def test_network_without_memory_has_no_gradient_beyond_lag_0():
    net = network()
    net.body = Decaying(0.0)
    assert gradient_by_lag(net, some_tokens())[1:] == [0] * 7


def test_neither_weights_gradients_nor_mode_are_touched():
    net = network().train()
    gradient_by_lag(net, some_tokens())
    gate_saturation(net, some_tokens())
    assert net.training
    assert all(param.grad is None for param in net.parameters())
    assert not any(module._forward_hooks for module in net.modules())


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow_gates(net, tokens):
    """Reference gate values of an LSTM by layer [T, B, H], in double precision."""
    inputs = net.embedding.weight.detach().double().numpy()[tokens]
    gates = []
    for cell in net.body.cells:
        weights = {name: p.detach().double().numpy() for name, p in cell.kernel.named_parameters()}
        h = c = np.zeros((tokens.shape[1], H))
        own, outputs = {"input": [], "forget": [], "output": []}, []
        for x in inputs:
            total = x @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
            total = total + h @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]
            i, f, g, o = np.split(total, 4, axis=1)
            i, f, o = sigmoid(i), sigmoid(f), sigmoid(o)
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
            outputs.append(h)
            for name, gate in zip(own, (i, f, o), strict=True):
                own[name].append(gate)
        inputs = np.array(outputs)
        gates.append({name: np.array(values) for name, values in own.items()})
    return gates


def test_gates_of_an_lstm_are_those_of_its_equations():
    net, tokens = network(), some_tokens(20, 6)
    with torch.no_grad():
        for param in net.body.parameters():
            param.mul_(6)  # to saturate many gates
    expected = slow_gates(net, tokens.numpy())
    got = gate_saturation(net, tokens)
    assert [(g["layer"], g["gate"]) for g in got] == [
        (n, g) for n in (1, 2) for g in ("input", "forget", "output")
    ]
    for g in got:
        values = expected[g["layer"] - 1][g["gate"]]
        assert (g["low"], g["high"]) == pytest.approx(
            ((values < 0.1).mean(), (values > 0.9).mean()), abs=2e-3
        )
    assert max(g["high"] for g in got) > 0.2


def test_a_gru_whose_update_gates_are_open_says_so():
    net = network("gru", layers=1)
    with torch.no_grad():
        net.body.cells[0].kernel.bias_ih_l0[H : 2 * H] = 20.0
    got = {g["gate"]: (g["low"], g["high"]) for g in gate_saturation(net, some_tokens())}
    assert got["update"] == (0, 1)
    assert got["reset"] == pytest.approx((0, 0), abs=0.01)


def test_a_mingrus_gates_look_at_the_input_alone():
    net = network("mingru", layers=1)
    with torch.no_grad():
        net.body.cells[0].gates.bias[:H] = torch.tensor([20.0] * 7 + [-20.0] * 3)
    assert [tuple(g.values()) for g in gate_saturation(net, some_tokens())] == [
        (1, "update", pytest.approx(0.3), pytest.approx(0.7))
    ]


def test_an_elman_network_has_its_outputs_looked_at_and_a_feed_forward_one_nothing():
    net = network("elman", layers=1)
    with torch.no_grad():
        net.body.cells[0].kernel.bias_ih_l0[:] = 20.0
    assert gate_saturation(net, some_tokens()) == [{"layer": 1, "gate": "|h|", "low": 0, "high": 1}]
    assert gate_saturation(network("feed-forward"), some_tokens()) == []


@pytest.mark.parametrize("cell", ["feed-forward", "elman", "lstm", "gru", "mingru"])
def test_every_family_has_gradients_by_lag(cell):
    norms = gradient_by_lag(network(cell), some_tokens(12))
    assert len(norms) == 11
    assert min(norms[:2]) > 0
    assert np.isfinite(norms).all()


def test_an_elman_networks_gradient_vanishes_where_an_lstms_does_not():
    tokens = some_tokens(41, 8)
    elman, lstm = (network(cell, layers=1) for cell in ("elman", "lstm"))
    with torch.no_grad():
        lstm.body.cells[0].kernel.bias_ih_l0[H : 2 * H] = 4.0  # mostly open forget gates
    lost = [gradient_by_lag(net, tokens) for net in (elman, lstm)]
    assert lost[0][39] < 1e-3 * lost[0][1]
    assert lost[1][39] > 1e-1 * lost[1][1]


def test_stretches_end_in_tokens_that_are_predicted():
    text = EncodedCorpus.from_sentences([[3], [4, 5], [6], [7, 8, 9]])
    stretches = sample_segments(text, length=4, rows=5)
    running = text.with_boundaries().tolist()
    assert stretches.shape == (4, 5)
    assert BOS not in stretches[-1]
    for column in stretches.T.tolist():
        assert any(running[i : i + 4] == column for i in range(len(running)))


def test_a_text_of_few_tokens_has_short_stretches_or_none():
    assert sample_segments(EncodedCorpus.from_sentences([[5]]), length=99, rows=9).tolist() == [
        [BOS],
        [5],
        [EOS],
    ]
    assert sample_segments(EncodedCorpus.from_sentences([]), length=99, rows=9) is None
    assert diagnose(network(), EncodedCorpus.from_sentences([])) == {}


def test_the_facts_are_of_the_text_and_can_be_json(monkeypatch):
    monkeypatch.setattr("training.neural.diagnostics.LAGS", 7)
    text = EncodedCorpus.from_sentences([[3, 4, 5, 6]] * 40)
    facts = diagnose(network("gru"), text)
    assert (facts["stretches"], len(facts["gradient_by_lag"])) == (32, 7)
    assert {g["gate"] for g in facts["gate_saturation"]} == {"reset", "update"}


TINY = NetworkConfig(embedding_size=16, hidden_size=24, dropout=0.0)
QUICK = {
    "batch_size": 8,
    "bptt_length": 16,
    "learning_rate": 1e-2,
    "max_minutes": None,
    "precision": "float32",
    "epochs": 30,
    "patience": 100,
}


_fitted = {}


@pytest.fixture
def fit(vocabulary, counting):
    def run(network=TINY, **changes):
        recipe = Recipe(family="neural", neural=network, train=TrainSettings(**(QUICK | changes)))
        key = recipe.model_dump_json()
        if key not in _fitted:  # tests share trained models, which they only read
            given = {"device": "cpu", "progress": Progress()}
            _fitted[key] = train_network(counting, counting, vocabulary, recipe, **given).model
        return _fitted[key]

    return run


def test_unnormalised_scores_differ_by_the_log_normaliser(vocabulary):
    torch.manual_seed(1)
    built = Network(TINY, len(vocabulary))
    torch.nn.init.normal_(built.output.weight)
    model = NeuralModel(built, vocabulary)
    tokens, lengths = pad_sequences([[3, 4, 5], [6], [7, 2]])
    state = model.initial_state(3)
    scores = model.read(state, tokens, lengths, SCORES)
    logits = model.read(state, tokens, lengths, Want(scores=True, before=True, normalised=False))
    off = logits.log_probs - scores.log_probs
    before = built.output.logits(torch.as_tensor(model.features(logits.before)))
    inside = np.arange(3) < lengths[:, None]
    np.testing.assert_allclose(off[inside], before.logsumexp(-1).detach().numpy(), atol=1e-5)
    assert not off[~inside].any()


def test_the_start_of_a_sentence_is_never_predicted(vocabulary):
    model = NeuralModel(Network(TINY, len(vocabulary)), vocabulary)
    for one in (model, Int8Model(model.network.weights(), vocabulary)):
        scores = one.read(
            one.initial_state(1), *pad_sequences([[3, BOS, 4]]), SCORES._replace(normalised=False)
        ).log_probs
        assert (scores[0] == -np.inf).tolist() == [False, True, False]


def test_only_models_trained_for_it_offer_them(vocabulary):
    for flag in (True, False):
        config = TINY.model_copy(update={"self_normalised": flag})
        assert is_self_normalised(NeuralModel(Network(config, len(vocabulary)), vocabulary)) == flag


def test_self_normalisation_is_remembered_with_the_model(fit, vocabulary, tmp_path):
    model = fit(self_normalise=0.1, max_steps=2)
    model.save(tmp_path)
    assert is_self_normalised(NeuralModel.load(tmp_path, vocabulary))
    assert not is_self_normalised(fit(max_steps=2))


def test_the_pull_brings_log_normalisers_near_zero(fit, counting):
    pulled, free = (log_normalisers(fit(self_normalise=pull), counting) for pull in (1.0, 0.0))
    assert abs(pulled["mean"]) < 0.2
    assert pulled["deviation"] < 0.4
    assert free["deviation"] > 5 * pulled["deviation"]


def test_patience_waits_for_the_second_loss(fit, counting):
    """Negative sampling raises perplexity at first, before the second loss lowers it."""
    model = fit(loss="negative-sampling", samples=4, sampled_share=0.5, patience=2, validations=40)
    assert evaluate(model, counting, progress=Progress()).perplexity < 5


def test_noise_contrastive_estimation_brings_them_near_zero_too(fit, counting):
    model = fit(loss="nce", samples=10)
    assert model.self_normalised
    assert abs(log_normalisers(model, counting)["mean"]) < 0.3
    assert not fit(max_steps=2).self_normalised


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, 1.4),
        ({"self_normalise": 0.1}, 1.4),
        ({"loss": "sampled", "samples": 10}, 1.4),
        ({"loss": "sampled", "samples": 4, "noise": "log-uniform"}, 1.9),
        ({"loss": "nce", "samples": 10}, 1.4),
        ({"loss": "negative-sampling", "samples": 10}, 2.5),
        ({"loss": "negative-sampling", "samples": 10, "sampled_share": 0.5}, 1.5),
    ],
)
def test_every_loss_learns_the_pattern(fit, counting, settings, allowed):
    """Perplexity is 1.29 for a perfect model and 8 for unigram counts; evaluation uses the exact softmax."""
    assert evaluate(fit(**settings), counting, progress=Progress()).perplexity < allowed


def test_an_adaptive_softmax_learns_the_pattern(fit, counting):
    network = TINY.model_copy(update={"output": "adaptive", "cutoffs": (6, 10)})
    for tied in (True, False):
        model = fit(network.model_copy(update={"tied": tied}))
        assert evaluate(model, counting, progress=Progress()).perplexity < 1.5
