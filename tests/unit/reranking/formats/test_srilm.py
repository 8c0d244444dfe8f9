"""SRILM's formats: log bases, words with scores of their own, what is no word."""

import math

import pytest

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_bytes
from models.reranking.formats.srilm import BYTELOG
from models.reranking.formats.writer import format_lists

SCORED = "( st: {} et: {} g: {} a: {} )"


def read(text, source="dir/utt-7.gz"):
    return list(read_bytes(text.encode(), "srilm", source_name=source))


def candidates(text):
    (one,) = read(text)
    return one.candidates


def test_logarithms_to_base_10_become_natural():
    (one,) = candidates("-200.5 -10 3 <s> the cat -pau- sat </s>\n")
    assert one.text == "the cat sat"
    assert one.features == {
        "am": pytest.approx(-200.5 * math.log(10)),
        "old_lm": pytest.approx(-10 * math.log(10)),
        "nwords": 3.0,
    }


def test_a_bytelog_is_1024_logarithms_to_base_1_0001():
    assert pytest.approx(math.log(1.0001) * 1024, rel=1e-8) == BYTELOG


@pytest.mark.parametrize("header", ["NBestList1.0\n", ""])
def test_composite_scores_are_bytelogs(header):
    """SRILM takes parentheses for this format even without its header."""
    assert candidates(f"{header}(-1000) the cat\n") == (Candidate("the cat", {"score": -1000 * BYTELOG}),)


def test_the_scores_of_words_are_added_up():
    words = f"the {SCORED.format(0.1, 0.3, -52, -318)} cat {SCORED.format(0.31, 0.9, -8, -82)}"
    (one,) = candidates(f"NBestList2.0\n(-460) {words}\n")
    assert one.text == "the cat"
    assert one.features == {
        "score": -460 * BYTELOG,
        "am": pytest.approx(-400 * BYTELOG),
        "old_lm": pytest.approx(-60 * BYTELOG),
    }


def test_phones_and_states_are_no_words():
    phone, state = SCORED.format(0.1, 0.2, 0, -5), SCORED.format(0.4, 0.5, 0, -7)
    words = (
        f"the {SCORED.format(0.1, 0.3, -2, -3)} dh {phone} ax-3 {state} cat {SCORED.format(0.6, 0.9, -4, -1)}"
    )
    (one,) = candidates(f"NBestList2.0\n(-10) {words}\n")
    assert one.text == "the cat"
    assert one.features["am"] == pytest.approx(-4 * BYTELOG)


def test_a_list_is_called_as_its_file():
    assert read("1 2 3 a\n")[0].name == "utt-7"


@pytest.mark.parametrize(
    ("text", "number", "problem"),
    [
        ("-1 -2\n", 1, "number of words"),
        ("-1 x 3 a\n", 1, "the language model score is 'x'"),
        ("-inf -2 3 a\n", 1, "the acoustic score is '-inf'"),
        ("NBestList1.0\n-1 -2 3 a\n", 2, "score in parentheses"),
        ("NBestList1.0\n(nan) a\n", 2, "the score is 'nan'"),
        ("NBestList2.0\n(-1) a b\n", 2, "followed by"),
        (
            f"NBestList2.0\n(-1) a {SCORED.format(0, 1, 2, 3).replace('g:', 'h:')}\n",
            2,
            "'a' is not followed by",
        ),
        (f"NBestList2.0\n(-1) a {SCORED.format('x', 1, 2, 3)}\n", 2, "a time is 'x'"),
        ("NBestList3.0\n(-1) a\n", 2, "NBestList3"),
    ],
)
def test_bad_lines_are_told(text, number, problem):
    (bad,) = read(text)
    assert isinstance(bad, BadLine)
    assert (bad.number, problem in bad.problem) == (number, True)


ONE = CandidateList("u", "", (Candidate("the  cat", {"score": -1.0, "am": -math.log(10), "x": 9.0}),))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("srilm", "-1.0 0.0 2 the cat\n"),
        ("nbestlist1.0", "NBestList1.0\n(-10) the cat\n"),
        (
            "nbestlist2.0",
            "NBestList2.0\n(-10) the ( st: 0.00 et: 0.99 g: 0 a: -22 ) cat ( st: 1.00 et: 1.99 g: 0 a: 0 )\n",
        ),
    ],
)
def test_missing_scores_are_written_as_0(name, want):
    assert "".join(format_lists([ONE], name)) == want


@pytest.mark.parametrize(
    ("name", "text"), [("srilm", "a -pau- b"), ("srilm", "<s> a"), ("nbestlist2.0", "covid-1")]
)
def test_words_that_would_be_dropped_are_refused(name, text):
    with pytest.raises(InvalidInputError):
        list(format_lists([CandidateList("u", "", (Candidate(text),))], name))


def test_a_file_holds_one_list():
    with pytest.raises(InvalidInputError, match="give a folder"):
        list(format_lists([ONE, ONE], "srilm"))
