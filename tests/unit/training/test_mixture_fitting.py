"""Fitting a cache: the reported perplexity is reached; θ and λ are the best of the grid."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from models.cache.config import CacheConfig
from models.cache.model import CacheModel, CacheScores
from models.errors import InputError
from tests.support import families
from training import mixture_fitting
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import score_corpus
from training.mixture_fitting import adapt_cache, choose_cache, score_with_caches
from training.progress import SILENT


def bursty(sentences=150, seed=4):
    """Sentences whose few words change every ten sentences, so recent words recur."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(sentences // 10):
        topic = random.choice(np.arange(3, 40), 5, replace=False)
        rows += [random.choice(topic, random.integers(2, 9)) for _ in range(10)]
    return EncodedCorpus.from_sentences(rows)


def fit_cache(model, corpus, window=60):
    """Return the model with its fitted cache, and the choice."""
    readings = score_with_caches(model, corpus, window=window, progress=SILENT)
    chosen = choose_cache(readings, readings.targets.log_probs)
    return CacheModel(model, chosen.config), chosen


@pytest.mark.parametrize(
    ("name", "kind"), [("lstm", "continuous"), ("ngram", "unigram"), ("mixture", "continuous")]
)
def test_a_fitted_cache_reaches_in_use_what_was_promised_and_helps(name, kind):
    model = families.model(name)
    cached, chosen = fit_cache(model, bursty())
    assert (cached.config.kind, cached.config.window) == (kind, 60)
    used = score_corpus(cached, bursty(), context="stream", progress=SILENT)
    assert chosen.log_probs == pytest.approx(used.log_probs, abs=1e-4)
    without = score_corpus(model, bursty(), context="stream", progress=SILENT)
    assert used.log_probs.sum() > without.log_probs.sum() + 100


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture by context"])
def test_dynamic_marginals_and_gate_reach_in_use_what_was_promised_and_help(name):
    model, corpus = families.model(name), bursty(400)
    readings = score_with_caches(model, corpus, window=60, progress=SILENT)
    plain = choose_cache(readings, readings.targets.log_probs)
    adapted = adapt_cache(plain, model, readings, corpus, progress=SILENT)
    assert adapted.config.marginals is not None
    cached = CacheModel(model, adapted.config, adapted.frequencies)
    used = score_corpus(cached, corpus, context="stream", progress=SILENT)
    assert adapted.log_probs == pytest.approx(used.log_probs, abs=1e-4)
    assert used.log_probs.sum(dtype=float) > plain.log_probs.sum(dtype=float) + 15


def test_flatness_and_half_life_are_chosen_again_for_the_adapted_model():
    model, corpus = families.model("lstm"), bursty(400)
    readings = score_with_caches(model, corpus, window=60, progress=SILENT)
    chosen = choose_cache(readings, readings.targets.log_probs)
    worst = replace(chosen.config, flatness=0.0 if chosen.config.flatness else 32.0, half_life=None)
    bad = chosen._replace(config=worst, log_probs=np.full_like(chosen.log_probs, -99))
    for begun in (chosen, bad):
        adapted = adapt_cache(begun, model, readings, corpus, progress=SILENT)
        cached = CacheModel(model, adapted.config, adapted.frequencies)
        own = mixture_fitting._score_with_cache(cached, corpus, progress=SILENT).log_probs
        best = choose_cache(readings, own).config
        assert (adapted.config.flatness, adapted.config.half_life) == (best.flatness, best.half_life)
        used = score_corpus(cached, corpus, context="stream", progress=SILENT).log_probs
        assert adapted.log_probs == pytest.approx(used, abs=1e-4)


def test_the_gate_is_where_the_likelihood_is_highest():
    model, corpus = families.model("ngram"), bursty(400)
    readings = score_with_caches(model, corpus, window=60, progress=SILENT)
    chosen = choose_cache(readings, readings.targets.log_probs)
    adapted = adapt_cache(chosen, model, readings, corpus, progress=SILENT)
    for index in range(3):
        for change in (-0.1, 0.1):
            gate = list(adapted.config.gate)
            gate[index] += change
            other = CacheModel(model, replace(adapted.config, gate=tuple(gate)), adapted.frequencies)
            scores = score_corpus(other, corpus, context="stream", progress=SILENT)
            assert scores.log_probs.sum(dtype=float) < adapted.log_probs.sum(dtype=float) + 0.1


def test_marginals_that_do_not_help_are_not_kept():
    random = np.random.default_rng(1)
    corpus = EncodedCorpus.from_sentences([random.integers(3, 40, 6) for _ in range(60)])
    model = families.model("ngram")
    readings = score_with_caches(model, corpus, window=60, progress=SILENT)
    chosen = choose_cache(readings, np.full(corpus.num_tokens, -0.01, np.float32))
    assert adapt_cache(chosen, model, readings, corpus, progress=SILENT) is chosen


def test_no_neighbouring_weight_or_half_life_is_better():
    model, corpus = families.model("ngram"), bursty()
    _, chosen = fit_cache(model, corpus)
    best = chosen.log_probs.sum()
    config = chosen.config
    for half_life, weight in (
        (config.half_life, config.weight * 0.9),
        (config.half_life, min(config.weight * 1.1, 0.999)),
        (config.half_life * 1.5, config.weight),
        (config.half_life / 1.5, config.weight),
    ):
        other = CacheConfig(kind="unigram", window=60, half_life=half_life, weight=weight, prior=config.prior)
        scores = score_corpus(CacheModel(model, other), corpus, context="stream", progress=SILENT)
        assert scores.log_probs.sum() <= best + 1e-3


def test_of_all_that_was_tried_the_best_is_chosen_and_read_again_by_itself():
    model, corpus = families.model("lstm"), bursty()
    readings = score_with_caches(model, corpus, window=60, progress=SILENT)
    chosen = choose_cache(readings, readings.targets.log_probs)
    for flatness, half_life in itertools.product(readings.flatnesses, readings.half_lives):
        for weight in (0.1, 0.3, 0.6):
            config = replace(chosen.config, flatness=flatness, half_life=half_life, weight=weight, prior=0.0)
            scores = CacheScores(readings.targets.log_probs, *readings.of(config))
            assert chosen.log_probs.sum(dtype=float) >= scores.mixed(config).sum(dtype=float)
    cached = CacheModel(model, chosen.config)
    assert chosen.log_probs == pytest.approx(
        score_corpus(cached, corpus, context="stream", progress=SILENT).log_probs, abs=1e-5
    )


def test_a_cache_may_be_chosen_for_another_models_probabilities():
    """Needed for a mixture, whose cache uses the features of one part."""
    corpus = bursty()
    readings = score_with_caches(families.model("lstm"), corpus, window=60, progress=SILENT)
    mixed = score_corpus(families.model("mixture"), corpus, context="stream", progress=SILENT).log_probs
    chosen = choose_cache(readings, mixed)
    _, direct = fit_cache(families.model("mixture"), corpus)
    assert (chosen.config.flatness, chosen.config.half_life) == (
        direct.config.flatness,
        direct.config.half_life,
    )
    assert chosen.config.weight == pytest.approx(direct.config.weight, abs=1e-4)


@pytest.mark.parametrize("sentences", [[], [[]]])
def test_a_text_that_says_nothing_of_a_cache_is_refused(sentences):
    corpus = EncodedCorpus.from_sentences(sentences)
    with pytest.raises(InputError, match=r"the held-out text has (no|one) token"):
        fit_cache(families.model("ngram"), corpus, window=5)
