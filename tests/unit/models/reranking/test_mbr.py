"""Minimum-Bayes-risk choice and word confidence."""

import numpy as np
import pytest

from models.calls import run_to_completion
from models.reranking.mbr import UTILITIES, WordPosterior, expected_utilities, word_confidences


def utilities_of(texts, posteriors, utility):
    return run_to_completion(expected_utilities(texts, posteriors, utility))


def test_word_errors_are_expected_under_the_posteriors():
    utilities = utilities_of(["a b c", "a b", "x"], [0.5, 0.3, 0.2], "wer")
    np.testing.assert_allclose(utilities, [-(0.3 * 1 + 0.2 * 3), -(0.5 * 1 + 0.2 * 2), -(0.5 * 3 + 0.3 * 2)])


def test_the_choice_need_not_be_the_most_probable():
    texts = ["we met at noon", "he met her at one", "he met her at dawn", "he met her at night"]
    assert utilities_of(texts, [0.31, 0.23, 0.23, 0.23], "wer").argmax() != 0


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_a_list_that_agrees_has_full_utility(utility):
    assert utilities_of(["the cat sat"] * 3, [1, 1, 1], utility) == pytest.approx([100.0] * 3)


@pytest.mark.parametrize("utility", UTILITIES)
def test_empty_texts_have_finite_utilities(utility):
    assert np.isfinite(utilities_of(["", "a b", " "], [0.2, 0.3, 0.5], utility)).all()


@pytest.mark.parametrize("utility", UTILITIES)
def test_candidates_are_compared_in_steps(utility, monkeypatch):
    texts = [f"the {i} of {i % 7} and {i % 5} " * (1 + i % 3) for i in range(40)]
    at_once = utilities_of(texts, np.arange(40), utility)
    for limit in ("_WORD_PAIRS_PER_STEP", "_CHARS_PER_STEP"):
        monkeypatch.setattr(f"models.reranking.mbr.{limit}", 500)
    assert (
        len(list(expected_utilities(texts, np.arange(40), utility))) > 40
    )  # one reference already takes several steps
    np.testing.assert_allclose(utilities_of(texts, np.arange(40), utility), at_once, rtol=1e-12)


@pytest.mark.parametrize("utility", UTILITIES)
def test_texts_are_prepared_in_steps(utility, monkeypatch):
    monkeypatch.setattr("models.reranking.mbr._CHARS_PER_STEP", 1 << 40)
    monkeypatch.setattr("models.reranking.mbr._WORD_PAIRS_PER_STEP", 1 << 60)
    texts = [" ".join(f"w{i * j % 997}" for j in range(300)) for i in range(100)]
    assert len(list(expected_utilities(texts, np.ones(100), utility))) > 4  # comparing takes one step


def confidences(texts, posteriors, chosen=0):
    return [word.confidence for word in run_to_completion(word_confidences(texts, posteriors, chosen))]


def test_a_word_has_the_mass_of_the_candidates_that_have_it_there():
    texts = ["he met her at one", "he met her at dawn", "he met at dawn"]
    assert confidences(texts, [0.5, 0.3, 0.2]) == pytest.approx([1.0, 1.0, 0.8, 1.0, 0.5])
    assert confidences(texts, [0.5, 0.3, 0.2], chosen=2) == pytest.approx([1.0, 1.0, 1.0, 0.5])


def test_the_same_word_elsewhere_is_no_agreement():
    assert confidences(["a b c d", "x y z w a"], [0.75, 0.25]) == pytest.approx([0.75] * 4)


def test_confidence_of_equal_candidates_is_exactly_1():
    assert confidences(["a b"] * 7, [0.1] * 7) == [1.0, 1.0]


def test_words_are_found_by_their_offsets():
    words = run_to_completion(word_confidences(["  naïve\tcafé "], [1.0], 0))
    assert words == [WordPosterior("naïve", 2, 7, 1.0), WordPosterior("café", 8, 12, 1.0)]


def test_candidates_that_differ_in_spaces_only_agree():
    assert confidences(["a b", " a  b", "a c"], [0.5, 0.3, 0.2]) == pytest.approx([1.0, 0.8])


def test_long_candidates_are_aligned_in_steps(monkeypatch):
    texts = [f"{i} a " * 30 for i in range(12)]
    monkeypatch.setattr("models.reranking.mbr._ALIGNMENT_CELLS_PER_STEP", 60 * 60 * 3)
    steps = word_confidences(texts, [1.0] * 12, 0)
    assert sum(1 for _ in steps) == 3
    assert confidences(texts, [1.0] * 12)[:2] == pytest.approx([1 / 12, 1.0])


def test_each_candidate_may_be_asked_about():
    texts, posteriors = ["a b", "", "a"], [0.5, 0.3, 0.2]
    assert [confidences(texts, posteriors, chosen) for chosen in range(3)] == [
        pytest.approx([0.7, 0.5]),
        [],
        pytest.approx([0.7]),
    ]
