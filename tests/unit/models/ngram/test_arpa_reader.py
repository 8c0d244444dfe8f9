"""ARPA files of other tools, and errors of malformed files."""

import gzip
import hashlib
import lzma
from pathlib import Path

import numpy as np
import pytest
import zstandard

from models.errors import FormatError
from models.language_model import BOS, EOS, UNK, Vocabulary, score_sequences
from models.ngram import arpa_source
from models.ngram.arpa_reader import read_arpa
from models.ngram.build import build_automaton
from models.ngram.model import NGramModel
from tests.reference.backoff import SMALL, SlowBackoff, listed, parse_arpa, random_arpa


def written(folder, text, name="model.arpa"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder, text, name="model.arpa"):
    return read_arpa(written(folder, text, name))


def table_of(model):
    return listed(model.vocabulary, model.orders)


@pytest.fixture
def small(tmp_path):
    return read(tmp_path, SMALL)


def test_every_ngram_is_read_with_its_weights(small):
    expected = {words: tuple(map(np.float32, values)) for words, values in parse_arpa(SMALL).items()}
    expected["<s>",] = (-np.inf, np.float32(-0.3))
    assert table_of(small) == expected
    assert small.vocabulary.tokens == ("<unk>", "<s>", "</s>", "a", "b")


def test_ngrams_are_sorted_and_suffixes_left_to_the_builder(small):
    words, prefixes, suffixes = small.orders[1][0]
    assert list(zip(prefixes, words, strict=True)) == [(1, 3), (3, 3), (3, 4), (4, 2)]
    assert set(suffixes) == {-1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n", "\r\n"),
        ("\t", " "),
        ("\t", "  \t"),
        ("\\end\\\n", "\\end\\"),
        ("\\end\\\n", "\\end\\\n\nwhatever else"),
        ("\\data\\", "made by hand\n# on a Tuesday\n\n\\data\\"),
        ("\\data\\", "\ufeff\\data\\"),
        ("ngram 1=5", "ngram  1 =    5"),
        ("-0.3\ta b", "\n \t\n-0.3\ta b"),
        ("-0.3\ta b", "-3e-01\ta b"),
        ("-0.3\ta b", "-.3000000000000000000000\ta b"),
        ("-0.1\t<s> a b", "-0.1\t<s> a b\t0"),
        ("-99\t<s>", "0\t<s>"),
        ("-0.2\n", "-0.2   \n"),
    ],
)
def test_variants_of_the_format_are_read_alike(tmp_path, small, old, new):
    assert old in SMALL
    assert table_of(read(tmp_path, SMALL.replace(old, new))) == table_of(small)


@pytest.mark.parametrize("name", ["model.arpa", "model.gz", "model"])
@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress]
)
def test_packed_files_are_known_by_their_bytes(tmp_path, small, name, compress):
    data = compress(SMALL.encode())
    model = read(tmp_path, data, name)
    assert table_of(model) == table_of(small)
    assert model.report.sha256 == hashlib.sha256(data).hexdigest()


def test_the_hash_is_of_the_whole_file_whatever_follows_the_end(tmp_path):
    text = SMALL + "x" * 10_000_000
    told = []
    report = read_arpa(written(tmp_path, text), on_read=told.append).report
    assert report.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert sum(told) == len(text)


@pytest.mark.parametrize("size", [64, 300])
def test_lines_across_blocks_stay_whole(tmp_path, monkeypatch, size):
    text, _ = random_arpa(np.random.default_rng(5), order=4, num_words=200)
    expected = table_of(read(tmp_path, text))
    monkeypatch.setattr(arpa_source, "BLOCK_BYTES", size)
    assert table_of(read(tmp_path, text)) == expected


def test_a_missing_unknown_word_gets_what_kenlm_gives_it(tmp_path):
    model = read(tmp_path, SMALL.replace("-1.5\t<unk>\n", "").replace("1=5", "1=4"))
    assert model.orders[0][1].log10_probs[UNK] == -100
    assert not model.report.lists_unknown


def test_capital_unk_is_the_unknown_word_everywhere(tmp_path):
    model = read(tmp_path, SMALL.replace("<unk>", "<UNK>").replace("a a\n", "<unk> a\n"))
    assert model.orders[0][1].log10_probs[UNK] == np.float32(-1.5)
    assert table_of(model)["<unk>", "a"] == (np.float32(-0.5), 0)


def test_log_zero_by_convention_is_kept_as_it_stands_but_for_the_start(tmp_path):
    model = read(tmp_path, SMALL.replace("-0.6\ta", "-99\ta").replace("-0.8\tb", "-inf\tb"))
    probs = model.orders[0][1].log10_probs
    assert probs[[BOS, 3, 4]].tolist() == [-np.inf, -99, -np.inf]


def test_the_report_counts_what_is_unusual(tmp_path):
    text = SMALL.replace("-0.1\t<s> a b", "-0.1\t<s> a b\t-0.7").replace("a a\n", "b <s>\t-1\n")
    text = text.replace("\ta\t", "\tc\fd\t").replace("<s> a", "<s> c\fd").replace("\ta b", "\tc\fd b")
    model = read(tmp_path, text)
    assert model.report._replace(sha256="") == ("", True, 3, 0, 1, 1, 1, False, False)
    assert table_of(model)["b", "<s>"] == (-np.inf, -1)
    assert table_of(model)["<s>", "c\fd", "b"] == (np.float32(-0.1), 0)


def test_rounding_errors_above_probability_one_are_mended(tmp_path):
    assert table_of(read(tmp_path, SMALL.replace("-0.5\ta a", "5e-7\ta a")))["a", "a"][0] == 0


def test_an_order_may_be_empty(tmp_path):
    text = SMALL.replace("3=2", "3=0").replace("-0.1\t<s> a b\n-0.05\ta b </s>\n", "")
    assert [len(ngrams.words) for ngrams, _ in read(tmp_path, text).orders] == [5, 4, 0]
    without = text.replace("\\3-grams:\n", "")
    assert [len(ngrams.words) for ngrams, _ in read(tmp_path, without).orders] == [5, 4, 0]
    more = without.replace("ngram 3=0", "ngram 3=0\nngram 4=0")
    assert [len(ngrams.words) for ngrams, _ in read(tmp_path, more).orders] == [5, 4, 0, 0]


def test_a_section_that_has_ngrams_is_not_left_out(tmp_path):
    with pytest.raises(FormatError, match=r"line 20: found .*end.*, expected .3-grams:"):
        read(tmp_path, SMALL.replace("\\3-grams:\n-0.1\t<s> a b\n-0.05\ta b </s>\n", ""))


@pytest.mark.parametrize("seed", [*range(16), 119])  # 119: new bigrams move trigrams that give back-offs
def test_ngrams_whose_prefix_is_not_listed_are_read_as_if_it_had_weight_0(tmp_path, seed):
    rng, order = np.random.default_rng(seed), 3 + seed % 3
    text, words = random_arpa(rng, order=order, num_words=6, unknown=True)
    table = parse_arpa(text)
    prefixes = sorted({n[:-1] for n in table if len(n) > 2})
    for number in rng.choice(len(prefixes), 6, replace=False):
        del table[prefixes[number]]
    arpa = read(tmp_path, arpa_of(table, order))
    assert arpa.report.missing_prefixes == len(
        {n[:k] for n in table for k in range(2, len(n))} - table.keys()
    )
    vocabulary = Vocabulary([*arpa.vocabulary.ids])
    model = NGramModel(build_automaton(arpa.orders), vocabulary)
    ids = {word: vocabulary.id_of(word) for word in words} | {"<s>": BOS, "</s>": EOS, "<unk>": UNK}
    by_id = {tuple(map(ids.get, n)): weights for n, weights in table.items()}
    slow = SlowBackoff(
        len(vocabulary), {n: 10**p for n, (p, _) in by_id.items()}, {n: 10**b for n, (_, b) in by_id.items()}
    )
    for _ in range(10):
        tokens = [ids[word] for word in rng.choice([*words, "<unk>"], 8)] + [EOS]
        history = [BOS, *tokens]
        expected = [
            slow.probability(w, tuple(history[max(0, i + 2 - order) : i + 1])) for i, w in enumerate(tokens)
        ]
        found = score_sequences(model, model.initial_state(1), np.array([tokens]), np.array([len(tokens)]))[0]
        assert found == pytest.approx(np.log(expected), rel=1e-4)


def arpa_of(table, order):
    """ARPA file of {n-gram: (probability, back-off weight)}, in any order."""
    levels = [[n for n in table if len(n) == k] for k in range(1, order + 1)]
    lines = ["\\data\\", *(f"ngram {k}={len(level)}" for k, level in enumerate(levels, start=1))]
    for k, level in enumerate(levels, start=1):
        lines += ["", f"\\{k}-grams:"]
        lines += [
            "\t".join([str(table[n][0]), " ".join(n), *([str(table[n][1])] if k < order else [])])
            for n in level
        ]
    return "\n".join([*lines, "", "\\end\\", ""])


def test_many_unlisted_prefixes_are_read(tmp_path):
    """More than the reader has places for at first, over several blocks."""
    words = [f"w{i}" for i in range(60)]
    table = {("<s>",): (-99, 0), ("</s>",): (-1, 0), **{(word,): (-2.0, -0.5) for word in words}}
    table |= {(a, b, "</s>"): (-0.25, 0) for a in words for b in words}
    table["w1", "w2"] = (-0.125, -0.75)
    arpa = read(tmp_path, arpa_of(table, 3))
    assert arpa.report.missing_prefixes == 3599
    found = table_of(arpa)
    assert (found["w3", "w4"], found["w1", "w2"], len(found)) == (
        (-2.5, 0),
        (-0.125, -0.75),
        63 + 3600 + 3600,
    )


ERRORS = [
    # header
    ("ngram 1=5", "ngram 0=5", "line 2: found order 0, expected order 1"),
    ("ngram 2=4", "ngram 3=4", "line 3: found order 3, expected order 2"),
    ("ngram 2=4\n", "", "line 3: found order 3, expected order 2"),
    ("ngram 2=4", "ngram 2=-4", "line 3: found 'ngram 2=-4', expected a line such as"),
    ("ngram 2=4", "ngram 2=four", "line 3: found 'ngram 2=four', expected"),
    ("ngram 3=2", "ngram 3=1000000000000", "line 4: the header declares 1000000000000 n-grams of order 3"),
    ("ngram 1=5\nngram 2=4\nngram 3=2\n", "", "line 3: no line such as ngram 1=1000"),
    ("\\1-grams:", "\\2-grams:", "line 6: found '\\\\2-grams:', expected a line such as"),
    # wrong counts
    ("ngram 1=5", "ngram 1=4", "line 11: there are more than the 4 n-grams of order 1 that"),
    ("ngram 1=5", "ngram 1=2000000000", "line 13: the section ends after 5 of the 2000000000 n-grams"),
    ("ngram 2=4", "ngram 2=5", "line 19: the section ends after 4 of the 5 n-grams of order 2 that"),
    ("ngram 2=4", "ngram 2=3", "line 17: there are more than the 3 n-grams of order 2 that"),
    ("ngram 3=2", "ngram 3=1", "line 21: there are more than the 1 n-grams of order 3 that"),
    ("ngram 3=2\n", "", "line 18: found '\\\\3-grams:', expected \\end\\"),
    ("ngram 3=2", "ngram 3=2\nngram 4=1", "line 24: found '\\\\end\\\\', expected \\4-grams:"),
    # sections
    ("\\2-grams:", "\\3-grams:", "line 13: found '\\\\3-grams:', expected \\2-grams:"),
    ("\\2-grams:", "\\4-grams:", "line 13: found '\\\\4-grams:', expected \\2-grams:"),
    # lines
    ("-0.3\ta b", "-0.3\ta", "line 15: the word '-0.25' is not listed among the 1-grams"),
    (
        "-0.4\tb </s>",
        "-0.4\tb",
        "line 16: there are fewer than 2 words (a line here has a log-probability, 2",
    ),
    ("-0.4\tb </s>", "-0.4", "line 16: there are fewer than 2 words"),
    ("-1.5\t<unk>", "-1.5", "line 7: there is no word (a line here has a log-probability, a word and"),
    ("-0.4\tb </s>", "-0.4\tb a </s>", "line 16: found '</s>', expected a back-off weight"),
    ("-0.3\ta b\t-0.25", "-0.3\ta b\t-0.25\t1", "line 15: '1' is one field too many"),
    ("-0.6\ta\t-0.2", "-0.6\ta b\t-0.2", "line 10: found 'b', expected a back-off weight"),
    ("-0.3\ta b", "a b", "line 15: found 'a', expected a log-probability"),
    ("-0.3\ta b", "-0.3x\ta b", "line 15: found '-0.3x', expected a log-probability"),
    ("-0.3\ta b", "1_0\ta b", "line 15: found '1_0', expected a log-probability"),
    # numbers
    ("-0.3\ta b", "nan\ta b", "line 15: the log-probability is not a number: 'nan'"),
    ("-0.25", "-NaN", "line 15: the back-off weight is not a number: '-NaN'"),
    ("-0.25", "inf", "line 15: the back-off weight is infinite: 'inf'"),
    ("-0.25", "1e39", "line 15: the back-off weight is infinite: '1e39'"),
    ("-0.3\ta b", "inf\ta b", "line 15: the log-probability 'inf' is above 0"),
    ("-0.3\ta b", "0.3\ta b", "line 15: the log-probability '0.3' is above 0"),
    ("-0.3\ta b", "0.000002\ta b", "line 15: the log-probability '0.000002' is above 0"),
    ("-0.6\ta", "1e99\ta", "line 10: the log-probability '1e99' is above 0"),
    # n-grams
    ("-0.3\ta b", "-0.3\ta c", "line 15: the word 'c' is not listed among the 1-grams"),
    ("-0.8\tb", "-0.8\ta", "line 11: this 1-gram is listed already, in line 10"),
    ("-0.5\ta a", "-0.5\t<s> a", "line 17: this 2-gram is listed already, in line 14"),
    ("-0.5\ta a", "-0.5\ta b", "line 17: this 2-gram is listed already, in line 15"),
    ("-0.1\t<s> a b", "-0.1\ta b </s>", "line 21: this 3-gram is listed already, in line 20"),
    ("-0.8\tb", "-0.8\t<UNK>", "line 11: '<UNK>' is '<unk>', which is listed already, in line 7"),
    ("\t<s>\t", "\t<S>\t", "'<s>' is not listed among the 1-grams"),
    ("-0.7\t</s>", "-0.7\tc", "'</s>' is not listed among the 1-grams"),
    ("-0.8\tb", "-0.8\tb\0", "line 11: the word has a NUL byte"),
]


@pytest.mark.parametrize(("old", "new", "said"), ERRORS)
def test_invalid_line_is_refused_with_its_number(tmp_path, old, new, said):
    assert old in SMALL
    path = written(tmp_path, SMALL.replace(old, new, 1))
    with pytest.raises(FormatError) as caught:
        read_arpa(path)
    assert str(caught.value).startswith(f"{path}: {said}")


def test_a_word_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    with pytest.raises(FormatError, match=r"line 11: the word b'b\\xff' is not UTF-8 \(byte 0xff\)"):
        read(tmp_path, SMALL.encode().replace(b"-0.8\tb", b"-0.8\tb\xff"))


@pytest.mark.parametrize("lines", range(1, 23))
@pytest.mark.parametrize("rest", ["", "-0.", "\\"])
def test_a_file_that_is_cut_off_is_refused_wherever_it_ends(tmp_path, lines, rest):
    text = "".join(SMALL.splitlines(keepends=True)[:lines]) + rest
    where = "in the middle of this line" if rest else "here"
    with pytest.raises(FormatError, match=rf"line {lines + 1}: the file ends {where}, .* \(it was cut off"):
        read(tmp_path, text)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_file_that_is_cut_off_is_refused(tmp_path, compress):
    text, _ = random_arpa(np.random.default_rng(1), order=3, num_words=300)
    with pytest.raises(FormatError, match=r"is damaged|the file ends"):
        read(tmp_path, compress(text.encode())[:-100])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty (0 bytes)"),
        (b"\n" * 5, "is no ARPA file (an ARPA file begins with"),
        (
            b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(3_000_000),
            "binary file of KenLM",
        ),
        (
            b"mmap lm http://kheafield.com/code format version 5\n\0" + b"\n" * 3_000_000,
            "binary file of KenLM",
        ),
        (b"SRILM_BINARY_NGRAM_002\n", "binary file of SRILM"),
        (b"<!DOCTYPE html>\n<html>\n", "looks like a web page"),
        (b"\n<html>", "looks like a web page"),
        (b"iARPA\n\n\\data\\ \n", "IRSTLM's own iARPA"),
        (SMALL.encode("utf-16"), "is text in UTF-16 (convert it first: iconv -f utf-16 "),
        (SMALL.encode("utf-16-le"), "is text in UTF-16 (convert it first: iconv -f utf-16le "),
        (b"PK\x03\x04" + bytes(100), "is a zip archive (unpack it first: unzip -p "),
        (b"\x11\0\0\0Darpa Trigram LM\0", "it is a binary file of CMU Sphinx; sphinx_lm_convert"),
        (b"Trie Language Model\3", "it is a binary file of CMU Sphinx; sphinx_lm_convert"),
        (b"\xd6\xfd\xb2\x7e\6\0\0\0vector\n", "it is a graph of Kaldi, such as G.fst; give the ARPA file"),
        (b"\0B<ConstArpaLm> ", "it is a graph of Kaldi, such as G.fst; give the ARPA file"),
        (b"the cat sat\non the mat\n", "is no ARPA file (an ARPA file begins with the line \\data\\"),
        (bytes(range(256)) * 9000, "is no ARPA file"),
    ],
)
def test_other_format_is_named_in_the_error(tmp_path, content, said):
    with pytest.raises(FormatError) as caught:
        read(tmp_path, content)
    assert said in str(caught.value)


def test_words_may_be_long(tmp_path):
    words = ["a" * 700_000, "b" * 3_000_000]
    text = SMALL.replace("\ta\t", f"\t{words[0]}\t", 1).replace("\tb\t", f"\t{words[1]}\t", 1)
    text = text[: text.index("ngram 2")] + text[text.index("\n\\1-") : text.index("\\2-")] + "\\end\\\n"
    assert read(tmp_path, text).vocabulary.tokens[3:] == tuple(words)


def test_a_line_without_end_is_refused(tmp_path):
    with pytest.raises(FormatError, match="line 10: the line is longer than 1048576 bytes"):
        read(tmp_path, SMALL.replace("\ta\t", "\t" + "a" * 10_000_000 + "\t"))


def test_too_high_an_order_is_refused(tmp_path):
    head = "\\data\\\n" + "".join(f"ngram {k}=1\n" for k in range(1, 30))
    with pytest.raises(FormatError, match="line 22: the file has n-grams of order 21, orders up to 20 are"):
        read(tmp_path, head)


def test_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(FormatError, match="there is no such file"):
        read_arpa(tmp_path / "absent.arpa")
    with pytest.raises(FormatError, match="cannot be read"):
        read_arpa(tmp_path)


def test_the_first_of_two_errors_is_told_even_if_it_needs_a_closer_look(tmp_path):
    with pytest.raises(FormatError, match="line 14: the back-off weight is not a number"):
        read(tmp_path, SMALL.replace("-0.15", "nan").replace("a b\t", "a c\t"))


def test_a_file_that_cannot_be_read_to_begin_with_is_refused_by_name():
    with pytest.raises(FormatError, match="/proc/self/mem: cannot be read: Input/output error"):
        read_arpa(Path("/proc/self/mem"))


@pytest.mark.parametrize("value", ["0", "nan", "x"])
def test_log_zero_that_is_not_negative_is_refused(tmp_path, value):
    """Otherwise a missing back-off weight would count as zero probability."""
    with pytest.raises(
        FormatError, match=rf"log-zero is '{value}' in its comment, it must be a number below 0"
    ):
        read(tmp_path, f"# gramophone: log-zero={value}\n{SMALL}")
