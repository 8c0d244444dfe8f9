"""Probabilities of typing errors without a table of edits, and what a table adds to them."""

import itertools
import math

import numpy as np
import pytest

from models.checking.error_model import CheckSettings, ErrorModel, fit_error_table

LETTERS = "abcdefghijklmnopqrstuvwxyz"
RATE = 0.05


def model(**options):
    return ErrorModel(CheckSettings(error_rate=RATE, **options))


def num_edits(length):
    """Number of ways to make one error in a word without equal letters."""
    word = LETTERS[:length]
    omissions = list(word)
    swaps = list(itertools.pairwise(word))
    replacements = [(a, b) for a in word for b in LETTERS if a != b]
    insertions = [(at, letter) for at in range(length + 1) for letter in LETTERS]
    return len(omissions) + len(swaps) + len(replacements) + len(insertions)


def unknown_probability(edits, length):
    log_probs = model().unknown_word_log_probs(np.array([edits], np.uint8), np.array([length]))
    return math.exp(log_probs[0])


@pytest.mark.parametrize("length", [1, 3, 8, 20])
def test_four_in_five_errors_of_unknown_words_are_one_of_all_single_edits(length):
    """Each edit is as probable; two errors are one after the other."""
    ways = num_edits(length)
    assert unknown_probability(1, length) * ways == pytest.approx(0.8 * RATE, rel=0.02)
    assert unknown_probability(2, length) * ways**2 == pytest.approx(0.2 * RATE, rel=0.04)


def test_errors_that_make_a_vocabulary_word_are_divided_among_eight_words_near_it():
    """A word two edits away counts as a hundredth of a word one edit away."""
    one, two = np.exp(model().known_word_log_probs(np.array([1, 2], np.uint8)))
    assert one == pytest.approx(RATE / 8)
    assert two == pytest.approx(one / 100)


def test_a_words_probability_without_an_error_is_the_rest():
    assert math.exp(model().log_correct) == pytest.approx(1 - RATE)


@pytest.mark.parametrize(
    ("letters", "known", "most"), [(4, True, 1), (5, True, 2), (2, False, 1), (3, False, 2)]
)
def test_short_words_have_one_error_at_most(letters, known, most):
    assert model().max_edits("x" * letters, known=known) == most
    assert model(max_edits=1).max_edits("x" * letters, known=known) == 1


TABLE = fit_error_table({"the": ["teh"] * 30 + ["th"], "hat": ["cat", "hatt"]}, "")
PAIRS = [("teh", "the"), ("th", "the"), ("thw", "the"), ("xat", "hat"), ("htte", "the")]
EDITS = [1, 1, 1, 1, 2]


def ratios(pairs, edits, known):
    return np.exp(model(errors=TABLE).log_ratios(pairs, np.array(edits, np.uint8), np.array(known)))


def test_a_table_replaces_equal_probabilities_but_for_one_error_in_twenty():
    fitted = RATE * np.exp(TABLE.rates.log_probs(PAIRS, np.array(EDITS, np.uint8)))
    equal = np.array([unknown_probability(edits, 3) for edits in EDITS])
    expected = (0.95 * fitted + 0.05 * equal) / equal
    assert ratios(PAIRS, EDITS, [False] * len(PAIRS)) == pytest.approx(expected)
    assert expected.min() < 1 < expected.max()


def test_a_table_leaves_errors_that_make_vocabulary_words_as_frequent():
    """Words one edit apart differ by frequent edits: the table gives them 2.6 times as much as an average edit."""
    unknown, known = (ratios(PAIRS[:4], EDITS[:4], [is_known] * 4) for is_known in (False, True))
    assert known * 2.6 == pytest.approx(unknown)


@pytest.mark.parametrize(
    ("pair", "edits", "known"),
    [
        (("the", "then"), 2, True),  # two edits to a vocabulary word
        (("x" * 41, "x" * 40), 1, False),  # long words
        (("The", "the"), 1, False),  # only the case differs
    ],
)
def test_pairs_outside_the_error_table_have_ratio_1(pair, edits, known):
    assert ratios([pair], [edits], [known]) == pytest.approx(1)
    assert model().log_ratios([pair], np.array([edits], np.uint8), np.array([known])).tolist() == [0]
