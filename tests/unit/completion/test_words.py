"""Where words begin and end."""

import pytest

from models.completion.text import MAX_WORD_RUN, WordState, is_word_character, last_word_start, scan_words

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
    joined = scan_words(IN_WORD, "\u2019".encode()).word_state
    assert scan_words(joined, b"s") == ((), IN_WORD)
    assert scan_words(joined, b".") == ((0,), None)


def test_no_word_begins_with_another_character():
    assert scan_words(WordState(), b", a") == ((), None)


def test_a_character_whose_bytes_are_not_complete_leaves_all_open():
    first = scan_words(IN_WORD, b"\xc3")
    assert first == ((), WordState(begun=True, pending=b"\xc3"))
    assert scan_words(first.word_state, b"\xa9") == ((), IN_WORD)
    assert scan_words(first.word_state, b"a") == ((0,), None), "é was not to be"
    assert scan_words(IN_WORD, b"\xa9") == ((0,), None)
