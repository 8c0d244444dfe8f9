"""HTK lattices: accepted files, and rejected ones with line numbers."""

import math
import re

import pytest

from models.lattices.formats import format_slf, read_slf
from models.reranking.formats.format import BadLine
from tests.reference.lattices import all_paths, text_of

HEADER = ["VERSION=1.1", "UTTERANCE=utt1", "N=3 L=3"]
NODES = ["I=0 t=0.0", "I=1 t=0.25", "I=2 t=0.5"]
LINKS = [
    "J=0 S=0 E=1 W=hello a=-10.5 l=-1",
    "J=1 S=0 E=1 W=yellow a=-11 l=-2 v=3",
    "J=2 S=1 E=2 W=world a=-9 l=-0.5",
]


def read(*lines):
    return read_slf([line.encode() for line in lines], "a.slf")


def words(lattice):
    return {text_of(lattice, path) for path in all_paths(lattice)}


def test_words_scores_and_times_are_read():
    lattice = read(*HEADER, *NODES, *LINKS)
    assert (lattice.name, words(lattice)) == ("utt1", {"hello world", "yellow world"})
    assert lattice.am.tolist() == [-10.5, -11, -9]
    assert lattice.old_lm.tolist() == [-1, -2, -0.5]
    assert lattice.times.tolist() == [0, 0.25, 0.5]
    assert lattice.variants.tolist() == [-1, 3, -1]


def test_long_names_comments_and_blank_lines_are_understood():
    lattice = read(
        "# Header", "", "NODES=2 LINKS=1", "I=0 time=0.5", "J=0 START=0 END=1 WORD=hi acoustic=-1 language=-2"
    )
    assert (words(lattice), lattice.am.tolist(), lattice.old_lm.tolist()) == ({"hi"}, [-1], [-2])
    assert lattice.times[0] == 0.5
    assert math.isnan(lattice.times[1])


def test_words_may_stand_on_the_nodes_that_links_end_in():
    nodes = ["I=0 W=!NULL", "I=1 W=hello", "I=2 W=!SENT_END"]
    assert words(read(*HEADER[:2], "N=3 L=2", *nodes, "J=0 S=0 E=1", "J=1 S=1 E=2")) == {"hello"}


def test_in_backward_lattices_words_stand_on_the_nodes_that_links_begin_in():
    nodes = ["I=0 W=hello", "I=1 W=world", "I=2 W=!NULL"]
    assert words(read("dir=b", "N=3 L=2", *nodes, "J=0 S=0 E=1", "J=1 S=1 E=2")) == {"hello world"}


def test_acoustic_scores_may_stand_on_nodes_and_pronunciations_have_theirs():
    lattice = read("prscale=2 acscale=0.5", "N=2 L=1", "I=1 a=-8 r=-0.5", "J=0 S=0 E=1 W=hi n=-3")
    assert lattice.am.tolist() == [-8 + 2 / 0.5 * -0.5]
    assert lattice.old_lm.tolist() == [-3]


def test_other_bases_become_natural_logarithms():
    lattice = read("base=10 lmscale=15 wdpenalty=-0.5", "N=2 L=1", "J=0 S=0 E=1 W=hi a=-100 l=-2")
    assert lattice.am[0] == pytest.approx(-100 * math.log(10))
    assert lattice.old_lm[0] == pytest.approx(-2 * math.log(10))
    assert (lattice.scales.lm, lattice.scales.words) == (15, pytest.approx(-0.5 * math.log(10)))


def test_base_0_says_that_scores_are_probabilities():
    lattice = read("base=0", "N=2 L=1", "J=0 S=0 E=1 W=hi l=0.125")
    assert (lattice.am[0], lattice.old_lm[0]) == (0, pytest.approx(math.log(0.125)))


@pytest.mark.parametrize(
    ("written", "word"),
    [
        (r"W=\'em", "'em"),
        ("W='em", "'em"),
        ("""W='"em'""", '"em'),
        ('W="don\'t"', "don't"),
        (r"W=caf\303\251", "café"),
        (r"W=back\\slash", "back\\slash"),
        ("W=a=b", "a=b"),
        ("W=übel", "übel"),
    ],
)
def test_words_are_quoted_and_escaped_as_htk_does(written, word):
    assert words(read("N=2 L=1", f"J=0 S=0 E=1 {written} a=-1")) == {word}


@pytest.mark.parametrize(
    ("lines", "number", "problem"),
    [
        ([*HEADER, "I=0 t=x", *LINKS], 4, "t=x is not a number"),
        ([*HEADER, *NODES, *LINKS[:2], "J=2 S=1 E=2 W=world a=-"], 9, "a=- is not a number"),
        ([*HEADER, *NODES, *LINKS[:2], "J=2 S=1 E=3 W=world"], 9, "E=3 is out of range; N= allows 0 to 2"),
        ([*HEADER, *NODES, *LINKS[:2], "J=2 S=1 W=world"], 9, "E= is missing"),
        ([*HEADER, *NODES, *LINKS[:2], "J=2 S=1 E=2 a=-1"], 9, "no word"),
        ([*HEADER, *NODES, *LINKS[:2], "J=2 S=1 E=2 W=a b"], 9, "'b' is not a field"),
        ([*HEADER, *NODES, *LINKS[:2], "J=2 S=1 E=2 W=x a=-inf"], 9, "a=-inf is not finite"),
        ([*HEADER, *NODES, *LINKS[:2], "J=2 S=1 E=2 W=x v=1e30"], 9, r"v=1e\+30 is not a pronunciation"),
        ([*HEADER, *NODES, *LINKS[:2]], 1, "L= is 3, but the file has 2 links"),
        ([*HEADER, *NODES, *LINKS, "VERSION=1.1"], 10, "a file holds one lattice"),
        ([*HEADER, "I=0", "I=0"], 5, "occurs twice"),
        (["N=3 L=1", "I=7", LINKS[0]], 2, "node 7 is out of range; N= allows 0 to 2"),
        (["SUBLAT=digits", *HEADER], 1, "sub-lattices are not supported"),
        ([*HEADER, "I=1 L=digits"], 4, "sub-lattices are not supported"),
        (["base=1", *HEADER, *LINKS], 1, "base=1.0 must be 0 or greater than 1"),
        (["base=0", "N=2 L=1", "J=0 S=0 E=1 W=hi l=0"], 3, "must be positive"),
        (
            ["N=3 L=2", "J=0 S=0 E=1 W=a", "J=1 S=1 E=0 W=b"],
            1,
            "one start node, but 1 nodes qualify .2|is on a cycle",
        ),
        (["N=3 L=2", "J=0 S=0 E=1 W=a", "J=1 S=0 E=2 W=b"], 1, "one end node, but 2 nodes qualify .1, 2"),
        (["N=2 L=1", "I=0 W=lost", "I=1 W=kept", "J=0 S=0 E=1"], 2, "'lost' is on no path"),
        ([], 1, "N= is missing"),
    ],
)
def test_bad_line_is_named_with_its_number(lines, number, problem):
    bad = read(*lines)
    assert isinstance(bad, BadLine)
    assert str(bad).startswith(f"a.slf:{number}: ")
    assert re.search(problem, bad.problem)


def test_bytes_that_are_not_utf_8_are_refused():
    assert str(read_slf([b"N=2 L=1", b"J=0 S=0 E=1 W=caf\xe9"], "a.slf")).startswith(
        "a.slf:2: the line is not UTF-8"
    )


def test_a_lattice_is_written_and_read_back():
    lattice = read(*HEADER, *NODES, *LINKS)
    text = format_slf(lattice)
    again = read(*text.splitlines())
    assert (again.name, again.words, again.scales) == (lattice.name, lattice.words, lattice.scales)
    for column in ("sources", "targets", "labels", "am", "old_lm", "times", "variants"):
        assert getattr(again, column).tolist() == getattr(lattice, column).tolist()


def test_a_name_with_a_line_break_is_written_and_read_back():
    lattice = read(*HEADER[:1], r"UTTERANCE=a\0125\ b", *HEADER[2:], *NODES, *LINKS)
    text = format_slf(lattice)
    assert lattice.name == read(*text.split("\n")).name == "a\n5 b"


def test_an_unnamed_end_is_no_word_that_is_lost():
    lattice = read_slf([b"N=2 L=1", b"I=1 W=a", b"J=0 S=0 E=1"], "a.slf", no_words={"<eps>"})
    assert words(lattice) == {"a"}
