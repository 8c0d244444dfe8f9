"""Corpus formats, units and errors; encoded corpora; the texts of a run; the default corpus."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from models.errors import FormatError, InputError
from models.language_model import BOS, EOS
from models.reranking.formats.reader import read_lists
from training.corpus import EncodedCorpus, paragraphs, read_corpus, read_lines, split_sentences
from training.progress import Progress
from training.texts import read_default_corpus, read_texts

TEXT = "first line\n\n  second line  \r\nthird \u2013 line"
SENTENCES = ["first line", "second line", "third \u2013 line"]


def read(*paths, unit="line"):
    return read_corpus(paths, unit=unit, progress=Progress())


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.ZstdCompressor().compress),
        (".bz2", bz2.compress),
    ],
)
def test_every_compression_reads_the_same_sentences_and_hash(tmp_path, suffix, compress):
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_bytes(compress(TEXT.encode()))
    plain = tmp_path / "plain.txt"
    plain.write_bytes(TEXT.encode())
    assert read(path).sentences == SENTENCES
    assert read(path).sha256 == read(plain).sha256


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress, bz2.compress]
)
def test_packed_files_are_known_by_their_bytes_and_not_by_their_names(tmp_path, compress):
    for name in ("corpus", "corpus.txt", "corpus.gz"):
        (tmp_path / name).write_bytes(compress(TEXT.encode()))
        assert read(tmp_path / name).sentences == SENTENCES


def test_the_end_of_a_line_is_no_part_of_it_wherever_a_chunk_ends(tmp_path, monkeypatch):
    path = tmp_path / "windows.txt"
    path.write_bytes(b"one\r\n\r\ntwo\rlines\r\nthree\r\n")
    for size in range(1, 30):
        monkeypatch.setattr("training.corpus._CHUNK_BYTES", size)
        assert list(read_lines(path)) == ["one", "", "two\rlines", "three"]


@pytest.mark.parametrize("head", ["", "\ufeff", "\n\n"])
def test_an_arpa_file_is_no_text(tmp_path, head):
    path = tmp_path / "lm.arpa"
    path.write_text(f"{head}\\data\\\nngram 1=3\n")
    with pytest.raises(FormatError, match=r"looks like an ARPA file.*\(use gramophone models import-arpa\)"):
        read(path)
    path.write_text("a word of \\data\\ is none\n")
    assert read(path).sentences == ["a word of \\data\\ is none"]


def test_lines_longer_than_a_chunk_and_across_chunks_stay_whole(tmp_path):
    path = tmp_path / "corpus.txt"
    long = "é" * 3_000_001
    path.write_text(f"a\n{long}\nb\n{long}")
    assert read(path).sentences == ["a", long, "b", long]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\n \n\n", "contains no sentence"),
        (b"good\nbad \xff here\n", "byte 9 is 0xff"),
        (b"good\ncut off \xc3", "byte 13 is 0xc3"),
        (b"good\n" * 10 + b"\x00\x01", "byte 50 is NUL"),
        (b"x" * (1 << 20) + b"\n" + b"y" * 100 + b"\xfe\n", f"byte {(1 << 20) + 101} is 0xfe"),
    ],
)
def test_invalid_text_is_refused_with_file_and_byte(tmp_path, content, problem):
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=problem) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".bz2"])
@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_compressed_file_is_refused(tmp_path, suffix, damage):
    compress = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
        ".bz2": bz2.compress,
    }[suffix]
    path = tmp_path / f"corpus.txt{suffix}"
    whole = compress(TEXT.encode() * 500)
    middle = len(whole) // 2
    overwritten = (
        whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 9]) + whole[middle + 9 :]
    )
    damaged = {"cut": whole[:middle], "overwritten": overwritten}
    path.write_bytes(damaged[damage])
    with pytest.raises(FormatError, match="damaged"):
        read(path)


def zipped(kind):
    """TEXT in an archive."""
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("text", TEXT)
    else:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("text")
            member.size = len(TEXT.encode())
            archive.addfile(member, io.BytesIO(TEXT.encode()))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            TEXT.encode("utf-16"),
            r"is text in UTF-16 \(convert it first: iconv -f utf-16 -t utf-8 .*corpus.txt > text",
        ),
        ("\ufeff".encode("utf-16-be") + TEXT.encode("utf-16-be"), "is text in UTF-16 .*iconv -f utf-16 "),
        (TEXT.encode("utf-16-le"), "is text in UTF-16 .*iconv -f utf-16le "),
        (TEXT.encode("utf-16-be"), "is text in UTF-16 .*iconv -f utf-16be "),
        (TEXT.encode("utf-32"), "is text in UTF-32 .*iconv -f utf-32 "),
        (zipped("zip"), "is a zip archive .*unzip -p "),
        (zipped("tar"), "is a tar archive .*tar -xOf "),
        (gzip.compress(zipped("tar")), "is a tar archive .*tar -xOf "),
    ],
)
@pytest.mark.parametrize("reader", ["corpus", "lists", "references"])
def test_other_formats_are_named_with_the_command_that_converts(tmp_path, content, problem, reader):
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    readers = {
        "corpus": read,
        "lists": lambda file: list(read_lists(file)),
        "references": lambda file: list(read_lists(io.BytesIO(b"0 ||| a\n"), references=[file])),
    }
    with pytest.raises(FormatError, match=problem):
        readers[reader](path)


def test_a_corpus_is_read_from_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as writer:
        writer.submit(pipe.write_bytes, TEXT.encode())
        assert read(pipe).sentences == SENTENCES


def test_wide_white_space_is_kept(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\u3000ten\u00a0thousand \n\u00a0\n")
    assert read(path).sentences == ["\u3000ten\u00a0thousand"]
    assert list(paragraphs(["a\u00a0b\tc "])) == ["a\u00a0b c"]


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8-sig")
    assert read(path).sentences == SENTENCES


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FormatError, match="no such file"):
        read(tmp_path / "absent.txt")
    with pytest.raises(FormatError, match="is a folder"):
        read(tmp_path)


def test_an_unknown_unit_is_refused(tmp_path):
    with pytest.raises(InputError, match="'page'"):
        read(tmp_path, unit="page")


def test_paragraphs_are_joined_and_split_into_sentences(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_text('Dr. Smith went\nhome. "Why?" she\nasked.\n\nIt rained. 3 cats slept.\n')
    assert read(path, unit="paragraph").sentences == [
        "Dr. Smith went home.",
        '"Why?" she asked.',
        "It rained.",
        "3 cats slept.",
    ]


def test_splitting_loses_nothing():
    text = 'He said "No." Then (perhaps!) J. Doe left... At 5 p.m. Mr. X. stayed? Yes'
    assert " ".join(split_sentences(text)) == text
    assert list(paragraphs(["a", " b ", "", "", "c"])) == ["a b", "c"]


def test_a_paragraph_of_initials_takes_no_more_than_its_length_in_time():
    """Regression: each initial was compared with the complete text before it, so 1 MB took hours."""
    text = "A. " * 200_000 + "Smith wrote it. He left."
    began = time.process_time()
    assert len(split_sentences(text)) == 2
    assert time.process_time() - began < 10


def test_every_sentence_stands_between_control_tokens():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [], [6], [7, 8, 9, 10]])
    expected = [BOS, 3, 4, 5, EOS, BOS, EOS, BOS, 6, EOS, BOS, 7, 8, 9, 10, EOS]
    assert corpus.with_boundaries().tolist() == expected


def test_no_sentence_gives_no_text():
    assert EncodedCorpus.from_sentences([]).with_boundaries().tolist() == []


def test_reversing_turns_every_sentence_around_in_its_place():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [], [6], [7, 8]], num_words=6, num_bytes=11)
    mirrored = corpus.reversed()
    assert [mirrored.sentence(i).tolist() for i in range(4)] == [[5, 4, 3], [], [6], [8, 7]]
    assert (mirrored.num_words, mirrored.num_bytes) == (6, 11)
    assert EncodedCorpus.from_sentences([]).reversed().num_sentences == 0


def written(folder, name, lines):
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_without_validation_text_the_end_is_held_out_and_named(tmp_path):
    path = written(tmp_path, "my.txt", range(40))
    texts = read_texts([path], [], [], unit="line", progress=Progress())
    assert texts.train.sentences == [str(i) for i in range(38)]
    assert texts.valid.sentences == ["38", "39"]
    assert texts.valid.sources == ["the end of my.txt"]


def test_given_validation_text_nothing_is_held_out(tmp_path):
    train, valid = written(tmp_path, "a.txt", "abc"), written(tmp_path, "b.txt", "d")
    texts = read_texts([train], [valid], [], unit="line", progress=Progress())
    assert (texts.train.sentences, texts.valid.sentences, texts.test) == (["a", "b", "c"], ["d"], None)


def test_one_sentence_is_too_few_to_hold_one_out(tmp_path):
    with pytest.raises(InputError, match="1 sentence; at least 2"):
        read_texts([written(tmp_path, "my.txt", "a")], [], [], unit="line", progress=Progress())


def test_validation_text_alone_is_refused(tmp_path):
    with pytest.raises(InputError, match="need --corpus"):
        read_texts([], [written(tmp_path, "my.txt", "a")], [], unit="line", progress=Progress())


@pytest.fixture(scope="module")
def corpus():
    return read_default_corpus(Progress())


def test_it_has_a_few_hundred_thousand_words_and_a_twentieth_of_documents_held_out(corpus):
    words = [sum(len(s.split()) for s in part.sentences) for part in corpus]
    assert 150_000 < words[0] < 1_000_000
    assert all(0.01 < held_out / words[0] < 0.15 for held_out in words[1:])


def test_the_split_is_the_same_wherever_and_in_whatever_order_files_are_found(tmp_path, monkeypatch):
    numbers, read = range(60), []
    for library, order in ((tmp_path / "a", numbers), (tmp_path / "b", reversed(numbers))):
        library.mkdir()
        for number in order:
            text = f'"""Module number {number} has one sentence of documentation."""'
            (library / f"module_{number}.py").write_text(text)
        monkeypatch.setattr("sysconfig.get_paths", lambda library=library: {"stdlib": str(library)})
        read.append(read_default_corpus(Progress()))
    first, second = ([part.sha256 for part in parts] for parts in read)
    assert first == second
    assert all(any("Module number" in s for s in part.sentences) for part in read[0])


def test_no_sentence_of_some_length_is_in_two_parts(corpus):
    train, valid, test = ({s for s in part.sentences if len(s) >= 40} for part in corpus)
    assert not train & valid
    assert not (train | valid) & test
