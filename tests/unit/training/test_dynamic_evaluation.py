"""Dynamic evaluation: it scores before it learns, it learns, and it leaves the model as it was."""

import copy
import hashlib
import math

import numpy as np
import pytest
import torch

from models.errors import InvalidInputError
from tests import families
from training.corpora.encoded import EncodedCorpus
from training.dynamic_evaluation import DynamicSettings, dynamic_evaluation
from training.evaluating.scoring import score_corpus
from training.progress import SILENT

QUICK = DynamicSettings(stretch=10, learning_rate=0.02, decay=0.001)


def repetitive(times=40):
    """The same two sentences again and again."""
    return EncodedCorpus.from_sentences([[5, 9, 7, 30, 12], [8, 0, 21]] * times)


def fingerprint(model):
    weights = [p.detach().numpy().tobytes() for p in model.network.parameters()]
    return hashlib.sha256(b"".join(weights)).hexdigest()


@pytest.mark.parametrize("family", ["lstm", "gru"])
def test_a_repetitive_text_becomes_ever_more_probable(family):
    model = families.model(family)
    static = score_corpus(model, repetitive(), context="stream", progress=SILENT)
    dynamic = dynamic_evaluation(model, repetitive(), settings=QUICK, progress=SILENT)
    assert (dynamic.tokens == static.tokens).all()
    assert dynamic.log_probs.mean() > static.log_probs.mean() + 0.5
    quarter = len(dynamic.tokens) // 4
    assert dynamic.log_probs[-quarter:].mean() > dynamic.log_probs[:quarter].mean() + 0.4


def test_the_model_itself_does_not_change_by_a_bit():
    model = families.model("lstm")
    before = fingerprint(model)
    state = model.next_log_probs(model.initial_state(1)).copy()
    dynamic_evaluation(model, repetitive(5), settings=QUICK, progress=SILENT)
    assert fingerprint(model) == before
    assert (model.next_log_probs(model.initial_state(1)) == state).all()
    assert not any(p.grad is not None for p in model.network.parameters())


def test_a_stretch_is_scored_before_it_is_learnt_from():
    model, corpus = families.model("lstm"), repetitive(3)
    static = score_corpus(model, corpus, context="stream", progress=SILENT)
    for stretch in (7, 1_000):
        settings = DynamicSettings(stretch=stretch, learning_rate=0.5, decay=0.0)
        dynamic = dynamic_evaluation(model, corpus, settings=settings, progress=SILENT)
        first = min(stretch, 7 if stretch == 7 else len(static.tokens))
        untouched = first - 1 if stretch == 7 else first  # the first <s> is predicted by nobody
        assert dynamic.log_probs[:untouched] == pytest.approx(static.log_probs[:untouched], abs=1e-5)
    assert dynamic.log_probs == pytest.approx(static.log_probs, abs=1e-5)


def test_without_a_step_it_is_plain_evaluation():
    model, corpus = families.model("gru"), repetitive(4)
    settings = DynamicSettings(stretch=6, learning_rate=0.0, decay=0.0)
    dynamic = dynamic_evaluation(model, corpus, settings=settings, progress=SILENT)
    static = score_corpus(model, corpus, context="stream", progress=SILENT)
    assert dynamic.log_probs == pytest.approx(static.log_probs, abs=1e-5)


def test_the_step_is_what_the_formula_says():
    """The second stretch is scored by weights after one step, computed here anew."""
    model, corpus = families.model("lstm"), repetitive(3)
    settings = DynamicSettings(stretch=5, learning_rate=0.01, decay=0.5)
    dynamic = dynamic_evaluation(model, corpus, settings=settings, progress=SILENT)
    text = torch.from_numpy(corpus.with_boundaries().astype(np.int64))
    network = copy.deepcopy(model.network).requires_grad_()
    with torch.enable_grad():
        outputs, hidden = network(text[:5, None], network.zero_hidden(1))
        loss = -network.target_log_probs(outputs[:, 0], text[1:6]).mean()
        loss.backward()
    roots = [p.grad.double().abs() for p in network.parameters()]
    mean = sum(r.sum() for r in roots) / sum(r.numel() for r in roots)
    with torch.no_grad():
        for p, root in zip(network.parameters(), roots, strict=True):
            p.sub_((settings.learning_rate * p.grad / (root + mean)).float())  # w₀ − w is still 0
        outputs, _ = network(text[5:10, None], hidden)
        ids = text[6:11]
        kept = ids != 1
        expected = network.target_log_probs(outputs[kept, 0], ids[kept])
    assert dynamic.log_probs[5 : 5 + int(kept.sum())] == pytest.approx(expected.numpy(), abs=1e-5)


def test_decay_brings_the_weights_back():
    model, corpus = families.model("lstm"), repetitive(30)
    free = dynamic_evaluation(model, corpus, settings=QUICK, progress=SILENT).log_probs.mean()
    bound = dynamic_evaluation(model, corpus, settings=QUICK._replace(decay=1.0), progress=SILENT)
    static = score_corpus(model, corpus, context="stream", progress=SILENT).log_probs.mean()
    assert free > bound.log_probs.mean() > static


@pytest.mark.parametrize("name", ["ngram", "mixture", "unigram cache"])
def test_models_without_gradients_are_refused_by_family(name):
    model = families.model(name)
    with pytest.raises(InvalidInputError, match=f"family {model.family} has none"):
        dynamic_evaluation(model, repetitive(1), progress=SILENT)


@pytest.mark.parametrize(
    ("name", "value"), [("stretch", 0), ("learning_rate", -1.0), ("learning_rate", math.nan), ("decay", 1.5)]
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(InvalidInputError, match=f"{name} is"):
        dynamic_evaluation(
            families.model("lstm"), repetitive(1), settings=QUICK._replace(**{name: value}), progress=SILENT
        )
