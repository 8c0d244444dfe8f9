"""Files and streams: packing, encoding, limits, what format they are of, reserved names."""

import gzip
import io
import lzma
from dataclasses import replace

import pytest
import zstandard

from models.errors import FormatError, InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats import reader
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import format_name_of_media_type, read_bytes, read_lists

ONE = b"0 ||| a ||| d= 1 ||| 2\n"


def texts(items):
    return [[c.text for c in item.candidates] for item in items if not isinstance(item, BadLine)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_packed_files_are_known_by_their_first_bytes(tmp_path, pack):
    (tmp_path / "lists").write_bytes(pack(ONE))
    assert texts(read_lists(tmp_path / "lists")) == [["a"]]


def test_several_packed_parts_are_one_file():
    assert texts(read_lists(io.BytesIO(gzip.compress(ONE) + gzip.compress(ONE.replace(b"0", b"1"))))) == [
        ["a"],
        ["a"],
    ]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_damaged_files_are_refused(tmp_path, pack):
    (tmp_path / "lists").write_bytes(pack(ONE * 1000)[:-9])
    with pytest.raises(FormatError, match="damaged"):
        list(read_lists(tmp_path / "lists", format_name="moses"))


def test_missing_files_are_refused_when_they_are_asked_for(tmp_path):
    items = read_lists(tmp_path / "none")
    with pytest.raises(FormatError, match="no such file"):
        next(items)


def test_a_line_that_is_not_utf_8_is_told_with_its_byte():
    bad, one = read_bytes(b"0 ||| \xe9 |||\n1 ||| b |||\r\n", "moses")
    assert str(bad) == "body:1: the text is not UTF-8: byte 7 of the line is 0xe9"
    assert one.candidates == (Candidate("b"),)


def test_a_line_past_the_limit_is_told_and_not_kept():
    body = b"0 ||| " + b"a" * (1 << 20) + b"\n1 ||| b |||\n"
    bad, one = read_bytes(body, "moses")
    assert (bad.number, "longer than 1,048,576 bytes" in bad.problem) == (1, True)
    assert one.name == "1"


def test_a_bomb_is_read_in_blocks(monkeypatch):
    """A packed file of one enormous line needs no more memory than its blocks."""
    packed = gzip.compress(b"\0" * (1 << 23))
    (bad,) = read_lists(io.BytesIO(packed), format_name="moses")
    assert bad.number == 1


def test_a_list_past_the_limit_is_told(monkeypatch):
    monkeypatch.setattr(format, "MAX_CANDIDATES", 2)
    *bad, one = read_bytes(b"0 ||| a\n" * 4, "moses")
    assert [item.number for item in bad] == [3, 4]
    assert len(one.candidates) == 2


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    (one,) = read_lists(io.BytesIO(b"\xef\xbb\xbf" + ONE))
    assert one.name == "0"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\n0 ||| a", "moses"),
        (b'{"id": 1, "candidates": [{"text": "\\"hyp_1\\": {"}]}', "jsonl"),
        (b'{\n "u": {\n  "hyp_1": {"score": 1', "mlm-scoring"),
        (b'[\n  {"input"', "hyporadise"),
        (b"NBestList1.0\n(1) a", "srilm"),
        (b"(-12) a", "srilm"),
        (b"-1 -2.5 3 a b", "srilm"),
        (b"a b\t-1.5", "nemo"),
        (b"utt-1 a b", "kaldi"),
        (b"utt-1", "kaldi"),
    ],
)
def test_formats_are_told_by_their_first_lines(head, name):
    assert reader.detect_format(head, "f").name == name


@pytest.mark.parametrize("head", [b"", b"\n \n", b"the cat sat", b'{"a": 1}', b"\x00\xff\xfe"])
def test_what_looks_like_no_format_is_refused_with_a_hint(head):
    with pytest.raises(FormatError, match="--format"):
        list(read_lists(io.BytesIO(head)))


def test_options_of_other_formats_are_refused(tmp_path):
    for options in ({"beam_size": 3}, {"scores": {"am": tmp_path}}):
        with pytest.raises(InvalidInputError, match="not to moses"):
            list(read_lists(io.BytesIO(ONE), **options))
    with pytest.raises(InvalidInputError, match="format is 'cdec', it can be jsonl, moses"):
        list(read_lists(io.BytesIO(ONE), format_name="cdec"))


def test_reserved_names_become_old():
    (one,) = read_bytes(b"0 ||| a ||| lm= 1 old_lm= 2 d= 3\n", "moses", reserved={"lm"}.__contains__)
    assert one.candidates[0].features == {"old_old_lm": 1.0, "old_lm": 2.0, "d": 3.0}
    (one,) = read_bytes(b"0 ||| a ||| lm= 1\n", "moses", reserved={"lm"}.__contains__)
    assert one.candidates[0].features == {"old_lm": 1.0}


def test_a_folder_of_srilms_has_a_list_a_file(tmp_path):
    for name in ("b", "a.gz", ".hidden"):
        (tmp_path / name).write_bytes(gzip.compress(f"1 2 3 {name}\n".encode()))
    assert [(one.name, one.candidates[0].text) for one in read_lists(tmp_path)] == [("a", "a.gz"), ("b", "b")]


@pytest.mark.parametrize(("name", "problem"), [("moses", "files with all lists"), ("srilm", "without files")])
def test_other_folders_are_refused(tmp_path, name, problem):
    with pytest.raises(FormatError, match=problem):
        list(read_lists(tmp_path, format_name=name))


def test_the_head_is_read_again(monkeypatch):
    """A format is told without losing a byte, whatever the size of the blocks."""
    monkeypatch.setattr(reader, "_HEAD_BYTES", 10)
    assert texts(read_lists(io.BytesIO(ONE * 3))) == [["a"] * 3]


def test_media_types_name_formats():
    assert format_name_of_media_type("Text/X-Moses-NBest; charset=utf-8") == "moses"
    assert format_name_of_media_type("application/x-ndjson") == "jsonl"
    assert format_name_of_media_type("text/html") is None


def test_what_a_format_has_no_place_for_is_named():
    one = CandidateList("u", "c", (Candidate("a", {"am": 1.0}),), ("a", "b"), "d")
    form = reader.format_by_name
    assert form("jsonl").dropped_fields(one) == set()
    assert form("nemo").dropped_fields(one) == {"id", "context", "continuation", "reference", "features.am"}
    assert form("mlm-scoring").dropped_fields(replace(one, context="", continuation=None)) == {
        "references",
        "features.am",
    }
