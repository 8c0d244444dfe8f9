"""Figures by frequency and position, and paired differences, against dictionaries and resampling."""

import math
from collections import defaultdict

import numpy as np
import pytest

from models.vocabulary import EOS, UNK
from tests import families
from training.corpus import EncodedCorpus
from training.evaluation.breakdown import (
    by_frequency,
    by_position,
    log_prob_difference,
    positions_in_sentence,
    positions_since_start,
    token_counts,
)
from training.evaluation.evaluate import CorpusScores, score_corpus
from training.progress import Silent

HELD_OUT = families.corpus(60, seed=5)


@pytest.fixture(scope="module")
def targets():
    return score_corpus(families.model("ngram"), HELD_OUT, progress=Silent())


def assert_groups(groups, targets, name_of):
    """Every group has the tokens that a function puts there, with their mean."""
    expected = defaultdict(list)
    for number, (token, log_prob) in enumerate(zip(targets.tokens.tolist(), targets.log_probs, strict=True)):
        expected[name_of(number, token)].append(float(log_prob))
    assert {g.name: g.tokens for g in groups} == {name: len(own) for name, own in expected.items()}
    for group in groups:
        mean = math.fsum(expected[group.name]) / group.tokens
        assert group.logprob == pytest.approx(mean, abs=1e-6)
        assert group.perplexity == pytest.approx(math.exp(-mean), rel=1e-5)
        assert group.share == pytest.approx(group.tokens / len(targets.tokens))


def test_frequencies_fall_into_powers_of_ten(targets):
    counts = np.random.default_rng(0).choice([0, 1, 9, 10, 99, 100, 1000, 10**9], 40)

    def name_of(_, token):
        if token in {UNK, EOS}:
            return "unknown" if token == UNK else "end of sentence"
        digits = len(str(counts[token]))
        return f"{10 ** (digits - 1)}-{10**digits - 1}" if counts[token] else "0"

    assert_groups(by_frequency(targets, counts), targets, name_of)


def test_positions_fall_into_powers_of_two(targets):
    places = [i + 1 for s in range(60) for i in range(len(HELD_OUT.sentence(s)) + 1)]
    assert positions_in_sentence(HELD_OUT).tolist() == places
    names = {1: "1", 2: "2", 3: "3-4", 4: "3-4", **dict.fromkeys(range(5, 9), "5-8")}
    names |= dict.fromkeys(range(9, 17), "9-16")
    groups = by_position(targets, np.array(places))
    assert_groups(groups, targets, lambda number, _: names[places[number]])


def test_positions_since_the_start_go_on_where_the_state_does():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [6], []])
    by_context = {
        context: positions_since_start(corpus, context=context, window=2).tolist()
        for context in ("sentence", "stream", "document")
    }
    assert by_context == {
        "sentence": [1, 2, 3, 4, 1, 2, 1],
        "stream": [1, 2, 3, 4, 5, 6, 7],
        "document": [1, 2, 1, 1],
    }


def test_token_counts_have_the_ends_of_sentences():
    corpus = EncodedCorpus.from_sentences([[3, 4, 4], [4]])
    assert token_counts(corpus, 6).tolist() == [0, 0, 2, 1, 3, 0]


def as_targets(log_probs):
    return CorpusScores(np.asarray(log_probs, np.float32), np.zeros(len(log_probs), np.int64), None)


def test_the_error_of_a_difference_is_what_resampling_sentences_gives():
    random = np.random.default_rng(1)
    corpus = EncodedCorpus.from_sentences([[3] * n for n in random.integers(0, 30, 300)])
    owners = np.repeat(np.arange(300), np.diff(corpus.offsets) + 1)
    shared = random.normal(-5, 3, corpus.num_tokens)  # what is hard for both
    a, b = shared + random.normal(0.1, 0.5, len(shared)) + random.normal(0, 0.3, 300)[owners], shared
    got = log_prob_difference(as_targets(a), as_targets(b), corpus, context="sentence")
    sums, lengths = np.bincount(owners, a - b), np.bincount(owners)
    draws = random.integers(0, 300, (4000, 300))
    resampled = sums[draws].sum(axis=1) / lengths[draws].sum(axis=1)
    assert got.nats_per_token == pytest.approx((a - b).mean(), abs=1e-5)
    assert got.standard_error == pytest.approx(resampled.std(), rel=0.1)
    assert (got.low, got.high) == pytest.approx(np.percentile(resampled, [2.5, 97.5]), abs=0.01)


def test_a_difference_has_the_sign_of_the_better_model(targets):
    worse = targets._replace(log_probs=targets.log_probs - np.float32(0.5))
    got = log_prob_difference(targets, worse, HELD_OUT, context="sentence")
    assert got.nats_per_token == pytest.approx(0.5, abs=1e-5)
    assert got.standard_error == pytest.approx(0, abs=1e-5)
    assert log_prob_difference(worse, targets, HELD_OUT, context="sentence").high < 0


def test_one_sentence_and_impossible_tokens_have_no_error():
    corpus = EncodedCorpus.from_sentences([[3, 4]])
    a, b = as_targets([-1, -2, -3]), as_targets([-1, -1, -np.inf])
    assert log_prob_difference(a, a, corpus, context="sentence") == (0, None, None, None, 1)
    assert log_prob_difference(a, b, corpus, context="sentence").nats_per_token is None
