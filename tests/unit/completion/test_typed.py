"""A text in two: what is tokenised as it stands, and the beginning of a word."""

import time

import pytest

from models.completion.prefix import split_prefix
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import Vocabulary
from tests.completion_pieces import learnt_pieces

WORDS = Vocabulary(["the", "cat"])
PATTERN = r"\w+|[^\w\s]"


@pytest.fixture(scope="module")
def pieces():
    return learnt_pieces("unigram")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", 0, b" ", False)),
        ("th", ("", "th", 0, b" th", False)),
        ("the cat", ("the", "cat", 4, b" cat", False)),
        ("the cat ", ("the cat", "", 8, b" ", False)),
        ("the cat,", ("the cat,", "", 8, b" ", True)),
        ("the  cat", ("the", "cat", 5, b" cat", False)),
        ("the\ncat", ("the", "cat", 4, b" cat", False)),
        ("   ", ("", "", 3, b" ", False)),
        ("  ca", ("", "ca", 2, b" ca", False)),
        ("(", ("(", "", 1, b"", False)),
        ("(ca", ("(", "ca", 1, b"ca", False)),
        ("the 'ca", ("the '", "ca", 5, b"ca", False)),
        ("don'", ("", "don'", 0, b" don'", False)),
        ("hi 😀", ("hi 😀", "", 4, b" ", True)),
        ("😀 ca", ("😀", "ca", 2, b" ca", False)),
        ("cafe\u0301", ("", "cafe\u0301", 0, " cafe\u0301".encode(), False)),
        ("זה חת", ("זה", "חת", 3, " חת".encode(), False)),
    ],
)
def test_pieces_carry_the_space_before_a_word(pieces, text, expected):
    assert split_prefix(pieces, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", 0, b"", False)),
        ("the ca", ("the ", "ca", 4, b"ca", False)),
        ("the ", ("the ", "", 4, b"", False)),
        ("the,", ("the,", "", 4, b" ", True)),
        ("the (", ("the (", "", 5, b"", False)),
    ],
)
def test_characters_carry_no_space(text, expected):
    assert split_prefix(CharacterTokenizer(Vocabulary("the ca")), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", 0, b" ", False)),
        ("the ca", ("the", "ca", 4, b" ca", False)),
        ("the ca ", ("the ca", "", 7, b" ", False)),
        ("the ca,", ("the", "ca,", 4, b" ca,", False)),
        ("  ", ("", "", 2, b" ", False)),
    ],
)
def test_words_between_white_space(text, expected):
    assert split_prefix(WordTokenizer(WORDS), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the ca", ("the", "ca", 4, b" ca", False)),
        ("the,", ("the,", "", 4, b" ", True)),
        ("the,ca", ("the,", "ca", 4, b" ca", False)),
        ("İ İST", ("İ", "İST", 2, " i\u0307st".encode(), False)),
    ],
)
def test_words_of_a_pattern(text, expected):
    """A match that a letter more would not belong to is no beginning of a word."""
    pattern = r"[\w\u0307]+|[^\w\s]"
    assert split_prefix(WordTokenizer(WORDS, pattern=pattern, lowercase=True), text) == expected


@pytest.mark.parametrize(
    ("text", "brings"),
    [
        ("end.", True),
        ("a)", True),
        ("a (", False),
        ("say \u201c", False),
        ("say\u201d", True),
        ('say "', False),
        ('say"', True),
        ('("', False),
        ("and/", False),
        ("x -", False),
        ("word\u2014", False),
        ("word \u2014", True),
        ("$", False),
        ("好。", False),
        ("end.\t", False),
    ],
)
def test_completions_bring_a_space_where_one_is_missing(pieces, text, brings):
    assert split_prefix(pieces, text).space is brings


def test_what_cannot_be_encoded_is_spelled_by_no_token():
    assert split_prefix(WordTokenizer(WORDS), "a\ud800").prefix == "a\ud800"


@pytest.mark.parametrize("text", ["word " * 20_000, "x" * 100_000, "x, " * 33_333 + "y", " " * 100_000])
def test_long_texts_are_cut_fast(pieces, text):
    for tokenizer in pieces, WordTokenizer(WORDS, pattern=PATTERN, lowercase=True), WordTokenizer(WORDS):
        begun = time.thread_time()
        split_prefix(tokenizer, text)
        assert time.thread_time() - begun < 0.5


def test_what_precedes_a_part_of_a_run_is_its_context(pieces):
    typed = split_prefix(pieces, "漢" * 100)
    assert (len(typed.context), len(typed.prefix), typed.start) == (36, 64, 36)
    assert typed.spelled == typed.prefix.encode()


def test_a_tokenizer_that_normalises_is_heeded():
    assert split_prefix(learnt_pieces("unigram", normalization="nmt_nfkc_cf"), "ﬁT").spelled == b" fit"
