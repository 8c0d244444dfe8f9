"""Figures over a corpus against sums written out by hand."""

import math

import numpy as np
import pytest

from models.arrays import to_numpy
from models.vocabulary import BOS, EOS, UNK
from tests import families
from training.evaluation import evaluate, score_corpus
from training.progress import Silent

HELD_OUT = families.corpus(25, seed=9)


def expected(model, texts):
    """Log-probabilities of (context token ids, text ids) pairs, one token at a time."""
    scores = []
    for context, ids in texts:
        state = model.empty_state(1)
        for token in context:
            state = model.advance(state, np.array([token]))
        for token in ids:
            if token != BOS:
                scores.append(float(to_numpy(model.next_log_probs(state))[0, token]))
            state = model.advance(state, np.array([token]))
    return np.array(scores)


def sentences():
    return [HELD_OUT.sentence(i).tolist() for i in range(HELD_OUT.num_sentences)]


@pytest.mark.parametrize("name", families.NAMES)
def test_sentence_context_starts_every_line_afresh(name):
    model = families.model(name)
    got = score_corpus(model, HELD_OUT, context="sentence", progress=Silent())
    assert got.log_probs == pytest.approx(
        expected(model, [([BOS], [*s, EOS]) for s in sentences()]), abs=1e-5
    )
    assert got.tokens.tolist() == [t for s in sentences() for t in [*s, EOS]]


@pytest.mark.parametrize("name", families.NAMES)
def test_stream_context_carries_the_state_across_lines(name, monkeypatch):
    monkeypatch.setattr("training.evaluation._CHUNK_TOKENS", 7)
    model = families.model(name)
    stream = [t for s in sentences() for t in [*s, EOS, BOS]][:-1]
    got = score_corpus(model, HELD_OUT, context="stream", progress=Silent())
    assert got.log_probs == pytest.approx(expected(model, [([BOS], stream)]), abs=1e-5)


@pytest.mark.parametrize("name", families.NAMES)
def test_document_context_is_disjoint_windows_after_one_token(name):
    model = families.model(name)
    texts = [
        ([s[start - 1] if start else BOS], s[start : start + 4])
        for s in sentences()
        for start in range(0, len(s), 4)
    ]
    got = score_corpus(model, HELD_OUT, context="document", window=4, progress=Silent())
    assert got.log_probs == pytest.approx(expected(model, texts), abs=1e-5)


def test_figures_are_what_their_names_say():
    model = families.model("ngram")
    figures = evaluate(model, HELD_OUT, progress=Silent())
    scores = expected(model, [([BOS], [*s, EOS]) for s in sentences()])
    known = np.array([t != UNK for s in sentences() for t in [*s, EOS]])
    assert figures.tokens == len(scores) == HELD_OUT.num_tokens
    assert figures.oov == (~known).sum() > 0
    assert figures.logprob == pytest.approx(scores.sum(), rel=1e-6)
    assert figures.perplexity == pytest.approx(math.exp(-scores.mean()), rel=1e-6)
    assert figures.perplexity_without_oov == pytest.approx(math.exp(-scores[known].mean()), rel=1e-6)
    words = HELD_OUT.num_words + HELD_OUT.num_sentences
    assert figures.word_perplexity == pytest.approx(math.exp(-scores.sum() / words), rel=1e-6)
    assert figures.bits_per_byte == pytest.approx(-scores.sum() / math.log(2) / HELD_OUT.num_bytes, rel=1e-6)
