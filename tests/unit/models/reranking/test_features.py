"""Features of candidates by name: computed, normalised by length, derived, given."""

import numpy as np
import pytest

from models.calls import run_to_completion
from models.errors import InputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import (
    ListFeatures,
    base_feature,
    check_derived,
    check_given,
    check_model_names,
    derive,
    feature_model,
    feature_name,
    given_column,
    is_derived,
    length_scaled_name,
    with_derived,
)

LISTS = [
    CandidateList("a", "", (Candidate("x y", {"am": -1.0}), Candidate("z", {"am": -2.0}))),
    CandidateList("b", "", (Candidate("y", {"am": -0.5, "other": 3.0}),)),
]
COMPUTED = ListFeatures(
    ("lm", "tokens", "lm:old", "tokens:old", "words"),
    np.array([[-6.0, 3, -8, 4, 2], [-4, 2, -2, 1, 1], [-9.0, 9, -9, 0, 1]]),
    np.array([0, 2, 3]),
)


def matrix_of(lists, computed, names):
    place = "lists[{}].".format
    features = run_to_completion(with_derived(lists, computed, names, place=place))
    given = {name: given_column(lists, name, place=place) for name in names if name not in features.names}
    return features.matrix(names, given)


def test_columns_are_found_by_name_wherever_they_come_from():
    matrix = matrix_of(LISTS, COMPUTED, ["am", "lm", "rank", "am*words", "words"])
    assert matrix.tolist() == [[-1, -6, 0, -2, 2], [-2, -4, -1, -2, 1], [-0.5, -9, 0, -0.5, 1]]


def test_each_models_sum_is_divided_by_its_own_tokens():
    names = ["lm", "lm_sum", "lm:old", "lm_sum:old"]
    matrix = matrix_of(LISTS, COMPUTED.normalised(1.0), names)
    assert matrix.tolist() == [[-2, -6, -2, -8], [-2, -4, -2, -2], [-1, -9, -9, -9]]
    assert COMPUTED.column("lm").tolist() == [-6, -4, -9]


def test_no_names_and_no_lists_are_no_columns_and_no_rows():
    assert matrix_of(LISTS, COMPUTED, []).shape == (3, 0)
    none = ListFeatures(("lm", "tokens"), np.zeros((0, 2)), np.array([0]))
    assert matrix_of([], none, ["lm", "rank", "am"]).shape == (0, 3)


def test_a_list_has_its_own_rows():
    assert COMPUTED.of_lists(1, 2).values.tolist() == [[-9.0, 9, -9, 0, 1]]
    assert COMPUTED.of_lists(0, 1).offsets.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", r"lists\[0\]\.candidates\[0\]\.features has no 'other'"),
        ("tm*words", r"candidates\[0\]\.features has no 'tm'"),
        ("rank:x", "there is no feature"),
        ("lm:x*tokens", "has no 'lm:x'"),
    ],
)
def test_missing_feature_is_named(name, said):
    with pytest.raises(InputError, match=said):
        matrix_of(LISTS, COMPUTED, [name])


@pytest.mark.parametrize("value", [1e300, -np.inf, np.nan])
def test_a_weighed_feature_beyond_its_limits_is_refused(value):
    lists = [CandidateList(None, "", (Candidate("x", {"am": 0.0}), Candidate("y", {"am": value})))]
    computed = ListFeatures(("words",), np.ones((2, 1)), np.array([0, 2]))
    with pytest.raises(InputError, match=r"lists\[0\]\.candidates\[1\]\.features\.am is"):
        matrix_of(lists, computed, ["am"])


@pytest.mark.parametrize("name", ["lm", "words", "unk:old", "lm_sum:old", "rank", "am*tokens"])
def test_given_feature_with_a_computed_name_is_refused(name):
    lists = [*LISTS, CandidateList(None, "", (Candidate("x", {name: 1.0}),))]
    with pytest.raises(InputError, match=r"lists\[2\]\.candidates\[0\]\.features\.\S+ is given, but"):
        check_given(lists, models=["old"])


def test_a_feature_may_be_called_as_no_model_is():
    check_given([CandidateList(None, "", (Candidate("x", {"lm:new": 1.0, "am:x": 1.0}),))], models=["old"])


def test_names_of_features_and_models_belong_together():
    assert (feature_name("lm", ""), feature_name("lm", "old")) == ("lm", "lm:old")
    assert (feature_model("unk:old"), feature_model("lm"), feature_model("am:old")) == ("old", None, None)


@pytest.mark.parametrize("names", [["a b"], [""], ["x" * 65], ["a", "a"], ["ä"]])
def test_names_that_features_cannot_have_are_refused(names):
    with pytest.raises(InputError, match=r"models\[\d\]\.name is"):
        check_model_names(names, param="models")


def derived(name, texts, *arguments):
    return run_to_completion(derive(name, [Candidate(text) for text in texts], *arguments))


def none_given(name):
    raise AssertionError(name)


def test_equal_texts_have_the_rank_of_the_first():
    ranks = derived("rank", ["a", "b", "a", "c", "b"], none_given)
    assert ranks.tolist() == [0, -1, 0, -2, -1]


def test_the_logarithm_of_the_rank_is_zero_for_the_first():
    assert derived("rank:log", ["a", "b", "c"], none_given) == pytest.approx([0, -np.log(2), -np.log(3)])


@pytest.mark.parametrize(
    ("length", "factors"), [("words", [2, 1]), ("characters", [3, 3]), ("tokens", [4, 2])]
)
def test_a_given_feature_times_a_length(length, factors):
    values = derived(
        length_scaled_name("am", length),
        ["a b", "abc"],
        lambda _: np.array([-0.5, -2.0]),
        np.array([4.0, 2.0]),
    )
    assert values.tolist() == [-0.5 * factors[0], -2.0 * factors[1]]


def test_candidate_nearest_to_its_list_has_the_greatest_consensus():
    values = derived("consensus:wer", ["the cat sat", "a cat sat", "the cat sad"], none_given)
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
    with pytest.raises(InputError, match=r"there is no feature .*; features: "):
        check_derived(name)


def test_tokens_need_a_model():
    with pytest.raises(InputError, match=r"am\*tokens needs a language model"):
        derived("am*tokens", ["a"], lambda _: np.ones(1))
