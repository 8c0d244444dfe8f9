"""Dynamic evaluation: scores before it learns, learns, and leaves the model unchanged."""

import copy
import hashlib
import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch

from models.errors import InputError
from tests.support import families
from training import dynamic_evaluation as module
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import score_corpus
from training.progress import SILENT


class Settings(NamedTuple):
    stretch: int
    learning_rate: float
    decay: float


QUICK = Settings(stretch=10, learning_rate=0.02, decay=0.001)


@pytest.fixture
def evaluated(monkeypatch):
    """Function that evaluates with given settings."""

    def run(model, corpus, settings):
        monkeypatch.setattr(module, "_SEGMENT_TOKENS", settings.stretch)
        monkeypatch.setattr(module, "_LEARNING_RATE", settings.learning_rate)
        monkeypatch.setattr(module, "_DECAY", settings.decay)
        return module.dynamic_evaluation(model, corpus, progress=SILENT)

    return run


def repetitive(times=40):
    """Two sentences, repeated."""
    return EncodedCorpus.from_sentences([[5, 9, 7, 30, 12], [8, 0, 21]] * times)


def fingerprint(model):
    weights = [p.detach().numpy().tobytes() for p in model.network.parameters()]
    return hashlib.sha256(b"".join(weights)).hexdigest()


@pytest.mark.parametrize("family", ["lstm", "gru"])
def test_a_repetitive_text_becomes_ever_more_probable(family, evaluated):
    model = families.model(family)
    static = score_corpus(model, repetitive(), context="stream", progress=SILENT)
    dynamic = evaluated(model, repetitive(), QUICK)
    assert (dynamic.tokens == static.tokens).all()
    assert dynamic.log_probs.mean() > static.log_probs.mean() + 0.5
    quarter = len(dynamic.tokens) // 4
    assert dynamic.log_probs[-quarter:].mean() > dynamic.log_probs[:quarter].mean() + 0.4


def test_the_model_itself_does_not_change_by_a_bit(evaluated):
    model = families.model("lstm")
    before = fingerprint(model)
    state = model.next_log_probs(model.initial_state(1)).copy()
    evaluated(model, repetitive(5), QUICK)
    assert fingerprint(model) == before
    assert (model.next_log_probs(model.initial_state(1)) == state).all()
    assert not any(p.grad is not None for p in model.network.parameters())


@pytest.mark.parametrize("stretch", [4, 7])
def test_every_stretch_is_scored_before_it_is_learnt_from(stretch, evaluated):
    """Later tokens change no earlier score, at any position of a stretch."""
    model = families.model("lstm")
    text = np.random.default_rng(0).integers(3, 40, (6, 5))
    settings = Settings(stretch=stretch, learning_rate=0.5, decay=0.1)

    def scores(tokens):
        corpus = EncodedCorpus.from_sentences(tokens.tolist())
        told = evaluated(model, corpus, settings)
        return told.log_probs.reshape(6, 6)[:, :5].reshape(-1)  # without `</s>`

    before = scores(text)
    for place in range(30):
        other = text.reshape(-1).copy()
        other[place:] = 3 + (other[place:] - 2) % 37
        after = scores(other.reshape(6, 5))
        assert after[:place] == pytest.approx(before[:place], abs=1e-6)
        assert (np.abs(after[place:] - before[place:]) > 1e-6).all()


def test_without_a_step_it_is_plain_evaluation(evaluated):
    model, corpus = families.model("gru"), repetitive(4)
    settings = Settings(stretch=6, learning_rate=0.0, decay=0.0)
    dynamic = evaluated(model, corpus, settings)
    static = score_corpus(model, corpus, context="stream", progress=SILENT)
    assert dynamic.log_probs == pytest.approx(static.log_probs, abs=1e-5)


def slowly(model, corpus, settings):
    """Reference scores, in double precision, token by token."""
    network = copy.deepcopy(model.network).double().requires_grad_()
    weights = list(network.parameters())
    trained, gradients = [w.detach().clone() for w in weights], []
    text, hidden = corpus.with_boundaries().astype(np.int64), [h.double() for h in network.initial_hidden(1)]
    scores = []
    for start in range(0, len(text) - 1, settings.stretch):
        losses = []
        for token, following in itertools.pairwise(text[start : start + settings.stretch + 1].tolist()):
            outputs, hidden = network(torch.tensor([[token]]), tuple(hidden))
            if following != 1:  # `<s>` is never predicted
                losses.append(
                    -network.output.target_log_probs(network.features(outputs[0]), torch.tensor([following]))
                )
                scores.append(-losses[-1].item())
        gradients.append([g.numpy() for g in torch.autograd.grad(torch.cat(losses).mean(), weights)])
        roots = [np.sqrt(np.mean(np.square(own), axis=0)) for own in zip(*gradients, strict=True)]
        mean = sum(r.sum() for r in roots) / sum(r.size for r in roots)
        for weight, start_at, root, gradient in zip(weights, trained, roots, gradients[-1], strict=True):
            back = np.minimum(settings.decay * root / mean, 1) * (start_at - weight.detach()).numpy()
            step = settings.learning_rate * gradient / (root + mean)
            weight.data += torch.from_numpy(back - step)
        hidden = [part.detach() for part in hidden]
    return np.array(scores)


def test_scores_are_those_of_the_formula_step_by_step(evaluated):
    model, corpus = families.model("lstm"), repetitive(4)
    settings = Settings(stretch=5, learning_rate=0.03, decay=0.3)
    with torch.enable_grad():
        expected = slowly(model, corpus, settings)
    told = evaluated(model, corpus, settings)
    assert told.log_probs == pytest.approx(expected, abs=2e-4)


def test_decay_brings_the_weights_back(evaluated):
    model, corpus = families.model("lstm"), repetitive(30)
    free = evaluated(model, corpus, QUICK).log_probs.mean()
    bound = evaluated(model, corpus, QUICK._replace(decay=1.0))
    static = score_corpus(model, corpus, context="stream", progress=SILENT).log_probs.mean()
    assert free > bound.log_probs.mean() > static


@pytest.mark.parametrize("name", ["ngram", "mixture", "unigram cache"])
def test_models_without_gradients_are_refused_by_family(name):
    model = families.model(name)
    with pytest.raises(InputError, match=f"family of this model is {model.family}"):
        module.dynamic_evaluation(model, repetitive(1), progress=SILENT)
