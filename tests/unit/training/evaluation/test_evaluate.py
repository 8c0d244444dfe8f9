"""Perplexity and related metrics against step-by-step sums; n-gram hit rates."""

import json
import math

import numpy as np
import pytest

from models.arrays import to_numpy
from models.language_model import BOS, EOS, UNK
from tests.support import families
from tests.support.fake_models import FakeModel, fake_vocabulary
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate, group_figures, score_corpus
from training.progress import Progress
from training.tokenizer import encode_corpus

HELD_OUT = families.corpus(25, seed=9)


def expected(model, texts):
    """Log-probabilities of (context ids, text ids) pairs, token by token."""
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
    got = score_corpus(model, HELD_OUT, context="sentence", progress=Progress())
    assert got.log_probs == pytest.approx(
        expected(model, [([BOS], [*s, EOS]) for s in sentences()]), abs=1e-5
    )
    assert got.tokens.tolist() == [t for s in sentences() for t in [*s, EOS]]


@pytest.mark.parametrize("name", families.NAMES)
def test_stream_context_carries_the_state_across_lines(name, monkeypatch):
    monkeypatch.setattr("training.evaluation.evaluate.CHUNK_TOKENS", 7)
    model = families.model(name)
    stream = [t for s in sentences() for t in [*s, EOS, BOS]][:-1]
    got = score_corpus(model, HELD_OUT, context="stream", progress=Progress())
    assert got.log_probs == pytest.approx(expected(model, [([BOS], stream)]), abs=1e-5)


@pytest.mark.parametrize("name", families.NAMES)
def test_document_context_is_disjoint_windows_and_the_last_has_more_before_it(name):
    model = families.model(name)
    texts = [
        (s[min(start, len(s) - 4) - 1 : start] if start else [BOS], s[start : start + 4])
        for s in sentences()
        for start in range(0, len(s), 4)
    ]
    got = score_corpus(model, HELD_OUT, context="document", window=4, progress=Progress())
    assert got.log_probs == pytest.approx(expected(model, texts), abs=1e-5)


def test_figures_are_what_their_names_say():
    model = families.model("ngram")
    figures = evaluate(model, HELD_OUT, progress=Progress())
    scores = expected(model, [([BOS], [*s, EOS]) for s in sentences()])
    known = np.array([t != UNK for s in sentences() for t in [*s, EOS]])
    assert figures.tokens == len(scores) == HELD_OUT.num_tokens
    assert figures.oov == (~known).sum() > 0
    assert figures.logprob == pytest.approx(scores.sum(), rel=1e-6)
    assert figures.perplexity == pytest.approx(math.exp(-scores.mean()), rel=1e-6)
    assert figures.perplexity_without_oov == pytest.approx(math.exp(-scores[known].mean()), rel=1e-6)
    words = HELD_OUT.num_words + HELD_OUT.num_sentences
    assert figures.word_perplexity == pytest.approx(math.exp(-scores.sum() / words), rel=1e-6)
    assert figures.nats_per_token == pytest.approx(-scores.mean(), rel=1e-6)
    assert figures.bits_per_token == pytest.approx(-scores.mean() / math.log(2), rel=1e-6)
    assert figures.byte_perplexity == pytest.approx(math.exp(-scores.sum() / HELD_OUT.num_bytes), rel=1e-6)
    assert figures.bits_per_byte == pytest.approx(-scores.sum() / math.log(2) / HELD_OUT.num_bytes, rel=1e-6)


def test_an_impossible_token_leaves_no_figure_that_json_cannot_carry():
    class Impossible(FakeModel):
        def next_log_probs(self, state):
            rows = super().next_log_probs(state).copy()
            rows[:, 5] = -np.inf
            return rows

    corpus = EncodedCorpus.from_sentences([[3, 5, 4]], num_words=3, num_bytes=9)
    told = evaluate(Impossible(fake_vocabulary()), corpus, progress=Progress()).facts()
    json.dumps(told, allow_nan=False)
    assert [told[name] for name in ("logprob", "nats_per_token", "bits_per_token", "byte_perplexity")] == [
        None
    ] * 4


def test_bits_per_byte_of_a_document_count_its_line_ends():
    tokenizer = families.tokenizer()
    lines = encode_corpus(tokenizer, ["w1 w2", "w3"])
    document = encode_corpus(tokenizer, ["w1 w2\nw3"])
    assert (lines.num_bytes, document.num_bytes) == (7, 8)
    figures = evaluate(families.model("ngram"), document, context="document", progress=Progress())
    assert figures.bits_per_byte == pytest.approx(-figures.logprob / math.log(2) / 8)


def test_tokens_are_grouped_by_the_length_of_what_was_found():
    log_probs = np.log([0.5, 0.1, 0.2, 0.4])
    none, one, two, three = group_figures(log_probs, np.array([2, 1, 2, 1], np.uint8), 4)
    assert (one["tokens"], one["share"]) == (2, 0.5)
    assert one["perplexity"] == pytest.approx(1 / math.sqrt(0.1 * 0.4))
    assert two["logprob"] == pytest.approx(np.log(0.5 * 0.2) / 2)
    assert none == three == {"tokens": 0, "share": 0, "logprob": None, "perplexity": None}


def test_an_impossible_token_has_no_perplexity_and_can_be_written_as_json():
    _, one = group_figures(np.array([-np.inf, -1.0]), np.array([1, 1]), 2)
    assert (one["tokens"], one["logprob"], one["perplexity"]) == (2, None, None)
    json.dumps(one, allow_nan=False)


def test_no_token_has_no_rates():
    assert [figures["share"] for figures in group_figures(np.zeros(0), np.zeros(0, np.uint8), 2)] == [0, 0]


def seen_ngrams(order):
    """N-grams in the training text of the families' n-gram model."""
    training = families.corpus()
    rows = [(BOS, *training.sentence(i).tolist(), EOS) for i in range(training.num_sentences)]
    return {row[i : i + k] for row in rows for k in range(1, order + 1) for i in range(len(row) - k + 1)}


def longest_seen(seen, history, order):
    return next((k for k in range(min(order, len(history)), 1, -1) if tuple(history[-k:]) in seen), 1)


@pytest.mark.parametrize("context", ["sentence", "stream", "document"])
def test_matched_order_is_that_of_the_longest_seen_n_gram(context, monkeypatch):
    monkeypatch.setattr("training.evaluation.evaluate.CHUNK_TOKENS", 5)
    model = families.model("ngram")
    seen = seen_ngrams(model.order)
    rows = [[BOS, *HELD_OUT.sentence(i).tolist(), EOS] for i in range(HELD_OUT.num_sentences)]
    if context == "document":
        rows = [row[:-1] for row in rows]
    if context == "stream":
        rows = [[token for row in rows for token in row]]
    expected = [
        longest_seen(seen, row[: i + 1], model.order)
        for row in rows
        for i in range(1, len(row))
        if row[i] != BOS
    ]
    got = score_corpus(model, HELD_OUT, context=context, progress=Progress())
    assert got.matched.tolist() == expected


def test_groups_make_up_the_whole():
    figures = evaluate(families.model("ngram"), HELD_OUT, progress=Progress()).facts()
    rates = figures["hit_rates"]
    assert [rate["order"] for rate in rates] == [1, 2, 3, 4]
    assert sum(rate["tokens"] for rate in rates) == figures["tokens"]
    assert sum(rate["share"] for rate in rates) == pytest.approx(1)
    assert sum(rate["tokens"] * rate["logprob"] for rate in rates) == pytest.approx(figures["logprob"])


@pytest.mark.parametrize("name", ["lstm", "mixture"])
def test_other_families_have_none(name):
    assert "hit_rates" not in evaluate(families.model(name), HELD_OUT, progress=Progress()).facts()
