"""Kaldi lattices as text: both types, several per file, and malformed files."""

import re

import pytest

from models.errors import FormatError, InputError
from models.lattices.formats import format_kaldi, read_kaldi
from models.lattices.lattice import Lattice, read_symbols
from models.reranking.formats.format import BadLine
from tests.reference.lattices import all_paths, text_of

SYMBOLS = read_symbols([b"<eps> 0", b"hello 1", b"yellow 2", b"world 3", b"#0 4"], "words.txt")
COMPACT = """utt-1
0 1 1 1.5,10.25,3_4_4
0 1 2 1.25,11,3_5_5
1 2 3 0.5,3,6
2 0.25,0.5,7_7

"""


def read(text, symbols=SYMBOLS):
    return list(read_kaldi(text.encode().splitlines(keepends=True), "lat.txt", symbols=symbols))


def words(lattice):
    return {text_of(lattice, path) for path in all_paths(lattice)}


def test_costs_are_negated_and_final_ones_stand_on_an_arc_to_the_end():
    [lattice] = read(COMPACT)
    assert (lattice.name, words(lattice)) == ("utt-1", {"hello world", "yellow world"})
    assert lattice.am.tolist() == [-10.25, -11, -3, -0.5]
    assert lattice.old_lm.tolist() == [-1.5, -1.25, -0.5, -0.25]
    assert lattice.alignments == ("3_4_4", "3_5_5", "6", "7_7")
    assert lattice.times.tolist() == pytest.approx([0, 0.03, 0.04, 0.06])


def test_omitted_weights_are_0_and_infinite_ones_make_no_state_final():
    [lattice] = read("utt-1\n0 1 1\n1 2 3\n1 Infinity,Infinity,\n2\n")
    assert words(lattice) == {"hello world"}
    assert (lattice.am.tolist(), lattice.old_lm.tolist()) == ([0, 0, 0], [0, 0, 0])


def test_the_other_type_has_transition_ids_beside_words():
    [lattice] = read("utt-1\n0 1 7 1 1.5,10.25\n1 2 8 0 0,3\n2 3 0 3 0.5,1\n3 0.25,0\n")
    assert words(lattice) == {"hello world"}
    assert lattice.am.tolist() == [-10.25, -3, -1, 0]
    assert lattice.alignments == ("7", "8", "", "")


def test_words_may_stand_in_the_file_themselves():
    [lattice] = read("utt-1\n0 1 hello 1,2,3\n1 2 <eps> 0,0,4\n2\n", symbols=None)
    assert words(lattice) == {"hello"}


def test_any_number_may_name_a_state_and_several_may_be_final():
    [lattice] = read("utt-1\n70 5 1 1,2,\n70 9 2 1,2,\n5 9 3 1,2,\n9\n5 0.5,0,\n")
    assert words(lattice) == {"hello", "hello world", "yellow"}


def test_good_lattices_around_bad_ones_are_read():
    bad = "utt-2\n0 1 1 1,x,\n1\n\n"
    first, second, third, fourth = read(COMPACT + bad + "\nutt-3\n\n" + COMPACT.replace("utt-1", "utt-4"))
    assert (first.name, fourth.name) == ("utt-1", "utt-4")
    assert str(second) == "lat.txt:8: the cost 1,x, is not of the form graph,acoustic,ids"
    assert str(third) == "lat.txt:12: the lattice has no arcs"
    assert second.loses_list


@pytest.mark.parametrize(
    ("lines", "number", "problem"),
    [
        ("0 1 9 1,2,\n1\n", 2, "'9' is not a number in words.txt"),
        ("0 1 hello 1,2,\n1\n", 2, "'hello' is not a number in words.txt"),
        ("0 1 4 1,2,\n1\n", 2, "#0 is a back-off symbol"),
        ("0 1 1 Infinity,2,\n1\n", 2, "must be finite"),
        ("0 1 1 1,2,\n1 0 1 1,2,\n1\n", 1, "is on a cycle"),
        ("0 1 1 1,2,\n", 1, "no state is final"),
        ("0 1 1 1,2,\n2\n", 1, "no path leads"),
        ("0 1 1 1,2,3,4\n1\n", 2, "is not of the form"),
        ("0 1\n", 2, "2 fields; it is not an arc or a final state"),
        ("0 x 1 1,2,\n1\n", 2, "the state 'x' is not a number"),
    ],
)
def test_bad_line_is_named_with_its_number(lines, number, problem):
    [bad] = read(f"utt-1\n{lines}")
    assert isinstance(bad, BadLine)
    assert bad.number == number
    assert re.search(problem, bad.problem)


def test_numbers_for_words_need_a_table():
    [bad] = read(COMPACT, symbols=None)
    assert "give Kaldi's words.txt" in bad.problem


@pytest.mark.parametrize("line", [b"hello", b"hello x", b"hello 1 2", b"yellow 0", b"<eps> 7", b"caf\xe9 9"])
def test_a_table_with_a_bad_line_is_refused(line):
    with pytest.raises(FormatError, match=r"words.txt:2: "):
        read_symbols([b"<eps> 0", line], "words.txt")


def test_a_lattice_is_written_as_it_was_read():
    [lattice] = read(COMPACT)
    assert format_kaldi(lattice, SYMBOLS) == COMPACT.replace("11,", "11.0,").replace("3,6", "3.0,6")


def test_a_word_at_the_end_makes_the_end_a_state():
    [lattice] = read(COMPACT)
    whole = Lattice(
        "u", lattice.words, lattice.sources[:3], lattice.targets[:3], lattice.labels[:3], lattice.am[:3],
        lattice.old_lm[:3], lattice.times[:3], lattice.variants[:3],
    )  # fmt: skip
    [again] = read(format_kaldi(whole), symbols=None)
    assert words(again) == words(lattice)


def test_words_without_a_number_cannot_be_written():
    [lattice] = read(COMPACT)
    with pytest.raises(InputError, match=r"words\.txt has no 'yellow'"):
        format_kaldi(lattice, read_symbols([b"<eps> 0", b"hello 1", b"world 3"], "words.txt"))
