"""Written ARPA files: layout, unrepresentable models, no partial files."""

import gzip
import lzma

import numpy as np
import pytest
import zstandard

from models import files
from models.errors import FormatError
from models.language_model import Vocabulary
from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import NGrams, NGramWeights
from tests.reference.backoff import SMALL


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small").write_text(SMALL)
    return read_arpa(tmp_path / "small")


def unigrams(*words, log10_backoff=0.0):
    """Vocabulary and a model with unigrams and an empty list of bigrams."""
    vocabulary = Vocabulary(words)
    size = len(vocabulary)
    nothing, number = np.zeros(0, np.float32), np.zeros(0, np.int32)
    probs, backoffs = np.full(size, -0.5, np.float32), np.full(size, log10_backoff, np.float32)
    probs[1] = -np.inf
    first = NGrams(np.arange(size, dtype=np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32))
    return vocabulary, [
        (first, NGramWeights(probs, backoffs)),
        (NGrams(number, number, number), NGramWeights(nothing, nothing)),
    ]


def same(orders, others):
    return all(
        a.tobytes() == b.tobytes()
        for (ngrams, weights), (more_ngrams, more_weights) in zip(orders, others, strict=True)
        for a, b in zip((*ngrams[:2], *weights), (*more_ngrams[:2], *more_weights), strict=True)
    )


def test_a_file_in_the_order_of_ids_is_written_as_it_was_read(tmp_path, small):
    write_arpa(tmp_path / "out", small.vocabulary, small.orders)
    sorted_lines = SMALL.replace("-0.4\tb </s>\n-0.5\ta a\n", "-0.4\tb </s>\n")
    sorted_lines = sorted_lines.replace("-0.3\ta b", "-0.5\ta a\n-0.3\ta b")
    assert (tmp_path / "out").read_text() == sorted_lines


@pytest.mark.parametrize(
    ("suffix", "unpack"),
    [
        ("", bytes),
        (".gz", gzip.decompress),
        (".xz", lzma.decompress),
        (".zst", lambda data: zstandard.ZstdDecompressor().stream_reader(data).read()),
    ],
)
def test_the_name_says_how_a_file_is_packed(tmp_path, small, suffix, unpack):
    paths = [tmp_path / f"{name}.arpa{suffix}" for name in "ab"]
    for path in paths:
        write_arpa(path, small.vocabulary, small.orders)
    assert unpack(paths[0].read_bytes()).startswith(b"\\data\\\nngram 1=5\n")
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_backoffs_are_left_out_where_they_say_nothing(tmp_path):
    backoffs = np.array([0.0, 0.0, -0.0, 0.5, 0.0], np.float32)
    vocabulary, [(first, weights), _] = unigrams("a", "b")
    bigram = NGrams(*(np.array([i], np.int32) for i in (3, 4, 3)))
    orders = [
        (first, weights._replace(log10_backoffs=backoffs)),
        (bigram, NGramWeights(backoffs[:1], backoffs[3:4])),
    ]
    write_arpa(tmp_path / "out", vocabulary, orders)
    lines = (tmp_path / "out").read_text().splitlines()[5:]
    expected = [
        "-0.5\t<unk>",
        "-99\t<s>",
        "-0.5\t</s>\t-0",
        "-0.5\ta\t0.5",
        "-0.5\tb\t0",
        "",
        "\\2-grams:",
        "0\tb a",
    ]
    assert lines[:8] == expected


WORDS = [
    "",
    " ",
    "\t",
    "a b",
    "<unk>",
    "<s>",
    "</s>",
    "<UNK>",
    "%",
    "%20",
    "\x00",
    "\x7f",
    "\r\n",
    "a",
    "é\u00a0\u3000",
]


def test_words_that_cannot_stand_in_a_file_are_escaped_and_come_back(tmp_path):
    vocabulary, orders = unigrams(*WORDS)
    written = write_arpa(tmp_path / "out", vocabulary, orders)
    text = (tmp_path / "out").read_text()
    assert written.escaped_words == 11
    assert text.startswith("# gramophone: escapes=percent\n\\data\\\n")
    assert "\t%25\n" in text
    assert "\t%3Cs>\n" in text
    again = read_arpa(tmp_path / "out")
    assert again.vocabulary.tokens == vocabulary.tokens
    assert again.report.escaped
    assert same(again.orders, orders)


def test_a_percent_sign_alone_is_no_reason_to_escape(tmp_path):
    vocabulary, orders = unigrams("%", "%20")
    assert write_arpa(tmp_path / "out", vocabulary, orders).escaped_words == 0
    assert read_arpa(tmp_path / "out").vocabulary.tokens == vocabulary.tokens


def test_escapes_that_nobody_writes_are_refused(tmp_path):
    vocabulary, orders = unigrams("", "x")
    write_arpa(tmp_path / "out", vocabulary, orders)
    for wrong in ("%61", "%2g", "%%", "%c3%a9"):
        (tmp_path / "wrong").write_text((tmp_path / "out").read_text().replace("\tx\n", f"\t{wrong}\n"))
        with pytest.raises(FormatError, match=r"line 11: '%.*' is not escaped, but the file declares"):
            read_arpa(tmp_path / "wrong")


def test_a_backoff_weight_of_zero_is_written_as_a_number_that_no_other_has(tmp_path):
    vocabulary, orders = unigrams("a", "b")
    orders[0][1].log10_backoffs[:] = [0, -99, -np.inf, -100, -np.inf]
    written = write_arpa(tmp_path / "out", vocabulary, orders)
    text = (tmp_path / "out").read_text()
    assert text.startswith("# gramophone: log-zero=-101\n")
    assert "inf" not in text
    assert written.log_zero == -101
    assert same(read_arpa(tmp_path / "out").orders, orders)


def test_probability_zero_is_written_as_kenlm_reads_it(tmp_path):
    vocabulary, orders = unigrams("a")
    orders[0][1].log10_probs[3] = -np.inf
    write_arpa(tmp_path / "out", vocabulary, orders)
    assert "\n-inf\ta\n" in (tmp_path / "out").read_text()
    assert same(read_arpa(tmp_path / "out").orders, orders)


def test_an_error_on_the_way_leaves_the_old_file_and_nothing_else(tmp_path, small, monkeypatch):
    path = tmp_path / "out.arpa"
    path.write_text("old")

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_arpa(path, small.vocabulary, small.orders, on_write=stop)
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.arpa", "small"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_a_full_disk_is_one_error_that_names_the_file(tmp_path, small, monkeypatch, suffix):
    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

        def flush(self):
            pass

    original = files._compressor
    monkeypatch.setattr(files, "_compressor", lambda ending, _: original(ending, Full()))
    path = tmp_path / f"out.arpa{suffix}"
    with pytest.raises(FormatError, match=rf"out\.arpa{suffix}: cannot be written: No space left on device"):
        write_arpa(path, small.vocabulary, small.orders)
    assert [p.name for p in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize("name", ["absent/out.arpa", "."])
def test_a_place_that_cannot_be_written_to_is_refused(tmp_path, small, name):
    with pytest.raises(FormatError, match="cannot be written"):
        write_arpa(tmp_path / name, small.vocabulary, small.orders)


def test_progress_counts_ngrams(tmp_path, small):
    told = []
    write_arpa(tmp_path / "out", small.vocabulary, small.orders, on_write=told.append)
    assert sum(told) == 5 + 4 + 2


def test_a_model_that_reads_right_to_left_says_so(tmp_path, small):
    write_arpa(tmp_path / "out", small.vocabulary, small.orders, backward=True)
    assert (tmp_path / "out").read_text().startswith("# gramophone: direction=backward\n\\data\\\n")
    assert read_arpa(tmp_path / "out").report.backward
    assert not small.report.backward
