"""n-best lists of all formats with errors: readable parts are read, and the rest is reported by line number."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import FormatError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import (
    FORMAT_NAMES,
    FORMATS,
    WRITTEN_FORMAT_NAMES,
    read_bytes,
    read_lists,
)
from models.reranking.metrics import summarise_lists
from tests.fuzz.damage import any_bytes, damaged
from tests.fuzz.parsing import Parser, ParserProcess, fuzz
from tests.support.recogniser_lists import SAMPLES
from tests.support.written_lists import format_lists

WORDS = [
    *(
        b"|||",
        b" ||| lm= -1 ||| ",
        b"lm=",
        b"\t-1.5",
        b"(-5)",
        b"NBestList2.0\n",
        b"( st: 0 et: 1 g: -5 a: -6 )",
    ),
    *(b'{"candidates": [', b'"hyp_1": {"score": 1}', b'"input": ["a"]', b"[[", b"}]", b'"\\ud800"', b"1e999"),
    *(b"utt-1 ", b"utt-10 a b\n", b"<s>", b"-pau-"),
    *(b"H-1\t-1\ta\n", b"D-1\t", b"T-1\ta\n", b"-1.5 ||| "),
    *(
        b'"alternatives": [',
        b'"results": {"segments": [',
        b'"NBest": [{}]',
        b'"1.0"',
        b'"result": [{"conf": 1}]',
        b'"segments": [',
        b'"words": [{"probability": 2}]',
        b'"confidences": [0.5]',
        b'"beams": [["a", -1]]',
    ),
]
BEAM_SIZE = 2
DETECTED = [name for name, form in FORMATS.items() if not form.needs_beam_size]
SPOKEN = ["a b", "b c d", "", "über \u3000", 'c "d"']

candidates = st.builds(
    lambda text, score: Candidate(text, {"score": score}), st.sampled_from(SPOKEN), st.floats(-1e3, 0)
)
lists = st.builds(
    lambda place, some: CandidateList(f"u{place}", "", tuple(some), ("a b",)),
    st.integers(0, 99),
    st.lists(candidates, min_size=BEAM_SIZE, max_size=BEAM_SIZE),
)


def read_and_write_again(path: Path) -> None:
    """Read a file of the format in its name, and write it again."""
    form = path.stem if path.stem in FORMAT_NAMES else None
    needed = form is not None and FORMATS[form].needs_beam_size
    _check(read_lists(path, format_name=form, beam_size=BEAM_SIZE if needed else None), path.name)


def read_beside_words(path: Path) -> None:
    """Read Kaldi's words, in a folder with an archive of scores."""
    _check(read_lists(path.parent, format_name="kaldi"), path.parent.name)


def read_with_references(path: Path) -> None:
    """Read two lists with references from a file."""
    _check(read_lists(path.with_name("lists.jsonl"), references=[path]), path.parent.name)


def _check(items, named):
    read = list(items)
    kept = [item for item in read if not isinstance(item, BadLine)]
    for bad in read:
        if isinstance(bad, BadLine):
            assert named in bad.source
            assert bad.number >= 1
            assert 0 < len(bad.problem) < 1000
    for one in kept:
        assert one.candidates
        values = [value for c in one.candidates for value in (*c.features.values(), *c.confidences)]
        assert all(map(math.isfinite, values))
    summarise_lists(kept)
    written = "".join(format_lists(kept, "jsonl")).encode()
    assert list(read_bytes(written, "jsonl")) == [replace(one, continuation=one.continuation) for one in kept]


def text_in(form, some):
    """Return lists as a file of a format; if the format has one list per file, only the first."""
    some = [replace(one, name=f"u{place}") for place, one in enumerate(some)]
    return "".join(format_lists(some[: 1 if FORMATS[form].one_list_per_file else None], form)).encode()


def samples_in(form):
    """Return the sample files of a format that is only read."""
    return [text.encode() for name, (text, _) in SAMPLES.items() if name.partition(" ")[0] == form]


def files_in(form):
    """Return a strategy for valid files of a format."""
    if form not in WRITTEN_FORMAT_NAMES:
        return st.sampled_from(samples_in(form))
    return st.lists(lists, min_size=1, max_size=3).map(lambda some: text_in(form, some))


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module", params=[*FORMAT_NAMES, "unknown"])
def parser(request, process, tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / f"{request.param}.nbest"
    form = "jsonl" if request.param == "unknown" else request.param
    if form in WRITTEN_FORMAT_NAMES:
        two = Candidate("a", {"score": -1.0}), Candidate("b", {"score": -2.0})
        good = text_in(form, [CandidateList("u0", "", two)])
    else:
        good = samples_in(form)[0]
    return Parser(process, "read_and_write_again", path, good)


@fuzz
@given(st.data())
def test_lists(parser, data):
    form = data.draw(st.sampled_from(DETECTED)) if parser.path.stem == "unknown" else parser.path.stem
    parser.ask(data.draw(st.one_of(damaged(files_in(form), WORDS), any_bytes()), label="content"))


@pytest.fixture(scope="module", params=["words_text", "acwt"])
def archive(request, process, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kaldi")
    good = {
        "words_text": b"utt-1 a b\nutt-2 a\nother-1 c\n",
        "acwt": b"utt-1 5.5\nutt-2 [ 1 2 ]\nother-1 7\n",
    }
    for name, content in good.items():
        (folder / name).write_bytes(content)
    return Parser(process, "read_beside_words", folder / request.param, good[request.param])


@fuzz
@given(st.data())
def test_archives_of_kaldi(archive, data):
    archive.ask(data.draw(st.one_of(damaged(st.just(archive.good), WORDS), any_bytes()), label="content"))


@pytest.fixture(scope="module")
def references(process, tmp_path_factory):
    folder = tmp_path_factory.mktemp("references")
    (folder / "lists.jsonl").write_bytes(text_in("jsonl", [CandidateList("", "", (Candidate("a"),))] * 2))
    return Parser(process, "read_with_references", folder / "refs.txt", b"a b\nc\n")


REFERENCES = [
    b"a b\nc d\n",
    b"u0\ta b\nu1\tc\n",
    b"u0 a b\nu1 c\n",
    b"a b (u0)\nc (u1)\n",
    b'{"text": "a b"}\n{"id": "u1", "text": "c"}\n',
]


@fuzz
@given(st.one_of(damaged(st.sampled_from(REFERENCES), WORDS), any_bytes()))
def test_references(references, content):
    references.ask(content)


def test_the_number_of_a_list_may_have_thousands_of_digits(tmp_path):
    (tmp_path / "lists.moses").write_text(f"{'9' * 5000} ||| a b ||| ||| -1\n")
    (tmp_path / "refs.txt").write_text("a b\n")
    with pytest.raises(FormatError, match=r"refs\.txt: has 1 references"):
        list(read_lists(tmp_path / "lists.moses", format_name="moses", references=[tmp_path / "refs.txt"]))


@pytest.mark.parametrize("line", [b"]", b"[ ]", b"utt-2 [ ]", b"utt-2 1e308 1e308"])
def test_a_line_of_costs_without_a_cost_is_told_of(tmp_path, line):
    (tmp_path / "words_text").write_bytes(b"utt-1 a\nutt-2 b\n")
    (tmp_path / "acwt").write_bytes(b"utt-1 5\n" + line + b"\n")
    one, *bad = sorted(read_lists(tmp_path, format_name="kaldi"), key=lambda item: isinstance(item, BadLine))
    assert [candidate.text for candidate in one.candidates] == ["a"]
    assert any(item.source.endswith("acwt") and item.number == 2 for item in bad)


@pytest.mark.parametrize(("form", "line"), [("srilm", "1e308 -1 1 a"), ("nbestlist1.0", "(1e308) a")])
def test_a_score_that_no_feature_could_hold_is_told_of(form, line):
    [bad] = read_bytes(f"NBestList1.0\n{line}\n".encode() if form != "srilm" else line.encode(), form)
    assert "finite" in bad.problem
