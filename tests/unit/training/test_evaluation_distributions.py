"""Entropy and divergence from whole distributions, against one token at a time in double precision."""

import math

import numpy as np
import pytest

from models.arrays import to_numpy
from models.errors import InvalidInputError
from models.vocabulary import BOS, EOS, Vocabulary
from tests import families
from tests.fakes import FakeModel, fake_vocabulary
from training.corpus import EncodedCorpus
from training.evaluation.breakdown import (
    mean_divergence,
    mean_entropy,
    num_predicted,
    sample_positions,
    sampled_distributions,
)
from training.progress import Silent

HELD_OUT = families.corpus(25, seed=9)
CONTEXTS = ["sentence", "stream", "document"]
WINDOW = 4


def texts(context):
    """(Tokens before, tokens) of everything that is read from an empty state."""
    rows = [HELD_OUT.sentence(i).tolist() for i in range(HELD_OUT.num_sentences)]
    if context == "sentence":
        return [([BOS], [*row, EOS]) for row in rows]
    if context == "stream":
        return [([BOS], [token for row in rows for token in [*row, EOS, BOS]][:-1])]
    starts = [(row, start) for row in rows for start in range(0, len(row), WINDOW)]
    return [
        (row[min(start, len(row) - WINDOW) - 1 : start] if start else [BOS], row[start : start + WINDOW])
        for row, start in starts
    ]


def every_row(model, context):
    """The distribution over every predicted token [N, V], in the corpus's order."""
    rows = []
    for before, ids in texts(context):
        state = model.empty_state(1)
        for token in before:
            state = model.advance(state, np.array([token]))
        for token in ids:
            if token != BOS:
                rows.append(to_numpy(model.next_log_probs(state))[0].astype(np.float64))
            state = model.advance(state, np.array([token]))
    return np.array(rows)


def entropy_of(rows):
    return -sum(p * math.log(p) for p in np.exp(rows).ravel() if p > 0) / len(rows)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", families.NAMES)
def test_the_entropy_of_all_predictions_is_their_mean(name, context, monkeypatch):
    monkeypatch.setattr("training.evaluation.evaluate.CHUNK_TOKENS", 3)
    model = families.model(name)
    got = mean_entropy(model, HELD_OUT, context=context, window=WINDOW, progress=Silent())
    rows = every_row(model, context)
    assert got.positions == len(rows) == num_predicted(HELD_OUT, context)
    assert got.nats == pytest.approx(entropy_of(rows), abs=1e-4)
    assert got.bits == pytest.approx(got.nats / math.log(2))


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_sample_is_just_the_sampled_rows(context, monkeypatch):
    monkeypatch.setattr("training.evaluation.breakdown._BATCH_ROWS", 3)
    model = families.model("lstm")
    places = sample_positions(num_predicted(HELD_OUT, context), 17)
    given = {"context": context, "window": WINDOW, "progress": Silent()}
    got = np.concatenate(list(sampled_distributions(model, HELD_OUT, places, **given)))
    expected = every_row(model, context)[places]
    weights = np.random.default_rng(0).random(got.shape[1])
    assert np.sort(np.exp(got) @ weights) == pytest.approx(np.sort(np.exp(expected) @ weights), abs=1e-5)


def test_sampled_places_are_spread_evenly_over_the_text():
    assert sample_positions(10, 100).tolist() == list(range(10))
    assert sample_positions(1000, 4).tolist() == [125, 375, 625, 875]
    assert sample_positions(0, 4).tolist() == []


def test_the_standard_error_covers_the_mean_of_all():
    model, corpus = families.model("ngram"), families.corpus(400, seed=3)
    whole = mean_entropy(model, corpus, sample=10**9, progress=Silent())
    part = mean_entropy(model, corpus, sample=300, progress=Silent())
    assert (part.positions, whole.positions) == (300, corpus.num_tokens)
    assert 0 < abs(part.bits - whole.bits) < 4 * part.standard_error_bits < 1


@pytest.mark.parametrize("context", CONTEXTS)
def test_divergence_is_the_expected_difference_of_log_probabilities(context):
    a, b = families.model("ngram"), families.model("gru")
    got = mean_divergence(a, b, HELD_OUT, context=context, window=WINDOW, progress=Silent())
    p, q = every_row(a, context), every_row(b, context)
    with np.errstate(invalid="ignore"):
        terms = np.where(np.exp(p) > 0, np.exp(p) * (p - q), 0.0)
    assert got.nats == pytest.approx(terms.sum() / len(p), abs=1e-4)
    assert got.nats > 0.01


def test_a_model_does_not_diverge_from_itself():
    model = families.model("mixture")
    got = mean_divergence(model, model, HELD_OUT, progress=Silent())
    assert got.nats == pytest.approx(0, abs=1e-9)


def test_rows_that_miss_1_are_taken_as_if_they_did_not():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [6]])
    right, wrong = FakeModel(fake_vocabulary()), FakeModel(fake_vocabulary())
    wrong.table = wrong.table + np.float32(0.25)
    assert mean_divergence(right, wrong, corpus, progress=Silent()).nats == pytest.approx(0, abs=1e-6)


def test_divergence_from_a_model_that_rules_out_what_happens_is_infinite():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5]])
    a, b = FakeModel(fake_vocabulary()), FakeModel(fake_vocabulary())
    b.table = b.table.copy()
    b.table[:, 7] = -np.inf
    assert mean_divergence(a, b, corpus, progress=Silent()).nats is None
    assert mean_divergence(b, a, corpus, progress=Silent()).nats > 0


def test_models_with_different_vocabularies_are_refused():
    other = FakeModel(Vocabulary(["x", "y"]))
    with pytest.raises(InvalidInputError, match=r"different vocabularies \(40 and 5 tokens\)"):
        mean_divergence(families.model("ngram"), other, HELD_OUT, progress=Silent())


def test_no_text_has_no_entropy():
    empty = EncodedCorpus.from_sentences([])
    assert mean_entropy(FakeModel(fake_vocabulary()), empty, progress=Silent()) == (None, None, None, 0)
