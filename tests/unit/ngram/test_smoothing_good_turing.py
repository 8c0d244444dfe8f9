"""Katz's back-off where it needs care: high counts, full contexts, tiny remainders."""

import numpy as np
import pytest

from models.vocabulary import EOS, UNK, Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.ngram.smoothing.good_turing import GoodTuring, _back_off, _remaining_mass
from training.progress import Silent

VOCABULARY = Vocabulary(["a", "b"])


def row_after(texts, context, *, order=2):
    model = estimate(
        EncodedCorpus.from_sentences(texts),
        VOCABULARY,
        order=order,
        smoothing=GoodTuring(),
        progress=Silent(),
    ).model
    state = model.empty_state(1)
    for word in context:
        state = model.advance(state, np.array([word]))
    return np.exp(model.next_log_probs(state)[0], dtype=np.float64)


def test_a_context_with_high_counts_only_is_counted_once_more():
    """7 times b comes after a and nothing else: b gets 7/8, the rest share 1/8."""
    row = row_after([[3, 4]] * 7, [3])
    assert row[4] == pytest.approx(7 / 8, rel=1e-6)
    assert row[[UNK, EOS, 3]].sum() == pytest.approx(1 / 8, rel=1e-6)


def test_where_every_word_was_seen_nothing_is_discounted():
    """After a come <unk>, a, b and </s>, once each: no word is left that could take what is freed."""
    row = row_after([[3, 0], [3, 3, 4], [3]], [3])
    assert row[[UNK, EOS, 3, 4]] == pytest.approx([1 / 4] * 4, rel=1e-6)


def test_what_remains_is_summed_term_by_term():
    """The shorter context is number 1: n-grams 2 to 5, of which 2 and 4 are listed, and 1e-15 for unlisted words."""
    prefixes = np.array([0, 0, 1, 1, 1, 1, 2], dtype=np.int32)
    lower = np.array([9.0, 9.0, 0.5, 2e-15, 0.5, 4e-15, 9.0])
    listed = np.array([2, 4], dtype=np.int32)
    mass = _remaining_mass(listed, prefixes, lower, np.array([9.0, 1e-15, 9.0]))
    assert mass == pytest.approx(7e-15, rel=1e-12, abs=0)


def test_a_tiny_remainder_keeps_its_digits():
    """One context lists two of three words of the shorter one; the third has 1e-14 there."""
    int32 = {"dtype": np.int32}
    _, backoffs, unlisted = _back_off(
        np.array([0, 0], **int32),
        np.array([0, 2], **int32),
        np.array([1, 3], **int32),
        np.array([4], **int32),
        np.array([0.0, 0.5, 1.0]),
        np.array([0, 0, 0], **int32),
        np.array([0.3, 1e-14, 0.7]),
        np.zeros(1),
    )
    assert unlisted == pytest.approx([0.5 / 4])
    assert backoffs == pytest.approx([0.5 / 4 / 1e-14], rel=1e-12)
