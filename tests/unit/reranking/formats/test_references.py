"""References from files of their own."""

import io

import pytest

from models.errors import FormatError
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_lists

MOSES = b"2 ||| c\n0 ||| a\n"
KALDI = b"u-1 a\nv-1 b\n"
JSONL = (
    b'{"candidates": [{"text": "a"}], "reference": "own"}\nbad\n{"id": "v", "candidates": [{"text": "b"}]}\n'
)


@pytest.fixture
def file(tmp_path):
    def write(text, name="references"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def references(body, *paths, **options):
    items = read_lists(io.BytesIO(body), references=paths, **options)
    return [item.references for item in items if not isinstance(item, BadLine)]


def test_mosess_ids_are_line_numbers(file):
    assert references(MOSES + b"1 ||| b\n", file("zero\none\ntwo\n")) == [("two",), ("zero",), ("one",)]


def test_a_lost_list_has_its_line(file):
    assert references(JSONL, file("first\nlost\n\n")) == [("first",), ("",)]


def test_ids_stand_before_a_tab(file):
    assert references(KALDI, file("v\tx\nu\tthe  cat\n"), reference_layout="tab") == [("the  cat",), ("x",)]


def test_kaldis_stand_before_a_space(file):
    assert references(KALDI, file("v  the cat\n\nu\n")) == [("",), ("the cat",)]


def test_a_layout_can_be_named(file):
    path = file("v b\nu c\n")
    assert references(KALDI, path, reference_layout="lines") == [("v b",), ("u c",)]


def test_nemos_manifest_is_in_order(file):
    manifest = file('{"audio_filepath": "a.wav", "text": "x "}\n\n{"text": "y"}\n')
    assert references(b"a\t1\nb\t2\n", manifest, beam_size=1) == [("x",), ("y",)]


def test_several_files_give_several_references(file):
    paths = [file("a\nb\n", "one"), file("c\nd\n", "two")]
    assert references(b"a\t1\nb\t2\n", *paths, beam_size=1) == [("a", "c"), ("b", "d")]


@pytest.mark.parametrize(
    ("body", "text", "problem"),
    [
        (b"a\t1\nb\t2\n", "x\n", "has 1 references, so there is none for list 2"),
        (b"a\t1\nb\t2\n", "x\ny\nz\n", "has 3 references, but there are 2 lists"),
        (MOSES, "x\n", r"none for list 1 \(2\)"),
        (KALDI, "w x\n", "has no line with the id of list 1, 'u'"),
        (b"a\t1\n", '{"text": 3}\n', "line 1: text is a number"),
        (b"a\t1\n", '{"text": "a"}\n{\n', "line 2: it is not JSON"),
        (b"a\t1\n", "x\n\ud800\n", "line 2: is not UTF-8"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, body, text, problem):
    (tmp_path / "references").write_bytes(text.encode(errors="surrogatepass"))
    options = {"beam_size": 1} if b"\t" in body else {}
    with pytest.raises(FormatError, match=problem):
        references(body, tmp_path / "references", **options)


def test_a_line_without_an_id_is_refused(file):
    with pytest.raises(FormatError, match="line 2: there is no id"):
        references(JSONL, file("v\tb\n\tc\n"))
