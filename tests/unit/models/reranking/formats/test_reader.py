"""Detection and reading of n-best files, and matching with separate reference files."""

import gzip
import io
import json
import lzma
from dataclasses import replace

import pytest
import zstandard

from models.errors import FormatError, InputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats import reader
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import format_of_media_type, read_bytes, read_lists
from models.reranking.formats.writer import write_lists
from models.reranking.metrics import summarise_lists

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
    """A compressed file with one enormous line needs only the memory of its blocks."""
    packed = gzip.compress(b"\0" * (1 << 23))
    (bad,) = read_lists(io.BytesIO(packed), format_name="moses")
    assert bad.number == 1


def test_a_list_past_the_limit_is_told(monkeypatch):
    monkeypatch.setattr("models.reranking.formats.format.MAX_LIST_CANDIDATES", 2)
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
def test_unrecognised_format_is_refused_with_a_hint(head):
    with pytest.raises(FormatError, match="--format"):
        list(read_lists(io.BytesIO(head)))


def test_options_of_other_formats_are_refused(tmp_path):
    for options in ({"beam_size": 3}, {"scores": {"am": tmp_path}}):
        with pytest.raises(InputError, match="not for moses"):
            list(read_lists(io.BytesIO(ONE), **options))
    with pytest.raises(InputError, match="format is 'cdec'; it must be one of jsonl, moses"):
        list(read_lists(io.BytesIO(ONE), format_name="cdec"))


def test_reserved_names_become_old():
    (one,) = read_bytes(b"0 ||| a ||| lm= 1 old_lm= 2 d= 3\n", "moses", reserved={"lm"}.__contains__)
    assert one.candidates[0].features == {"old_old_lm": 1.0, "old_lm": 2.0, "d": 3.0}
    (one,) = read_bytes(b"0 ||| a ||| lm= 1\n", "moses", reserved={"lm"}.__contains__)
    assert one.candidates[0].features == {"old_lm": 1.0}


@pytest.mark.parametrize(
    ("form", "body", "features"),
    [
        (
            "azure",
            b'{"NBest": [{"Lexical": "a b", "Confidence": 1, "Words": [{"Confidence": 0.5}, {"Confidence": 1}]}]}',
            {"old_log_confidence": 0.0},
        ),
        (
            "jsonl",
            b'{"candidates": [{"text": "a b", "features": {"log_confidence": 0}, "confidences": [0.5, 1]}]}',
            {},
        ),
    ],
)
def test_candidates_with_reserved_names_keep_their_confidences(form, body, features):
    items = read_lists(io.BytesIO(body), format_name=form, reserved={"log_confidence"}.__contains__)
    [one] = (item for item in items if not isinstance(item, BadLine))
    assert one.candidates == (Candidate("a b", features, (0.5, 1.0)),)


def test_a_folder_of_srilms_has_a_list_a_file(tmp_path):
    for name in ("b", "a.gz", ".hidden"):
        (tmp_path / name).write_bytes(gzip.compress(f"1 2 3 {name}\n".encode()))
    assert [(one.name, one.candidates[0].text) for one in read_lists(tmp_path)] == [("a", "a.gz"), ("b", "b")]


@pytest.mark.parametrize(
    ("name", "problem"), [("moses", "all lists in one file"), ("srilm", "without files")]
)
def test_other_folders_are_refused(tmp_path, name, problem):
    with pytest.raises(FormatError, match=problem):
        list(read_lists(tmp_path, format_name=name))


def test_the_head_is_read_again(monkeypatch):
    """Format detection loses no bytes, whatever the block size."""
    monkeypatch.setattr(reader, "_HEAD_BYTES", 10)
    assert texts(read_lists(io.BytesIO(ONE * 3))) == [["a"] * 3]


def test_media_types_name_formats():
    assert format_of_media_type("Text/X-Moses-NBest; charset=utf-8") == "moses"
    assert format_of_media_type("application/x-ndjson") == "jsonl"
    assert format_of_media_type("text/html") is None


def test_fields_that_a_format_drops_are_named():
    one = CandidateList("u", "c", (Candidate("a", {"am": 1.0}),), ("a", "b"), "d")
    form = reader.format_by_name
    sure = replace(one, candidates=(Candidate("a", {"am": 1.0}, (0.5,)),))
    assert form("jsonl").dropped_fields(one) == form("jsonl").dropped_fields(sure) == set()
    assert form("nemo").dropped_fields(one) == {"id", "context", "continuation", "reference", "features.am"}
    assert form("mlm-scoring").dropped_fields(replace(one, context="", continuation=None)) == {
        "references",
        "features.am",
    }


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
        (b"a\t1\n", '{"text": "a"}\n{\n', "line 2: invalid JSON"),
        (b"a\t1\n", "x\n\ud800\n", "line 2 is not UTF-8"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, body, text, problem):
    (tmp_path / "references").write_bytes(text.encode(errors="surrogatepass"))
    options = {"beam_size": 1} if b"\t" in body else {}
    with pytest.raises(FormatError, match=problem):
        references(body, tmp_path / "references", **options)


def test_a_line_without_an_id_is_refused(file):
    with pytest.raises(FormatError, match="line 2 has no id"):
        references(JSONL, file("v\tb\n\tc\n"))


TEXTS = {
    "0": ("the cat", "the cat sat"),
    "1": ("a dog ran on", "2 dogs ran"),
    "2": ("my hen", "my hens"),
}
"""Recognised text and reference by id."""
RIGHT, REVERSED = 100 * 5 / 8, 100 * 8 / 8
LINES = {
    "lines": lambda _, text: text,
    "tab": lambda name, text: f"{name}\t{text}",
    "utterance": lambda name, text: f"{name} {text}",
    "trn": lambda name, text: f"{text} ({name})",
    "manifest": lambda _, text: json.dumps({"text": text}),
    "manifest with ids": lambda name, text: json.dumps({"id": name, "text": text}),
    "manifest with files": lambda name, text: json.dumps({"audio_filepath": f"a/{name}.wav", "text": text}),
}
IN_ORDER, WITHOUT_IDS = (
    {"lines", "manifest"},
    {"lines", "manifest", "manifest with ids", "manifest with files"},
)


def outcome(lists, layout, *, is_reversed):
    """Expected word error rate; None for an error."""
    if lists in {"jsonl without ids", "nemo"}:
        return (REVERSED if is_reversed else RIGHT) if layout in WITHOUT_IDS else None
    if lists in {"srilm", "kaldi"} and layout == "lines":
        return None
    return REVERSED if layout in IN_ORDER and is_reversed else RIGHT


def written(lists, folder):
    """Write a file of lists; return its path, format and list ids."""
    form, _, without = lists.partition(" without ")
    prefix = "" if form in {"moses", "jsonl of numbers"} else "utt-"
    names = [f"{prefix}{name}" for name in TEXTS]
    some = [
        CandidateList(None if without else name, "", (Candidate(text, {"score": -1.0}),))
        for name, (text, _) in zip(names, TEXTS.values(), strict=True)
    ]
    form = form.partition(" ")[0]
    write_lists(some, folder / "lists", form)
    return folder / "lists", form, names


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("layout", LINES)
@pytest.mark.parametrize(
    "lists",
    [
        "jsonl",
        "jsonl without ids",
        "jsonl of numbers",
        "moses",
        "srilm",
        "kaldi",
        "mlm-scoring",
        "hyporadise",
        "nemo",
    ],
)
def test_references_are_found_by_ids_wherever_there_are_any(tmp_path, lists, layout, is_reversed):
    path, form, names = written(lists, tmp_path)
    pairs = [LINES[layout](name, text) for name, (_, text) in zip(names, TEXTS.values(), strict=True)]
    (tmp_path / "references").write_text("\n".join(pairs[::-1] if is_reversed else pairs))
    options = {"format_name": form, "beam_size": 1 if form == "nemo" else None}
    found = read_lists(path, references=[tmp_path / "references"], **options)
    expected = outcome(lists, layout, is_reversed=is_reversed)
    if expected is None:
        with pytest.raises(FormatError, match=r"references: .*--reference-layout lines"):
            list(found)
    else:
        assert summarise_lists(found)["first_wer"] == pytest.approx(expected)


def read(names, text, folder, **options):
    (folder / "references").write_text(text)
    lists = "".join(json.dumps({"id": name, "candidates": [{"text": "a"}]}) + "\n" for name in names)
    return list(read_lists(io.BytesIO(lists.encode()), references=[folder / "references"], **options))


@pytest.mark.parametrize(
    ("names", "text", "problem"),
    [
        ("u1 u2 u3", "u1 a\nb\nu3 c", "no line with the id of list 2, 'u2'"),
        ("u1 u2 u3", "a\nu2 b\nc", "line 2 seems to have the id of list 2, 'u2'"),
        ("u1 u2", "u1 a", "no line with the id of list 2, 'u2'"),
        ("u1 u2", "u1 a\nu2 b\nu9 c", r"line 3: no list has the id 'u9' \(1 such"),
        ("u1 u2", "u1 a\nu2 b\nu1 c", "line 3 has the id 'u1', like line 1"),
        ("u1 u2 u1", "u1 a\nu2 b", "line 1 is the reference of two lists: list 3 has the id 'u1'"),
        ("u1 u2", "v1 a\nv2 b", "no line with the id of list 1, 'u1'"),
        ("utt-x utt-y", "spk-utt-x a\nspk-utt-y b", "no line with the id of list 1, 'utt-x'"),
        ("x the", "a cat\nthe dog", "line 2 seems to have the id of list 2, 'the'"),
        ("u1 u2", "u1\ta\nb", "no line with the id of list 2"),
        ("x y", "a (x)\nb", "line 1 seems to have the id of list 1, 'x'"),
        ("x y", '{"id": "x", "text": "a"}\n{"text": "b"}', "line 2 has no id"),
        ("0 1 2", "0 a\nb\n2 c", "line 1 seems to have the id of list 1, '0'"),
        ("0 1 2", "2 a\nb\n0 c", "ids of 2 of 3 lists"),
        ("x y", "a\nb\nc", "has 3 references, but there are 2 lists"),
    ],
)
def test_ambiguous_references_are_an_error(tmp_path, names, text, problem):
    with pytest.raises(FormatError, match=f"references: .*{problem}"):
        read(names.split(), text, tmp_path)


@pytest.mark.parametrize("text", ["2 dogs\nran\nhome", "a\n\nb", "(a)\nb (c)\nd"])
def test_a_word_that_is_some_other_lists_number_is_no_id(tmp_path, text):
    assert [one.references for one in read("012", text, tmp_path)] == [(line,) for line in text.split("\n")]


def test_a_layout_that_is_named_leaves_no_doubt(tmp_path):
    (first, second) = read("xa", "a cat\nx ran", tmp_path, reference_layout="lines")
    assert (first.references, second.references) == (("a cat",), ("x ran",))


def test_a_list_that_cannot_be_read_may_have_had_the_reference_that_is_left(tmp_path):
    (tmp_path / "references").write_text("u2 b\nu1 a\n")
    lists = b'{"id": "u1", "candidates": [{"text": "a"}]}\nbad\n'
    first, _ = read_lists(io.BytesIO(lists), format_name="jsonl", references=[tmp_path / "references"])
    assert first.references == ("a",)
