"""Kneser–Ney on numbers that can be checked by hand."""

import numpy as np
import pytest

from models.vocabulary import BOS, EOS, UNK
from training.corpora.encoded import EncodedCorpus
from training.ngram.counting import count_ngrams
from training.ngram.estimate import estimate
from training.ngram.kneser_ney import FALLBACK, estimate_discounts, modified_kneser_ney
from training.progress import Silent


def test_discounts_follow_the_formula():
    """With n = 8, 4, 2, 1: Y = 8/16, D = 1 − 2·½·4/8, 2 − 3·½·2/4, 3 − 4·½·1/2."""
    counts = np.repeat([1, 2, 3, 4], [8, 4, 2, 1]).astype(np.int32)
    assert estimate_discounts(counts) == pytest.approx((0.5, 1.25, 2.0))


def test_no_count_of_four_is_no_obstacle():
    counts = np.repeat([1, 2, 3], [8, 4, 2]).astype(np.int32)
    assert estimate_discounts(counts) == pytest.approx((0.5, 1.25, 3.0))


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_count_allows_no_estimate(missing):
    counts = np.array([c for c in (1, 1, 2, 3, 4) if c != missing], dtype=np.int32)
    assert estimate_discounts(counts) is None


def test_a_negative_discount_is_no_estimate():
    counts = np.repeat([1, 2, 3], [8, 1, 9]).astype(np.int32)  # D₂ = 2 − 3·0.8·9
    assert estimate_discounts(counts) is None


def test_degenerate_orders_fall_back_and_are_named(corpus, vocabulary):
    result = estimate(corpus, vocabulary, order=3, progress=Silent())
    assert result.fallback_orders == (1, 2, 3)
    assert result.discounts == (FALLBACK,) * 3


def test_unigrams_by_hand():
    """Order 1, text "3 3 4" + </s>: total 4, D(2) = 1, D(1) = ½, γ = 2/4 over 5 words."""
    corpus = EncodedCorpus.from_sentences([[3, 3, 4]])
    weights = modified_kneser_ney(count_ngrams(corpus, 6, order=1, progress=Silent())).weights
    probs = 10.0 ** weights[0].log10_probs.astype(np.float64)
    assert probs[[UNK, 3, 4, 5]] == pytest.approx([0.1, 0.35, 0.225, 0.1], rel=1e-6)
    assert probs[BOS] == 0
    assert probs[EOS] == pytest.approx(0.225)


def test_lower_orders_count_different_predecessors():
    """Word "3" occurs three times but only ever after <s>: as a unigram it weighs no more than 4."""
    corpus = EncodedCorpus.from_sentences([[3, 4], [3, 4], [3, 4]])
    weights = modified_kneser_ney(count_ngrams(corpus, 5, order=2, progress=Silent())).weights
    assert weights[0].log10_probs[3] == weights[0].log10_probs[4]


def test_words_that_never_occur_get_what_unknown_words_get(model, vocabulary):
    row = model.next_log_probs(model.initial_state(1))[0]
    assert row[vocabulary.id_of("never-seen")] == row[UNK]


def test_counts_name_every_order(corpus, vocabulary):
    assert estimate(corpus, vocabulary, order=3, progress=Silent()).num_ngrams == (10, 10, 8)
