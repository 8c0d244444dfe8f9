"""Word boundaries, and tokens sorted by spelling."""

import time

import pytest

from models.completion.token_trie import TokenTrie, WordState, fold_case, scan_words
from models.language_model import EOS
from models.words import MAX_WORD_RUN, is_word_character, last_word_start
from tests.reference.decoding import Pieces

IN_WORD = WordState(begun=True)


@pytest.mark.parametrize("character", ["a", "Z", "é", "ß", "漢", "ש", "7", "٣", "_", "\u0301", "\u093f"])
def test_letters_digits_marks_and_underscore_are_of_words(character):
    assert is_word_character(character)


@pytest.mark.parametrize(
    "character", [" ", ".", "'", "\u2019", "-", "😀", "\u200f", "\x00", "(", "€", "\ufffd"]
)
def test_other_characters_are_not(character):
    assert not is_word_character(character)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", ""),
        ("hel", "hel"),
        ("say hel", "hel"),
        ("say ", ""),
        ("say,", ""),
        ("don't", "don't"),
        ("don\u2019t", "don\u2019t"),
        ("well-known", "well-known"),
        ("don'", "don'"),
        ("a--b", "b"),
        ("'tis", "tis"),
        ("x '", ""),
        ("naïve cafe\u0301", "cafe\u0301"),
        ("שלום עול", "עול"),
        ("hi 😀", ""),
        ("😀hi", "hi"),
        ("漢字", "漢字"),
        ("a\x00b", "b"),
        ("snake_case", "snake_case"),
    ],
)
def test_the_last_word_of_a_text(text, word):
    assert text[last_word_start(text) :] == word


def test_a_run_without_end_is_taken_in_part():
    assert last_word_start("漢" * 1000) == 1000 - MAX_WORD_RUN
    assert last_word_start("x-" * 1000 + "x") == 2001 - MAX_WORD_RUN + 1, "not from a joiner on"


@pytest.mark.parametrize(
    ("spelled", "ends", "place"),
    [
        ("ab", (), IN_WORD),
        (",", (0,), None),
        ("s,", (1,), None),
        (" ", (0,), WordState()),
        (" b", (0,), IN_WORD),
        ("a b c", (1, 3), IN_WORD),
        ("'", (), WordState(begun=True, pending=b"'")),
        ("'s", (), IN_WORD),
        ("' ", (0,), None),
        ("s'' ", (1,), None),
        ("  a", (0,), None),
        (", b", (0,), None),
    ],
)
def test_words_end_where_another_character_comes(spelled, ends, place):
    assert scan_words(IN_WORD, spelled.encode()) == (ends, place)


def test_a_joiner_belongs_to_a_word_once_a_letter_follows():
    joined = scan_words(IN_WORD, "\u2019".encode())[1]
    assert scan_words(joined, b"s") == ((), IN_WORD)
    assert scan_words(joined, b".") == ((0,), None)


def test_no_word_begins_with_another_character():
    assert scan_words(WordState(), b", a") == ((), None)


def test_a_character_whose_bytes_are_not_complete_leaves_all_open():
    first = scan_words(IN_WORD, b"\xc3")
    assert first == ((), WordState(begun=True, pending=b"\xc3"))
    assert scan_words(first[1], b"\xa9") == ((), IN_WORD)
    assert scan_words(first[1], b"a") == ((0,), None), "é was not to be"
    assert scan_words(IN_WORD, b"\xa9") == ((0,), None)


PIECES = ["a", "b", "ab", " a", " ", "s,", ".", "'", "'s", " a b", "-.", "Ab", "é"]
TOKENS = TokenTrie(Pieces([*(piece.encode() for piece in PIECES), b"\xc3", b"\xa9", b"a", b"\xff", b""]))


def spellings(ids):
    return sorted(TOKENS.token_bytes[i] if i != EOS else b"</s>" for i in ids.tolist())


def test_tokens_that_begin_with_some_bytes():
    assert spellings(TOKENS.exact.with_prefix(b"a")) == [b"a", b"a", b"ab"]
    assert spellings(TOKENS.exact.with_prefix(b" a")) == [b" a", b" a b"]
    assert spellings(TOKENS.exact.with_prefix(b"\xff")) == [b"\xff"]
    assert not len(TOKENS.exact.with_prefix(b"x"))


def test_tokens_that_are_a_beginning_of_some_bytes():
    assert spellings(TOKENS.exact.proper_prefixes_of(b"abc")) == [b"a", b"a", b"ab"]
    assert spellings(TOKENS.exact.proper_prefixes_of(b" a")) == [b" "]
    assert not len(TOKENS.exact.proper_prefixes_of(b"a"))


def test_case_is_folded():
    assert spellings(TOKENS.folded.with_prefix(b"ab")) == [b"Ab", b"ab"]
    assert fold_case("Straße".encode()) == b"strasse"
    assert fold_case(b"\xc3") == b"\xc3"


@pytest.mark.parametrize(
    ("place", "kind", "expected"),
    [
        (WordState(begun=True), "ending", [b" ", b" a", b" a b", b"-.", b".", b"</s>", b"\xa9", b"\xff"]),
        (
            WordState(begun=True),
            "inside",
            [b"'", b"'s", b"Ab", b"a", b"a", b"ab", b"b", b"\xc3", b"\xc3\xa9"],
        ),
        (WordState(begun=True), "crossing", [b"s,"]),
        (WordState(begun=True), "onward", [b" ", b" a"]),
        (WordState(begun=True), "leaping", [b" a b"]),
        (WordState(), "ending", []),
        (WordState(), "inside", [b"Ab", b"a", b"a", b"ab", b"b", b"\xc3", b"\xc3\xa9"]),
        (
            WordState(begun=True, pending=b"'"),
            "inside",
            [b"Ab", b"a", b"a", b"ab", b"b", b"\xc3", b"\xc3\xa9"],
        ),
        (
            WordState(begun=True, pending=b"'"),
            "ending",
            [b" ", b" a", b" a b", b"'", b"'s", b"-.", b".", b"</s>", b"\xa9", b"\xff"],
        ),
        (WordState(begun=True, pending=b"\xc3"), "crossing", [b"\xa9"]),
        (WordState(begun=False, pending=b"\xc3"), "ending", []),
    ],
)
def test_transitions_by_word_state(place, kind, expected):
    assert spellings(getattr(TOKENS.transitions(place), kind)) == expected


def test_transitions_along_a_prefix_are_inside_or_crossing():
    moves = TOKENS.transitions_along(WordState(), b" a", TOKENS.exact)
    assert spellings(moves.inside) == [b" ", b" a"]
    assert spellings(moves.crossing) == [b" a b"]


def test_fifty_thousand_pieces_are_sorted_in_no_time():
    pieces = Pieces([f"{' ' * (n % 2)}piece{n}".encode() for n in range(50_000)])
    begun = time.thread_time()
    TokenTrie(pieces)
    assert time.thread_time() - begun < 2  # 0.1 s on an idle machine
