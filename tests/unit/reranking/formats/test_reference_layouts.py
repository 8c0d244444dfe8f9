"""Which reference a list gets, by the formats of both files and the order of the references."""

import io
import json

import pytest

from models.errors import FormatError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.reader import read_lists
from models.reranking.formats.summary import summarise_lists
from models.reranking.formats.writer import write_lists

TEXTS = {
    "0": ("the cat", "the cat sat"),
    "1": ("a dog ran on", "2 dogs ran"),
    "2": ("my hen", "my hens"),
}
"""What was recognised, and the reference, by id."""
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
    """The word error rate to expect; None for an error."""
    if lists in {"jsonl without ids", "nemo"}:
        return (REVERSED if is_reversed else RIGHT) if layout in WITHOUT_IDS else None
    if lists in {"srilm", "kaldi"} and layout == "lines":
        return None
    return REVERSED if layout in IN_ORDER and is_reversed else RIGHT


def written(lists, folder):
    """A file of lists, the name of its format, and their ids."""
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
        assert summarise_lists(found).figures()["first_wer"] == pytest.approx(expected)


def read(names, text, folder, **options):
    (folder / "references").write_text(text)
    lists = "".join(json.dumps({"id": name, "candidates": [{"text": "a"}]}) + "\n" for name in names)
    return list(read_lists(io.BytesIO(lists.encode()), references=[folder / "references"], **options))


@pytest.mark.parametrize(
    ("names", "text", "problem"),
    [
        ("u1 u2 u3", "u1 a\nb\nu3 c", "no line with the id of list 2, 'u2'"),
        ("u1 u2 u3", "a\nu2 b\nc", "line 2 has 'u2', the id of list 2, where an id would be"),
        ("u1 u2", "u1 a", "no line with the id of list 2, 'u2'"),
        ("u1 u2", "u1 a\nu2 b\nu9 c", r"line 3: there is no list with the id 'u9' \(1 such"),
        ("u1 u2", "u1 a\nu2 b\nu1 c", "line 3 has the id 'u1', as line 1 has"),
        ("u1 u2 u1", "u1 a\nu2 b", "line 1 is the reference of two lists: list 3 has the id 'u1'"),
        ("u1 u2", "v1 a\nv2 b", "no line with the id of list 1, 'u1'"),
        ("utt-x utt-y", "spk-utt-x a\nspk-utt-y b", "no line with the id of list 1, 'utt-x'"),
        ("x the", "a cat\nthe dog", "line 2 has 'the', the id of list 2, where an id would be"),
        ("u1 u2", "u1\ta\nb", "no line with the id of list 2"),
        ("x y", "a (x)\nb", r"line 1 has 'x', the id of list 1"),
        ("x y", '{"id": "x", "text": "a"}\n{"text": "b"}', "line 2: there is no id"),
        ("0 1 2", "0 a\nb\n2 c", "line 1 has '0', the id of list 1"),
        ("0 1 2", "2 a\nb\n0 c", "ids of 2 of 3 lists"),
        ("x y", "a\nb\nc", "has 3 references, but there are 2 lists"),
    ],
)
def test_what_is_not_sure_is_an_error(tmp_path, names, text, problem):
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
