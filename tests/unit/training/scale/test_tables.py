"""Stages on disk, the table of windows, and repeated reading of texts."""

import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from models.errors import FormatError, InputError, RegistryError
from models.language_model import BOS, EOS, Vocabulary
from models.tokenizers import WordTokenizer
from training.corpus import Corpus, EncodedCorpus, FileSentences
from training.evaluation.breakdown import COUNTS_FILE
from training.progress import SILENT
from training.scale.plan import ABSENT
from training.scale.training import stage_key, text_windows, workspace, write_windows
from training.texts import read_texts


def writer(text):
    def write(folder):
        (folder / "part.parquet").write_text(text)
        (folder / "kept.txt").write_text(text)
        return {"said": text}

    return write


def never(_):
    pytest.fail("the stage was run again")


def test_a_stage_that_is_there_is_not_run_again(tmp_path):
    with workspace(tmp_path) as work:
        assert work.stage("one", "key", writer("a")) == {"said": "a"}
    with workspace(tmp_path) as work:
        assert work.stage("one", "key", never) == {"said": "a"}
        assert (work.path("one") / "part.parquet").read_text() == "a"
        assert work.notes() == ["1 stages of the estimation were already complete"]


def test_a_stage_of_something_else_is_run_anew(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        assert work.stage("one", "another key", writer("b")) == {"said": "b"}
        assert (work.path("one") / "part.parquet").read_text() == "b"
        assert work.notes() == []


def test_the_stages_of_another_estimation_are_removed_and_that_is_told(tmp_path):
    with workspace(tmp_path) as work:
        work.claim("this")
        work.stage("one", "key", writer("a"))
    with workspace(tmp_path) as work:
        work.claim("this")
        assert work.stage("one", "key", never) == {"said": "a"}
        work.claim("that")
        assert not work.path("one").exists()
        assert work.notes()[0].startswith("an unfinished estimation of another text or recipe in")


def test_a_stage_whose_removal_was_interrupted_is_not_half_there(tmp_path, monkeypatch):
    with workspace(tmp_path) as work:
        work.claim("this")
        work.stage("one", "key", writer("a"))
    really = shutil.rmtree

    def killed(path, **_):
        (path / "part.parquet").unlink()
        raise KeyboardInterrupt

    for remove in (lambda work: work.claim("that"), lambda work: work.stage("one", "other key", writer("b"))):
        with workspace(tmp_path) as work:
            work.claim("this")
            work.stage("one", "key", writer("a"))
            monkeypatch.setattr("shutil.rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                remove(work)
            monkeypatch.setattr("shutil.rmtree", really)
        with workspace(tmp_path) as work:
            work.claim("this")
            assert work.stage("one", "key", writer("again")) == {"said": "again"}
            assert work.stage("one", "key", never) == {"said": "again"}


def test_a_stage_that_failed_is_not_there(tmp_path):
    def fail(folder):
        writer("half")(folder)
        raise OSError(28, "No space left on device")

    with workspace(tmp_path) as work:
        with pytest.raises(RegistryError, match=r"cannot write to .*: No space left on device"):
            work.stage("one", "key", fail)
        assert not work.path("one").exists()
    with workspace(tmp_path) as work:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["estimation", "spill"]
        assert work.stage("one", "key", writer("a")) == {"said": "a"}


def test_a_damaged_stage_is_run_anew(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        (work.path("one") / "stage.json").write_text("{")
        assert work.stage("one", "key", writer("b")) == {"said": "b"}


def test_the_table_of_a_stage_can_go_and_the_stage_stay(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        work.drop("one")
        assert [path.name for path in sorted(work.path("one").iterdir())] == ["kept.txt", "stage.json"]
        assert work.stage("one", "key", never) == {"said": "a"}


def test_nothing_is_left_of_what_was_published(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        work.remove()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_share_a_workspace(tmp_path):
    with (
        workspace(tmp_path),
        pytest.raises(InputError, match="another process is estimating in"),
        workspace(tmp_path),
    ):
        pass


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="is not empty and contains no stages"), workspace(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match="cannot write to"), workspace(tmp_path / "file" / "inside"):
        pass


def test_keys_depend_on_every_part():
    assert stage_key(1, "a", [2]) == stage_key(1, "a", [2])
    assert (
        len({stage_key(1, "a", [2]), stage_key(1, "a", [3]), stage_key(1, "b", [2]), stage_key(1, "a")}) == 4
    )


def test_stages_left_by_a_killed_change_of_estimation_are_not_reused(tmp_path, monkeypatch):
    """Some stages and tables of the old estimation are already deleted."""
    with workspace(tmp_path) as work:
        work.claim("this")
        work.stage("one", "key", writer("a"))
        work.stage("two", "key", writer("b"))

    with monkeypatch.context() as patched, workspace(tmp_path) as work:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            work.claim("that")
    with workspace(tmp_path) as work:
        work.claim("this")
        assert not list(tmp_path.glob("stage-*"))


def killed(*_, **__):
    raise KeyboardInterrupt


TOKENIZER = WordTokenizer(Vocabulary(["a", "b", "c"]))
A, B, C = (TOKENIZER.vocabulary.id_of(word) for word in "abc")


def test_every_place_with_enough_words_has_its_row_and_so_has_the_beginning_of_a_sentence():
    windows = text_windows(EncodedCorpus.from_sentences([[A, B], [C]]), 4).T.tolist()
    assert windows == [[BOS, A, B, EOS], [BOS, C, EOS, ABSENT]]


def test_no_window_crosses_the_end_of_a_sentence():
    windows = text_windows(EncodedCorpus.from_sentences([[A], [B]]), 2).T.tolist()
    assert windows == [[BOS, A], [A, EOS], [BOS, B], [B, EOS]]


def test_single_words_are_windows_of_one():
    assert text_windows(EncodedCorpus.from_sentences([[A], []]), 1).tolist() == [[BOS, A, EOS, BOS, EOS]]


def test_the_table_has_the_windows_of_all_blocks_with_counts_and_overlap_beside(tmp_path):
    sentences = ["a b c a b c a b", "c b a"] * 5000  # several blocks
    held_out = {"valid": ["a b c a b c a b", "b b b b b b b b"]}
    found = write_windows(
        tmp_path, TOKENIZER, sentences, order=3, backward=False, held_out=held_out, progress=SILENT
    )
    table = pq.read_table(tmp_path / "part.parquet")
    assert table.column_names == ["w1", "w2", "w3"]
    assert table.num_rows == 5000 * (8 + 3)
    counts = np.load(tmp_path / COUNTS_FILE)
    assert counts[[A, B, C, EOS]].tolist() == [20_000, 20_000, 15_000, 10_000]
    assert found["tokens"] == counts.sum()
    assert found["overlap"] == {"valid": {"sentences": {"total": 2, "seen": 1, "share": 0.5}}}


def test_backward_each_sentence_is_read_from_its_last_word(tmp_path):
    write_windows(tmp_path, TOKENIZER, ["a b"], order=3, backward=True, held_out={}, progress=SILENT)
    rows = pq.read_table(tmp_path / "part.parquet").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(BOS, B, A), (B, A, EOS)]


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
    streamed = read_texts(files, valid, [], unit=unit, stream=True, progress=SILENT)
    read = read_texts(files, valid, [], unit=unit, progress=SILENT)
    assert list(streamed.train.sentences) == read.train.sentences
    assert list(streamed.train.sentences) == read.train.sentences  # repeatable
    assert len(streamed.train.sentences) == len(read.train.sentences)
    assert streamed.train[1:] == read.train[1:]
    assert streamed[1:] == read[1:]


def test_a_text_that_changes_between_two_passes_is_refused(files):
    sentences = FileSentences(files, unit="line", indices=range(60))
    list(sentences)
    files[1].write_text("something else\n")
    with pytest.raises(FormatError, match=r"second\.txt: was changed while it was read"):
        list(sentences)


def test_pipe_as_corpus_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match=r"pipe: cannot be read several times \(save it as a file first\)"):
        read_texts([tmp_path / "pipe"], [], [], unit="line", stream=True, progress=SILENT)


def test_one_sentence_is_not_enough_to_hold_one_out(tmp_path):
    (tmp_path / "short.txt").write_text("only one\n")
    with pytest.raises(InputError, match="has 1 sentence; at least 2 are needed"):
        read_texts([tmp_path / "short.txt"], [], [], unit="line", stream=True, progress=SILENT)


def test_without_files_it_is_the_default_corpus(monkeypatch):
    documentation = tuple(Corpus([part], part, [part]) for part in ("train", "valid", "test"))
    monkeypatch.setattr("training.texts.read_default_corpus", lambda _: documentation)
    assert read_texts([], [], [], unit="line", stream=True, progress=SILENT) == documentation
