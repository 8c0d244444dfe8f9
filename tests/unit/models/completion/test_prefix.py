"""The split of a text into tokenized prefix and unfinished word; near-miss prefixes."""

import time

import pytest

from models.completion.prefix import (
    MAX_TAKEN_BYTES,
    join_words,
    needs_space,
    split_prefix,
    take_back,
)
from models.completion.token_trie import TokenTrie
from models.language_model import Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer
from tests.support.text_models import learnt_pieces

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
        ("the (", ("the (", "", 5, b" ", False)),
        ("the '", ("the '", "", 5, b" ", False)),
        ("the,ca", ("the,", "ca", 4, b" ca", False)),
        ("İ İST", ("İ", "İST", 2, " i\u0307st".encode(), False)),
    ],
)
def test_words_of_a_pattern(text, expected):
    """A match that another letter would not extend is not the start of a word."""
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
        ("see `", False),
        ("see ``", False),
        ("`len`", True),
    ],
)
def test_completions_bring_a_space_where_one_is_missing(pieces, text, brings):
    for tokenizer in (pieces, WordTokenizer(WORDS, pattern=PATTERN)):
        assert split_prefix(tokenizer, text).space is brings


@pytest.mark.parametrize("text", ["it doesn'", "it doesn\u2019", "l'", "well-", "2-"])
def test_a_sign_that_joins_words_brings_no_space(text):
    assert not split_prefix(WordTokenizer(WORDS, pattern=PATTERN), text).space


@pytest.mark.parametrize(
    ("text", "following", "expected"),
    [
        ("value (", ")", False),
        ("value)", ")", False),
        ("value)", ",", False),
        ("value)", ".", False),
        ("value)", ":", False),
        ("why)", "?", False),
        ("50", "%", False),
        ("list", ",", False),
        ("list ", ",", False),
        ("\u201cyes.", "\u201d", False),
        ("\u00aboui", "\u00bb", False),
        ("\u597d)", "\u3002", False),
        ('a "word', '"', False),
        ("a `word", "`", False),
        ("doesn", "'", False),
        ("value)", "word", True),
        ("value)", "(", True),
        ("value)", "=", True),
        ("value)", "-", True),
        ("R)", "&", True),
        ('say "a" and', '"', True),
        ("end.", "\u201c", True),
        ("end.", "\u00bf", True),
        ("see", "@", True),
        ("C+", "+", False),
        ("a =", "=", False),
        ("a =", "-", True),
        ("a", "a", True),
        ("", ",", False),
    ],
)
def test_a_space_comes_before_words_and_not_before_punctuation(text, following, expected):
    assert needs_space(text, following) is expected


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("t exist .", "t exist."),
        ("it doesn ' t", "it doesn't"),
        ("it doesn \u2019 t", "it doesn\u2019t"),
        ("list , and", "list, and"),
        ("f ( x )", "f (x)"),
        ('a " word " now', 'a "word" now'),
        ("b - c", "b-c"),
        ("R & D", "R & D"),
        ("one two three", "one two three"),
        ("word", "word"),
    ],
)
def test_phrases_have_spaces_only_where_they_belong(phrase, expected):
    assert join_words(phrase) == expected


def test_lone_surrogate_stays_in_the_prefix():
    assert split_prefix(WordTokenizer(WORDS), "a\ud800").prefix == "a\ud800"


@pytest.mark.parametrize("text", ["word " * 20_000, "x" * 100_000, "x, " * 33_333 + "y", " " * 100_000])
def test_long_texts_are_cut_fast(pieces, text):
    for tokenizer in pieces, WordTokenizer(WORDS, pattern=PATTERN, lowercase=True), WordTokenizer(WORDS):
        begun = time.thread_time()
        split_prefix(tokenizer, text)
        assert time.thread_time() - begun < 0.5


def test_long_run_without_spaces_is_split_into_context_and_prefix(pieces):
    typed = split_prefix(pieces, "漢" * 100)
    assert (len(typed.context), len(typed.prefix), typed.start) == (36, 64, 36)
    assert typed.spelled == typed.prefix.encode()


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (
            WordTokenizer(WORDS, normalise="nfc"),
            "e\u0301 cafe\u0301",
            ("e\u0301", "café", 3, " café".encode(), False),
        ),
        (
            WordTokenizer(WORDS, pattern=PATTERN, normalise="nfc"),
            "e\u0301 cafe\u0301",
            ("e\u0301", "café", 3, " café".encode(), False),
        ),
        (
            WordTokenizer(WORDS, pattern=PATTERN, normalise="nfkc"),
            "\ufb01, \ufb01",
            ("\ufb01,", "fi", 3, b" fi", False),
        ),
        (
            WordTokenizer(WORDS, normalise="casefold"),
            "Stra\u00dfe E\u0301T",
            ("Stra\u00dfe", "ÉT", 7, " ét".encode(), False),
        ),
        (
            WordTokenizer(WORDS, normalise="nfkc"),
            "a\u00a8b",
            ("", "a \u0308b", 0, " a \u0308b".encode(), False),
        ),
        (
            CharacterTokenizer(WORDS, normalise="nfc"),
            "le cafe\u0301",
            ("le ", "café", 3, "café".encode(), False),
        ),
        (
            CharacterTokenizer(WORDS, normalise="casefold"),
            "le CAFE\u0301",
            ("le ", "CAFÉ", 3, "café".encode(), False),
        ),
    ],
)
def test_the_beginning_of_a_word_is_composed(tokenizer, text, expected):
    """The start is a position in the text as given."""
    assert split_prefix(tokenizer, text) == expected


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_of_a_beginning_are_composed(kind):
    pieces = learnt_pieces(kind, normalise="nfc")
    assert split_prefix(pieces, "the cafe\u0301") == ("the", "café", 4, " café".encode(), False)
    assert take_back(pieces, TokenTrie(pieces), "the cafe\u0301") == take_back(
        pieces, TokenTrie(pieces), "the café"
    )


def test_a_tokenizer_that_normalises_is_heeded():
    assert split_prefix(learnt_pieces("unigram", normalization="nmt_nfkc_cf"), "ﬁT").spelled == b" fit"


@pytest.mark.parametrize(
    ("text", "kept", "taken"),
    [
        ("the ca", "the", b" ca"),
        ("the cat", "the", b" cat"),
        ("the cat ", "the cat", b" "),
        ("the", "", b" the"),
        ("the dog", "the dog", b""),  # no word begins so
        ("the 'c", "the 'c", b""),  # a quotation mark belongs to the word, unless there is a pattern
    ],
)
def test_a_word_that_may_go_on_is_taken_back(text, kept, taken):
    words = WordTokenizer(WORDS)
    assert take_back(words, TokenTrie(words), text) == (words.encode(kept), taken)


@pytest.mark.parametrize(
    "text", ["the ca", "the cat", "the cat ", "t", "naïve", "the cat:", "x" * 99, "漢字"]
)
def test_pieces_are_taken_back_to_the_last_space(pieces, text):
    kept, taken = take_back(pieces, TokenTrie(pieces), text)
    spelled = b"".join(pieces.token_bytes[token] for token in kept) + taken
    assert spelled == f" {text}".encode()
    assert 0 < len(taken) <= MAX_TAKEN_BYTES
    assert taken.startswith(b" ") or len(taken) > MAX_TAKEN_BYTES - 8
    assert taken.count(b" ") <= 1


def test_an_unknown_character_is_not_taken_back():
    characters = CharacterTokenizer(Vocabulary("ab"))
    ids, taken = take_back(characters, TokenTrie(characters), "aéb")
    assert (len(ids), taken) == (2, b"b")
