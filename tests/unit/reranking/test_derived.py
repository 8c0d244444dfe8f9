"""Features made of a list's texts, order and given features."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.reranking.features import base_feature, check_derived, derive, is_derived, length_scaled_name


def none_given(name):
    raise AssertionError(name)


def test_equal_texts_have_the_rank_of_the_first():
    ranks = derive("rank", ["a", "b", "a", "c", "b"], none_given)
    assert ranks.tolist() == [0, -1, 0, -2, -1]


def test_the_logarithm_of_the_rank_is_zero_for_the_first():
    assert derive("rank:log", ["a", "b", "c"], none_given) == pytest.approx([0, -np.log(2), -np.log(3)])


@pytest.mark.parametrize(
    ("length", "factors"), [("words", [2, 1]), ("characters", [3, 3]), ("tokens", [4, 2])]
)
def test_a_given_feature_times_a_length(length, factors):
    values = derive(
        length_scaled_name("am", length),
        ["a b", "abc"],
        lambda _: np.array([-0.5, -2.0]),
        np.array([4.0, 2.0]),
    )
    assert values.tolist() == [-0.5 * factors[0], -2.0 * factors[1]]


def test_what_agrees_with_its_list_has_the_greatest_consensus():
    values = derive("consensus:wer", ["the cat sat", "a cat sat", "the cat sad"], none_given)
    assert int(np.argmax(values)) == 0
    assert values[1] == values[2]


@pytest.mark.parametrize(
    ("name", "derived", "base"),
    [
        ("rank", True, None),
        ("am*words", True, "am"),
        ("a*b*tokens", True, "a*b"),
        ("am", False, None),
        ("*words", False, None),
        ("am*w", False, None),
        ("ranking", False, None),
    ],
)
def test_derived_features_are_told_by_the_shape_of_their_names(name, derived, base):
    assert (is_derived(name), base_feature(name)) == (derived, base)


@pytest.mark.parametrize("name", ["rank:square", "rank:", "consensus", "consensus:ter"])
def test_a_name_that_only_looks_derived_is_refused_with_the_choices(name):
    with pytest.raises(InvalidInputError, match=r"there is no feature .*; there are: "):
        check_derived(name)


def test_tokens_need_a_model():
    with pytest.raises(InvalidInputError, match=r"am\*tokens needs a language model"):
        derive("am*tokens", ["a"], lambda _: np.ones(1))
