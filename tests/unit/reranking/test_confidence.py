"""Confidence of words."""

import pytest

from models.errors import InvalidInputError
from models.reranking.mbr import WordPosterior, word_confidences, word_confidences_in_steps


def confidences(texts, posteriors, chosen=0):
    (words,) = word_confidences(texts, posteriors, chosen=[chosen])
    return [word.confidence for word in words]


def test_a_word_has_the_mass_of_the_candidates_that_have_it_there():
    texts = ["he met her at one", "he met her at dawn", "he met at dawn"]
    assert confidences(texts, [0.5, 0.3, 0.2]) == pytest.approx([1.0, 1.0, 0.8, 1.0, 0.5])
    assert confidences(texts, [0.5, 0.3, 0.2], chosen=2) == pytest.approx([1.0, 1.0, 1.0, 0.5])


def test_the_same_word_elsewhere_is_no_agreement():
    assert confidences(["a b c d", "x y z w a"], [0.75, 0.25]) == pytest.approx([0.75] * 4)


def test_where_all_agree_confidence_is_exactly_one():
    assert confidences(["a b"] * 7, [0.1] * 7) == [1.0, 1.0]


def test_words_are_found_by_their_offsets():
    (words,) = word_confidences(["  naïve\tcafé "], [1.0])
    assert words == [WordPosterior("naïve", 2, 7, 1.0), WordPosterior("café", 8, 12, 1.0)]


def test_candidates_that_differ_in_spaces_only_agree():
    assert confidences(["a b", " a  b", "a c"], [0.5, 0.3, 0.2]) == pytest.approx([1.0, 0.8])


def test_long_candidates_are_aligned_in_steps(monkeypatch):
    texts = [f"{i} a " * 30 for i in range(12)]
    monkeypatch.setattr("models.reranking.mbr._ALIGNMENT_CELLS_PER_STEP", 60 * 60 * 3)
    steps = word_confidences_in_steps(texts, [1.0] * 12, chosen=[0])
    assert sum(1 for _ in steps) == 3
    assert confidences(texts, [1.0] * 12)[:2] == pytest.approx([1 / 12, 1.0])


def test_all_candidates_are_answered_unless_some_are_chosen():
    answers = word_confidences(["a b", "", "a"], [0.5, 0.3, 0.2])
    assert [[word.confidence for word in words] for words in answers] == [
        pytest.approx([0.7, 0.5]),
        [],
        pytest.approx([0.7]),
    ]


def test_posteriors_must_be_one_for_each_candidate():
    with pytest.raises(InvalidInputError, match=r"shape \[1\]; it must be \[2\]"):
        word_confidences(["a", "b"], [1.0])
