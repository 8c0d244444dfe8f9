"""Corpora and word vectors with errors: bad text, truncated and hostile compressed files, endless lines."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from models.language_model import Vocabulary
from tests.fuzz.damage import any_bytes, damaged
from tests.fuzz.parsing import Parser, ParserProcess, fuzz
from training.corpus import MAX_LINE_BYTES, read_corpus
from training.neural.embeddings import read_embeddings
from training.progress import Progress

PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress}
TEXT = "The cat sat. It … purred!\n\nÜber dir.\r\nA last line without an end".encode()
WIDTH = 3
VECTORS = {
    "word2vec": "3 3\nthe 0.1 -0.2 3e-1\ncat 1 2 3\ndog -1 -2 -3\n",
    "glove": "the 0.1 -0.2 0.3\nnew york 1 2 3\ncat 4 5 6\n",
    "fasttext": "2 3\nthe 0.1 -0.2 0.3 \ncat 1 2 3 \n",
}
BOMBS = {"blank lines": b"\n", "one line": b"a", "short lines": b"of a dozen words or so this line is one\n"}
MEBIBYTES = 4000


def read_text(path: Path) -> None:
    """Read sentences, by lines and by paragraphs."""
    for unit in ("line", "paragraph"):
        corpus = read_corpus([path], unit=unit, progress=Progress())
        assert all(sentence.encode().strip() for sentence in corpus.sentences)


def read_vectors(path: Path) -> None:
    """Read vectors of three words."""
    read = read_embeddings(path, Vocabulary(["the", "cat", "new york"]), size=WIDTH)
    assert read.vectors.shape == (len(set(read.rows.tolist())), WIDTH)
    assert np.isfinite(read.vectors).all()


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module")
def text(process, tmp_path_factory):
    return Parser(process, "read_text", tmp_path_factory.mktemp("texts") / "text.txt", TEXT)


@pytest.fixture(scope="module")
def vectors(process, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "vectors.vec"
    return Parser(process, "read_vectors", path, VECTORS["glove"].encode())


@fuzz
@given(st.one_of(damaged(st.just(TEXT), [b"\\data\\\n", b"\xed\xa0\x80"]), any_bytes()))
def test_texts(text, content):
    text.ask(content)


@fuzz
@given(damaged(st.sampled_from([pack(TEXT * 40) for pack in PACKERS.values()])))
def test_packed_texts(text, content):
    text.ask(content)


@fuzz
@given(
    st.one_of(
        damaged(st.sampled_from([*VECTORS.values()]).map(str.encode), [b"9 3\n", b"x 1 2 3\n"]), any_bytes()
    )
)
def test_word_vectors(vectors, content):
    vectors.ask(content)


def bomb(piece, how):
    """Repeat one compressed mebibyte of a piece `MEBIBYTES` times, which all three formats allow."""
    return PACKERS[how](piece * ((1 << 20) // len(piece))) * MEBIBYTES


@pytest.mark.parametrize("how", PACKERS)
@pytest.mark.parametrize("what", BOMBS)
def test_a_small_file_that_unpacks_to_gigabytes_is_refused_early(text, what, how):
    assert text.ask(bomb(BOMBS[what], how)) == "refused"


def test_a_line_that_does_not_end_is_refused_before_it_fills_memory(text):
    assert text.ask(b"word " * (MAX_LINE_BYTES // 5 + (1 << 20)), named="a line of more than") == "refused"


def test_counts_of_thousands_of_digits_are_no_counts(vectors):
    assert vectors.ask(b"9" * 5000 + b" 3\nthe 1 2 3\n") == "refused"
