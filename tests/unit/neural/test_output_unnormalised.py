"""Unnormalised scores: what they are, who has them, and that training makes them useful."""

import numpy as np
import pytest
import torch

from models.language_model import is_self_normalised, pad_sequences
from models.neural.config import NetworkConfig
from models.neural.model import Int8Model, NeuralModel
from models.neural.network import Network
from models.vocabulary import BOS
from training.evaluation.evaluate import evaluate
from training.neural.diagnostics import log_normalisers, normaliser_facts
from training.neural.settings import TrainSettings
from training.neural.trainer import train_network
from training.progress import Silent

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


@pytest.fixture
def fit(vocabulary, counting):
    def run(network=TINY, **changes):
        settings = TrainSettings(**(QUICK | changes))
        given = {"network": network, "settings": settings, "seed": 1, "device": "cpu", "progress": Silent()}
        return train_network(counting, counting, vocabulary, **given).model

    return run


def test_unnormalised_scores_differ_by_the_log_normaliser(vocabulary):
    torch.manual_seed(1)
    built = Network(TINY, len(vocabulary))
    torch.nn.init.normal_(built.output.weight)
    model = NeuralModel(built, vocabulary)
    tokens, lengths = pad_sequences([[3, 4, 5], [6], [7, 2]])
    state = model.initial_state(3)
    off = model.score_unnormalised(state, tokens, lengths) - model.score(state, tokens, lengths)
    logits = built.output.logits(torch.as_tensor(model.features_per_token(state, tokens, lengths)))
    inside = np.arange(3) < lengths[:, None]
    np.testing.assert_allclose(off[inside], logits.logsumexp(-1).detach().numpy()[inside], atol=1e-5)
    assert not off[~inside].any()


def test_the_start_of_a_sentence_is_never_predicted(vocabulary):
    model = NeuralModel(Network(TINY, len(vocabulary)), vocabulary)
    for one in (model, Int8Model(model.network, vocabulary)):
        scores = one.score_unnormalised(one.initial_state(1), *pad_sequences([[3, BOS, 4]]))
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
    assert abs(pulled.mean) < 0.2
    assert pulled.deviation < 0.4
    assert free.deviation > 5 * pulled.deviation


def test_patience_waits_for_the_second_loss(fit, counting):
    """Negative sampling makes perplexity worse at first, which says nothing of what follows."""
    model = fit(loss="negative-sampling", samples=4, sampled_share=0.5, patience=2, validations=40)
    assert evaluate(model, counting, progress=Silent()).perplexity < 5


def test_noise_contrastive_estimation_brings_them_near_zero_too(fit, counting):
    model = fit(loss="nce", samples=10)
    facts = normaliser_facts(model, counting)["log_normalisers"]
    assert abs(facts["mean"]) < 0.3
    assert normaliser_facts(fit(max_steps=2), counting) == {}


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
    """1.29 is perfect, 8 is knowing the counts; all are evaluated by the exact softmax."""
    assert evaluate(fit(**settings), counting, progress=Silent()).perplexity < allowed


def test_an_adaptive_softmax_learns_the_pattern(fit, counting):
    network = TINY.model_copy(update={"output": "adaptive", "cutoffs": (6, 10)})
    for tied in (True, False):
        model = fit(network.model_copy(update={"tied": tied}))
        assert evaluate(model, counting, progress=Silent()).perplexity < 1.5
