"""NeMo's beams: lists by count."""

import pytest

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_bytes
from models.reranking.formats.writer import format_lists


def read(text, beam_size=2):
    return list(read_bytes(text.encode(), "nemo", beam_size=beam_size))


def test_lists_have_as_many_lines_as_the_beam_is_wide():
    first, second = read("a b\t-1.5\na c\t-2\n\t-3\nd\t-4\n")
    assert first == CandidateList(
        None, "", (Candidate("a b", {"score": -1.5}), Candidate("a c", {"score": -2.0}))
    )
    assert [c.text for c in second.candidates] == ["", "d"]


def test_a_bad_line_keeps_its_place_in_the_count():
    bad, first, second = read("a\tnan\nb\t2\nc\t3\nd\t4\n")
    assert (bad.number, bad.loses_list) == (1, False)
    assert [[c.text for c in one.candidates] for one in (first, second)] == [["b"], ["c", "d"]]


def test_a_list_of_bad_lines_is_lost():
    first, second, good = read("a\nb\nc\t3\nd\t4\n")
    assert [(bad.number, bad.loses_list) for bad in (first, second)] == [(1, False), (2, True)]
    assert len(good.candidates) == 2


def test_a_list_that_is_cut_is_told_and_served():
    _, bad, last = read("a\t1\nb\t2\nc\t3\n")
    assert isinstance(bad, BadLine)
    assert "1 of 2" in bad.problem
    assert [c.text for c in last.candidates] == ["c"]


@pytest.mark.parametrize("beam_size", [None, 0, 10**9])
def test_the_beams_size_is_needed(beam_size):
    with pytest.raises(InvalidInputError, match=f"beam_size is {beam_size}"):
        read("a\t1\n", beam_size)


def test_lists_of_several_sizes_are_not_written():
    some = [CandidateList(None, "", (Candidate("a"),) * size) for size in (2, 1)]
    with pytest.raises(InvalidInputError, match=r"lists\[1\] has 1 candidates, those before it 2"):
        list(format_lists(some, "nemo"))
