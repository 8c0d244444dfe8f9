"""Moses' n-best lists and their relatives."""

import pytest

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_bytes
from models.reranking.formats.writer import format_lists


def read(text):
    return list(read_bytes(text.encode(), "moses"))


def features(line):
    ((candidate,),) = (one.candidates for one in read(line))
    return candidate.features


def test_lists_are_closed_when_the_id_changes():
    lists = read("0 ||| a b ||| d= 1 ||| -2\n0 ||| a c ||| d= 0 ||| -3\n1 ||| x ||| d= 4 ||| -1\n")
    assert [one.name for one in lists] == ["0", "1"]
    assert lists[0].candidates == (
        Candidate("a b", {"d": 1.0, "score": -2.0}),
        Candidate("a c", {"d": 0.0, "score": -3.0}),
    )


def test_the_manuals_example_has_a_feature_for_every_value():
    """Colons after labels, as old versions wrote them."""
    line = "0 ||| we must discuss . ||| d: 0 -5.56438 lm: -36.0974 -13.3428 w: -7 ||| -9.2298"
    want = {"d_0": 0, "d_1": -5.56438, "lm_0": -36.0974, "lm_1": -13.3428, "w": -7, "score": -9.2298}
    assert features(line) == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("0|||a|||d= 1|||-2", {"d": 1.0, "score": -2.0}),
        ("0||| a ||| d= 1", {"d": 1.0}),
        ("0 ||| a", {}),
        ("0 ||| a ||| ", {}),
        ("0 ||| a ||| ||| -2", {"score": -2.0}),
        ("0 ||| a ||| -2", {"score": -2.0}),
        ("0 ||| a ||| -1 -2 ||| -3 ||| 0=0 1-2=1", {"feature_0": -1.0, "feature_1": -2.0, "score": -3.0}),
        ("0 ||| a ||| F0=-1.5 p=2 ||| -1.5", {"F0": -1.5, "p": 2.0, "score": -1.5}),
        ("0 ||| a ||| score= 3 ||| -2", {"score": 3.0, "total": -2.0}),
        ("0 ||| a ||| system:x= 1", {"system:x": 1.0}),
    ],
)
def test_it_is_read_leniently(line, want):
    assert features(line) == want


@pytest.mark.parametrize("extra", ["0-0 1-1", "WordScores= -0.1 -0.2", "0-0 ||| WordScores= -0.1"])
def test_what_marian_puts_before_the_features_is_left_out(extra):
    line = f"7 ||| es kam falsch . ||| {extra} ||| F0= -2.3 Score= -2.8 ||| -2.4"
    assert features(line) == {"F0": -2.3, "Score": -2.8, "score": -2.4}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no bars", "no |||"),
        (" ||| a", "the id is ''"),
        ("0 1 ||| a", "the id is '0 1'"),
        ("0 ||| a ||| d= x", "d is 'x'"),
        ("0 ||| a ||| d= nan", "d is 'nan'"),
        ("0 ||| a ||| d= 1e999", "d is '1e999'"),
        ("0 ||| a ||| d= 1 ||| inf", "the total is 'inf'"),
        ("0 ||| a ||| d= lm= 1", "'d' has no value"),
        ("0 ||| a ||| d= 1 d= 2", "'d' is there twice"),
        ("0 ||| a ||| d= 1 2 d_0= 3", "same name"),
    ],
)
def test_bad_lines_are_told_and_others_served(line, problem):
    bad, good = read(f"{line}\n1 ||| b\n")
    assert isinstance(bad, BadLine)
    assert (bad.number, problem in bad.problem) == (1, True)
    assert good.candidates == (Candidate("b"),)


def test_values_of_one_feature_stand_under_one_label():
    """MERT takes a label with a low line in it for a sparse feature."""
    one = CandidateList("0", "", (Candidate("a  b", {"d_0": 1.0, "d_1": 2.0, "x_0": 3.0, "score": 4.0}),))
    assert list(format_lists([one], "moses")) == ["0 ||| a b ||| d= 1.0 2.0 x_0= 3.0 ||| 4.0\n"]


@pytest.mark.parametrize(
    ("name", "text", "feature"),
    [("0", "a ||| b", "d"), ("a b", "a", "d"), ("", "a", "d"), ("0", "a", "d e"), ("0", "a", "")],
)
def test_what_could_not_be_read_back_is_refused(name, text, feature):
    one = CandidateList(name, "", (Candidate(text, {feature: 1.0}),))
    with pytest.raises(InvalidInputError):
        list(format_lists([one], "moses"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_not_written(value):
    with pytest.raises(InvalidInputError, match="only finite"):
        list(format_lists([CandidateList("0", "", (Candidate("a", {"d": value}),))], "moses"))


def test_neighbours_of_the_same_name_would_become_one():
    with pytest.raises(InvalidInputError, match="as that of the list before it"):
        list(format_lists([CandidateList("0", "", (Candidate("a"),))] * 2, "moses"))


def test_a_list_without_a_name_has_its_place():
    one = CandidateList(None, "", (Candidate("a"),))
    assert [line[0] for line in format_lists([one, one], "moses")] == ["0", "1"]
