"""Minimum-Bayes-risk choice and word confidences, over all lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.reranking.mbr import UTILITIES, expected_utilities, word_confidences

texts = st.lists(st.sampled_from(["the", "a", "cat", "dog", "sat"]), max_size=6).map(" ".join)
weighted = st.lists(st.tuples(texts, st.integers(1, 9)), min_size=1, max_size=7)
utilities = st.sampled_from(UTILITIES)


def of(candidates, utility):
    return expected_utilities([text for text, _ in candidates], [mass for _, mass in candidates], utility)


@given(weighted, utilities, st.randoms())
def test_the_order_of_candidates_does_not_count(candidates, utility, random):
    order = list(range(len(candidates)))
    random.shuffle(order)
    shuffled = of([candidates[place] for place in order], utility)
    np.testing.assert_allclose(shuffled, of(candidates, utility)[order], atol=1e-9)


@given(weighted, utilities)
def test_a_candidate_given_twice_is_one_with_the_mass_of_both(candidates, utility):
    halves = [(text, mass / 2) for text, mass in candidates]
    np.testing.assert_allclose(of(halves + halves, utility), np.tile(of(candidates, utility), 2), atol=1e-9)


@given(st.lists(texts, min_size=1, max_size=7, unique=True), utilities, st.data())
def test_where_one_candidate_has_all_mass_none_is_better(candidates, utility, data):
    certain = data.draw(st.integers(0, len(candidates) - 1))
    expected = expected_utilities(candidates, np.eye(len(candidates))[certain], utility)
    assert expected[certain] == expected.max()


@given(weighted)
def test_confidences_lie_between_the_candidates_own_mass_and_one(candidates):
    mass = np.array([mass for _, mass in candidates]) / sum(mass for _, mass in candidates)
    answers = word_confidences([text for text, _ in candidates], mass)
    for own, words in zip(mass, answers, strict=True):
        assert all(own - 1e-9 <= word.confidence <= 1 for word in words)


@given(weighted)
def test_expected_word_errors_are_at_least_the_doubt_about_words(candidates):
    names, mass = zip(*candidates, strict=True)
    answers = word_confidences(names, mass)
    for errors, words in zip(-of(candidates, "wer"), answers, strict=True):
        assert errors >= sum(1 - word.confidence for word in words) - 1e-9
