"""Writing lists to files, folders and streams."""

import gzip
import io

import pytest

from models.errors import FormatError, InputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats import writer
from models.reranking.formats.reader import read_lists
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
