"""From lists to a problem."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.reranking.candidates import run_steps
from models.reranking.features import ListFeatures
from models.reranking.metrics import make_metric
from models.reranking.tuning.cross_fitting import looks_like_mean, tuning_data
from tests.tuning_problems import candidate_list, words_alone

WER = make_metric("wer")


def data(*lists, **options):
    told = [one for one in lists if one.references]
    return run_steps(tuning_data(lists, words_alone(told), WER, **options))


def test_copies_of_a_text_are_left_out_and_keep_no_rank():
    made = data(candidate_list("a", "b", "a", "c"), candidate_list("a"))
    assert made.candidate_indices.tolist() == [0, 1, 3, 0]
    assert made.problem.features[:, made.problem.names.index("rank")].tolist() == [0, -1, -2, 0]
    assert (made.counts.duplicates, made.counts.candidates, made.counts.single) == (1, 4, 1)


def test_lists_without_reference_are_left_out_and_counted():
    made = data(candidate_list("a"), candidate_list("b", reference=None), candidate_list("a b"))
    assert (made.counts.lists, made.counts.without_reference) == (2, 1)
    assert made.problem.statistics.tolist() == [[2, 3], [1, 3]]


def test_texts_of_a_choice_are_those_of_the_lists():
    made = data(candidate_list("a", "a", "b"), candidate_list("c", "d"))
    assert made.texts(np.array([1, 3])) == ["b", "d"]


def test_by_default_all_that_every_candidate_has_may_have_a_weight():
    features = [{"am": -9.0, "x": 1.0}, {"am": 4.0}]
    made = data(candidate_list("a", "b", features=features))
    assert made.problem.names == ("rank", "rank:log", "am", "words")
    assert made.ignored == ("x",)


def test_a_mean_is_offered_times_the_length_too():
    lists = [
        candidate_list(" ".join(["a"] * n), reference="a", features=[{"am": -0.3 + 0.01 * (n % 3)}])
        for n in range(1, 20)
    ]
    assert data(*lists).problem.names[2:5] == ("am", "am*words", "am*characters")


def test_a_sum_is_not_taken_for_a_mean_nor_is_an_indicator():
    words = np.arange(1.0, 40.0)
    assert not looks_like_mean(-2.5 * words, words)
    assert not looks_like_mean((words % 2 == 0).astype(float), words)
    assert looks_like_mean(-1 / words, words)


def test_the_exponent_makes_another_shape_of_the_models_score():
    lists = [candidate_list("a b", "a")]
    computed = ListFeatures(
        ("lm", "tokens", "unk", "words"), np.array([[-6.0, 3, 0, 2], [-4.0, 2, 1, 1]]), np.array([0, 2])
    )
    made = run_steps(tuning_data(lists, computed, WER, features=["lm", "words"], length_exponents=[0.0, 1.0]))
    assert [shape.problem.features[:, 0].tolist() for shape in made.shapes] == [[-6, -4], [-2, -2]]


def test_a_named_feature_that_is_missing_is_told_with_its_place():
    lists = [candidate_list("x", reference=None), candidate_list("a", "b", features=[{"am": 1.0}, {}])]
    with pytest.raises(InvalidInputError, match=r"lists\[1\].candidates\[1\].features has no 'am'"):
        data(*lists, features=["am"])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ((), "features has 0 names"),
        (("rank", "rank"), "'rank' more than once"),
        (["x"] * 65, "features has 65 names"),
    ],
)
def test_names_that_cannot_be_are_refused(features, message):
    with pytest.raises(InvalidInputError, match=message):
        data(candidate_list("a"), features=features)


def test_lists_without_any_reference_are_refused():
    with pytest.raises(InvalidInputError, match="not one of 1 lists has a reference"):
        data(candidate_list("a", reference=None))


def test_comparing_all_texts_of_a_list_stops_often():
    one = candidate_list(*(f"a {n}" for n in range(300)))
    steps = tuning_data([one], words_alone([one]), WER, features=("consensus:bleu",))
    assert sum(1 for _ in steps) > 10
