"""Minimum-Bayes-risk choice."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.reranking.mbr import UTILITIES, expected_utilities, utilities_in_steps


def test_word_errors_are_expected_under_the_posteriors():
    utilities = expected_utilities(["a b c", "a b", "x"], [0.5, 0.3, 0.2], "wer")
    np.testing.assert_allclose(utilities, [-(0.3 * 1 + 0.2 * 3), -(0.5 * 1 + 0.2 * 2), -(0.5 * 3 + 0.3 * 2)])


def test_the_choice_need_not_be_the_most_probable():
    texts = ["we met at noon", "he met her at one", "he met her at dawn", "he met her at night"]
    assert expected_utilities(texts, [0.31, 0.23, 0.23, 0.23], "wer").argmax() != 0


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_a_list_that_agrees_has_full_utility(utility):
    assert expected_utilities(["the cat sat"] * 3, [1, 1, 1], utility) == pytest.approx([100.0] * 3)


@pytest.mark.parametrize("utility", UTILITIES)
def test_empty_texts_have_finite_utilities(utility):
    assert np.isfinite(expected_utilities(["", "a b", " "], [0.2, 0.3, 0.5], utility)).all()


@pytest.mark.parametrize("utility", UTILITIES)
def test_many_candidates_are_compared_in_steps(utility, monkeypatch):
    texts = [f"the {i} of {i % 7} and {i % 5}" for i in range(40)]
    at_once = expected_utilities(texts, np.arange(40), utility)
    monkeypatch.setattr("models.reranking.mbr._CHARACTERS_PER_STEP", dict.fromkeys(UTILITIES, 2000))
    assert len(list(utilities_in_steps(texts, np.arange(40), utility))) > 10
    np.testing.assert_allclose(expected_utilities(texts, np.arange(40), utility), at_once, rtol=1e-12)


def test_long_texts_are_compared_in_steps(monkeypatch):
    texts = [f"{i} a " * 30 for i in range(12)]
    at_once = expected_utilities(texts, np.arange(12), "wer")
    monkeypatch.setattr("models.reranking.mbr._WORDS_PER_STEP", 60 * 60 * 12)
    assert len(list(utilities_in_steps(texts, np.arange(12), "wer"))) == 12
    assert np.array_equal(expected_utilities(texts, np.arange(12), "wer"), at_once)


def test_an_unknown_utility_is_refused_by_name():
    with pytest.raises(InvalidInputError, match="'ter'; it must be one of wer, chrf, bleu"):
        expected_utilities(["a"], [1.0], "ter")


@pytest.mark.parametrize(
    "posteriors", [[1.0], [0.5, -0.1], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [[0.5, 0.5]]]
)
def test_posteriors_that_are_no_mass_are_refused(posteriors):
    with pytest.raises(InvalidInputError, match="posteriors"):
        expected_utilities(["a", "b"], posteriors, "wer")


def test_an_empty_list_is_refused():
    with pytest.raises(InvalidInputError, match="at least 1"):
        expected_utilities([], [], "wer")
