"""Discounts from counts of counts, and Good-Turing smoothing with Katz back-off."""

import numpy as np
import pytest

from models.language_model import BOS, EOS, UNK, Vocabulary
from models.ngram.build import NGrams
from tests.reference.backoff import estimated_orders
from training.corpus import EncodedCorpus
from training.ngram.counts import OrderCounts
from training.ngram.estimate import estimate
from training.ngram.smoothing.interpolation import _back_off, _remaining_mass, discount_ratios, good_turing
from training.ngram.smoothing.kneser_ney import (
    FALLBACK_DISCOUNTS,
    SINGLE_FALLBACK_DISCOUNT,
    Discounts,
    discounts_from_counts,
)
from training.progress import Progress


def test_modified_discounts_follow_the_formula():
    """With n = 8, 4, 2, 1: Y = 8/16, D = 1 − 2·½·4/8, 2 − 3·½·2/4, 3 − 4·½·1/2."""
    assert discounts_from_counts([99, 8, 4, 2, 1], num_discounts=3) == (pytest.approx((0.5, 1.25, 2.0)), True)


def test_no_count_of_four_is_no_obstacle():
    assert discounts_from_counts([0, 8, 4, 2, 0], num_discounts=3) == (pytest.approx((0.5, 1.25, 3.0)), True)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_count_allows_no_estimate(missing):
    counts_of_counts = [0, 8, 4, 2, 1]
    counts_of_counts[missing] = 0
    assert discounts_from_counts(counts_of_counts, num_discounts=3) == (FALLBACK_DISCOUNTS, False)


def test_a_negative_discount_is_no_estimate():
    # D₂ = 2 − 3·0.8·9
    assert discounts_from_counts([0, 8, 1, 9, 0], num_discounts=3) == (FALLBACK_DISCOUNTS, False)


def test_one_discount_follows_the_formula():
    assert discounts_from_counts([0, 6, 2], num_discounts=1) == (Discounts(0.6, 0.6, 0.6), True)
    assert discounts_from_counts([0, 0, 2], num_discounts=1) == (SINGLE_FALLBACK_DISCOUNT, False)
    assert discounts_from_counts([0, 6, 0], num_discounts=1) == (SINGLE_FALLBACK_DISCOUNT, False)


def test_good_turing_ratios_follow_the_formula():
    """With k = 5 and n = 60, 20, 10, 6, 4, 2: the share is 6·2/60 = 1/5; r*/r = 2/3, 3/4, 4/5, 5/6, 3/5."""
    expected = [(ratio - 1 / 5) / (4 / 5) for ratio in (2 / 3, 3 / 4, 4 / 5, 5 / 6, 3 / 5)]
    assert discount_ratios([0, 60, 20, 10, 6, 4, 2]) == pytest.approx(expected)


def test_good_turing_ratios_free_as_much_as_was_seen_once():
    n = [0, 60, 20, 10, 6, 4, 2]
    ratios = discount_ratios(n)
    assert sum(n[r] * r * (1 - ratio) for r, ratio in enumerate(ratios, start=1)) == pytest.approx(n[1])


def test_good_turing_discounts_fewer_counts_where_higher_ones_allow_no_estimate():
    """With n₅ = 0 the counts 5 and 4 have no estimate (4 would be discounted to 0), and 3 is the highest."""
    assert len(discount_ratios([0, 60, 20, 10, 6, 0, 2])) == 3


def test_good_turing_has_no_estimate_from_hardly_anything():
    assert discount_ratios([0, 3, 3, 1, 0, 0, 0]) is None
    assert discount_ratios([0, 0, 0, 0, 0, 0, 0]) is None


def test_degenerate_orders_fall_back_and_are_named(corpus, vocabulary):
    result = estimate(corpus, vocabulary, order=3, progress=Progress())
    assert result.facts["fallback_orders"] == [1, 2, 3]
    assert result.facts["discounts"] == [list(FALLBACK_DISCOUNTS)] * 3


def test_unigrams_by_hand():
    """Order 1, text "3 3 4" + </s>: total 4, D(2) = 1, D(1) = ½, γ = 2/4 over 5 words."""
    ((_, weights),) = estimated_orders(EncodedCorpus.from_sentences([[3, 3, 4]]), 6, order=1)
    probs = 10.0 ** weights.log10_probs.astype(np.float64)
    assert probs[[UNK, 3, 4, 5]] == pytest.approx([0.1, 0.35, 0.225, 0.1], rel=1e-6)
    assert probs[BOS] == 0
    assert probs[EOS] == pytest.approx(0.225)


def test_lower_orders_count_different_predecessors():
    """Word "3" occurs three times, but only after <s>, so its unigram probability equals that of "4"."""
    corpus = EncodedCorpus.from_sentences([[3, 4], [3, 4], [3, 4]])
    (_, unigrams), _ = estimated_orders(corpus, 5, order=2)
    assert unigrams.log10_probs[3] == unigrams.log10_probs[4]


def test_words_that_never_occur_get_what_unknown_words_get(model, vocabulary):
    row = model.next_log_probs(model.initial_state(1))[0]
    assert row[vocabulary.id_of("never-seen")] == row[UNK]


def test_counts_name_every_order(corpus, vocabulary):
    assert estimate(corpus, vocabulary, order=3, progress=Progress()).facts["ngrams"] == [10, 10, 8]


VOCABULARY = Vocabulary(["a", "b"])


def row_after(texts, context, *, order=2):
    model = estimate(
        EncodedCorpus.from_sentences(texts),
        VOCABULARY,
        order=order,
        smoothing=good_turing,
        progress=Progress(),
    ).model
    state = model.empty_state(1)
    for word in context:
        state = model.advance(state, np.array([word]))
    return np.exp(model.next_log_probs(state)[0], dtype=np.float64)


def test_a_context_with_high_counts_only_is_counted_once_more():
    """Only b follows a, 7 times: b gets 7/8, the other words share 1/8."""
    row = row_after([[3, 4]] * 7, [3])
    assert row[4] == pytest.approx(7 / 8, rel=1e-6)
    assert row[[UNK, EOS, 3]].sum() == pytest.approx(1 / 8, rel=1e-6)


def test_context_followed_by_all_words_has_no_discount():
    """<unk>, a, b and </s> follow a once each, so no unseen word could receive freed probability."""
    row = row_after([[3, 0], [3, 3, 4], [3]], [3])
    assert row[[UNK, EOS, 3, 4]] == pytest.approx([1 / 4] * 4, rel=1e-6)


def test_remaining_mass_is_summed_term_by_term():
    """Context 1 has the n-grams 2 to 5, of which 2 and 4 are listed, and 1e-15 for unlisted words."""
    prefixes = np.array([0, 0, 1, 1, 1, 1, 2], dtype=np.int32)
    lower = np.array([9.0, 9.0, 0.5, 2e-15, 0.5, 4e-15, 9.0])
    listed = np.array([2, 4], dtype=np.int32)
    mass = _remaining_mass(listed, prefixes, lower, np.array([9.0, 1e-15, 9.0]))
    assert mass == pytest.approx(7e-15, rel=1e-12, abs=0)


def test_a_tiny_remainder_keeps_its_digits():
    """A context lists two of the three words of its suffix, where the third has probability 1e-14."""
    words, prefixes, suffixes, counts = np.array([[0, 2], [0, 0], [0, 2], [1, 3]], dtype=np.int32)
    totals, types = np.array([[4], [2]], dtype=np.int32)
    order = OrderCounts(NGrams(words, prefixes, suffixes), counts, totals, types, np.zeros(8, np.int64))
    _, backoffs, unlisted = _back_off(
        order,
        np.array([0.0, 0.5, 1.0]),
        np.zeros(3, np.int32),
        np.array([0.3, 1e-14, 0.7]),
        np.zeros(1),
    )
    assert unlisted == pytest.approx([0.5 / 4])
    assert backoffs == pytest.approx([0.5 / 4 / 1e-14], rel=1e-12)
