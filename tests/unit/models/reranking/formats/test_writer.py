"""Writing lists to files, folders and streams."""

import gzip
import io
import math

import pytest

from models.errors import FormatError, InputError
from models.language_model import LOG_ZERO
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats import writer
from models.reranking.formats.reader import FORMATS, WRITTEN_FORMAT_NAMES, read_lists
from models.reranking.formats.writer import write_lists

ONE = CandidateList("u", "", (Candidate("a"),))


def test_a_file_is_packed_as_its_name_says(tmp_path):
    write_lists([ONE], tmp_path / "out.gz", "moses")
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == b"u ||| a ||| \n"


def test_a_stream_is_written_in_pieces(monkeypatch):
    monkeypatch.setattr(writer, "_PIECE_CHARS", 1)
    stream = io.BytesIO()
    write_lists([ONE, CandidateList("v", "", (Candidate("é"),))], stream, "jsonl")
    assert stream.getvalue().decode().splitlines()[1] == '{"id": "v", "candidates": [{"text": "é"}]}'


def test_a_failure_leaves_the_file_as_it_was(tmp_path):
    (tmp_path / "out").write_text("before")
    with pytest.raises(InputError, match="surrogate"):
        write_lists([CandidateList("u", "", (Candidate("\ud800"),))], tmp_path / "out", "moses")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "before")]


def test_srilms_lists_are_files_of_a_folder(tmp_path):
    some = [CandidateList(name, "", (Candidate("a", {"score": 0.0}),)) for name in ("u", "v")]
    write_lists(some, tmp_path / "out", "nbestlist1.0")
    assert list(read_lists(tmp_path / "out")) == some


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\nb", "u.gz", ".u", "u" * 300, "\0"])
def test_names_that_files_cannot_have_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="it must be a file name"):
        write_lists([CandidateList(name, "", (Candidate("a"),))], tmp_path / "out", "srilm")


def test_two_lists_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="that no other list has"):
        write_lists([ONE, ONE], tmp_path / "out", "srilm")


def test_a_file_where_a_folder_should_be_is_refused(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(FormatError, match="needs a folder"):
        write_lists([ONE], tmp_path / "out", "srilm")
    with pytest.raises(FormatError, match="cannot be created"):
        write_lists([ONE], tmp_path / "none" / "out", "kaldi")


@pytest.mark.parametrize("name", WRITTEN_FORMAT_NAMES)
def test_formats_other_than_jsonl_write_lists_without_their_confidences(tmp_path, name):
    sure = CandidateList("u-1", "", (Candidate("a b", {"score": 0.0}, (0.5, 0.25)),))
    write_lists([sure], tmp_path / "out", name)
    beam_size = 1 if FORMATS[name].needs_beam_size else None
    [again] = read_lists(tmp_path / "out", format_name=name, beam_size=beam_size)
    [candidate] = again.candidates
    assert (candidate.text, candidate.confidences) == ("a b", (0.5, 0.25) if name == "jsonl" else ())


def test_a_score_of_minus_infinity_loses_no_confidences(tmp_path):
    sure = CandidateList(
        "u", "", (Candidate("a b", {"am": -math.inf}, (0.5, 0.25)), Candidate("c", {}, (1.0,)))
    )
    write_lists([sure], tmp_path / "out", "jsonl")
    [again] = read_lists(tmp_path / "out")
    assert again.candidates == (Candidate("a b", {"am": LOG_ZERO}, (0.5, 0.25)), Candidate("c", {}, (1.0,)))
