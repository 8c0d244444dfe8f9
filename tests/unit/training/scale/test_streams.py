"""Texts that are read anew for every pass."""

import os

import pytest

from models.errors import FormatError, InvalidInputError
from training.corpus import Corpus
from training.progress import SILENT
from training.scale.tables import FileSentences, stream_texts
from training.texts import DefaultCorpus, read_texts


@pytest.fixture
def files(tmp_path):
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("".join(f"line {i}\n\n" for i in range(30)))
    second.write_text("".join(f"  other {i}  \r\n" for i in range(30)))
    return [first, second]


@pytest.mark.parametrize("unit", ["line", "paragraph"])
@pytest.mark.parametrize("with_valid", [True, False])
def test_the_texts_are_those_that_are_read_into_memory(files, unit, with_valid):
    valid = files[1:] if with_valid else []
    streamed = stream_texts(files, valid, [], unit=unit, progress=SILENT)
    read = read_texts(files, valid, [], unit=unit, progress=SILENT)
    assert list(streamed.train.sentences) == read.train.sentences
    assert list(streamed.train.sentences) == read.train.sentences  # and again
    assert len(streamed.train.sentences) == len(read.train.sentences)
    assert streamed.train[1:] == read.train[1:]
    assert streamed[1:] == read[1:]


def test_a_text_that_changes_between_two_passes_is_refused(files):
    sentences = FileSentences(files, unit="line", begin=0, end=60)
    list(sentences)
    files[1].write_text("something else\n")
    with pytest.raises(FormatError, match=r"second\.txt: was changed while it was read"):
        list(sentences)


def test_what_can_be_read_once_only_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match=r"pipe: cannot be read several times \(save it as a file first\)"):
        stream_texts([tmp_path / "pipe"], [], [], unit="line", progress=SILENT)


def test_one_sentence_is_not_enough_to_hold_one_out(tmp_path):
    (tmp_path / "short.txt").write_text("only one\n")
    with pytest.raises(InvalidInputError, match="has 1 sentence, at least 2 are needed"):
        stream_texts([tmp_path / "short.txt"], [], [], unit="line", progress=SILENT)


def test_without_files_it_is_the_default_corpus(monkeypatch):
    documentation = DefaultCorpus(*(Corpus([part], part, [part]) for part in ("train", "valid", "test")))
    monkeypatch.setattr("training.texts.read_default_corpus", lambda _: documentation)
    assert stream_texts([], [], [], unit="line", progress=SILENT) == documentation
