"""What a word is: forms, cases, boundaries, and what is no word."""

import itertools

import pytest

from models.completion.token_trie import WordState, scan_words
from models.words import (
    IGNORED,
    dictionary_key,
    find_no_words,
    is_alphabetic,
    is_identifier,
    last_word_start,
    match_case,
    plain_form,
    surrounding_words,
    word_forms,
    word_pattern,
)

NO_WORDS = r"""
https://example.org/lenght/recieve.html?q=lenght#teh ftp://host/lenght www.exmaple.com/teh mailto:jonh@exmaple.com
jonh@exmaple.com jonh.smiht+teh@mail.exmaple.org @jonh a/b/c.py src/lenght/teh docs/lenght.md /usr/lenght ./lenght
../teh ~/lenght C:\lenght \\server\lenght lenght\teh snake_lenght __lenght__ _teh a.b.lenght lenght.teh --lenght --teh
--no-lenght --teh=lenght lenght() teh::lenght teh->lenght $LENGHT &nbsp 5kg 20°C 12Mbit
"""


@pytest.mark.parametrize("text", NO_WORDS.split())
@pytest.mark.parametrize("around", ["{}", "see {} for", "({}),", "in {}."])
def test_an_address_or_name_of_a_program_is_no_word(text, around):
    line = around.format(text)
    start = line.index(text)
    letters = {at for at in range(start, start + len(text)) if line[at].isalpha()}
    assert letters <= {at for span in find_no_words(line) for at in range(*span)}


@pytest.mark.parametrize("text", ["5 kg", "3 GHz", "20 °C", "100 km/h", "12 MB of", "10 ms"])
def test_a_unit_after_a_number_is_no_word(text):
    assert next(find_no_words(text))[1] >= len(text.removesuffix(" of"))


ORDINARY = "and/or lenght/width (teh)/his wait...what well-known don't e\u0301t\u00e9 R&D teh, teh; teh: teh! on--teh"


@pytest.mark.parametrize("text", [*ORDINARY.split(), "2 teh", "12 items", "either / teh", "a - teh"])
def test_ordinary_text_is_words(text):
    assert list(find_no_words(text)) == []


def test_a_capital_within_a_word_names_something():
    assert list(map(is_identifier, ["camelCase", "KeyError", "iPhone"])) == [True] * 3
    assert not any(map(is_identifier, ["Word", "WORD", "word", "Well-Known", "URLs"]))


@pytest.mark.parametrize(
    ("typed", "forms"),
    [
        ("word", {"word"}),
        ("Word", {"Word", "word"}),
        ("WORD", {"WORD", "Word", "word"}),
        ("(Word,", {"(Word,", "(word,"}),
        ("Don\u2019t", {"Don\u2019t", "Don't", "don't"}),
        ("o\ufb03ce", {"o\ufb03ce", "office"}),
        ("cafe\u0301", {"cafe\u0301", "caf\u00e9"}),
        ("Wo\u00adrd", {"Wo\u00adrd", "Word", "word"}),
    ],
)
def test_forms_in_which_a_word_may_be_known(typed, forms):
    assert set(word_forms(typed)) == forms


@pytest.mark.parametrize("sign", ["\u00ad", "\u200c", "\u200d", "\u2060", "\ufeff", "\u200e"])
def test_characters_without_a_width_end_no_word_and_change_none(sign):
    typed = f"do{sign}n{sign}'{sign}t"
    assert word_pattern().findall(f"{typed}{sign} x") == [typed, "x"]
    assert (plain_form(typed), dictionary_key(typed.title())) == ("don't", "don't")


@pytest.mark.parametrize(
    ("typed", "word", "told"),
    [
        ("Slcies", "slices", "Slices"),
        ("GRAMAMR", "grammar", "GRAMMAR"),
        ("(Slcies,", "(slices,", "(Slices,"),
        ("Coudln\u2019t", "couldn't", "Couldn\u2019t"),
        ("slcies", "slices", "slices"),
        ("I", "he", "He"),
    ],
)
def test_a_correction_has_case_and_apostrophe_of_what_was_typed(typed, word, told):
    assert match_case(typed, word) == told


@pytest.mark.parametrize("whole", ["R&D", "C++", "node.js", "aujourd'hui", "AT&T"])
@pytest.mark.parametrize("around", ["{}", "in {}, or", "({})"])
def test_parts_of_a_listed_word_belong_to_it(whole, around):
    line = around.format(whole)
    for part in word_pattern().finditer(line):
        if part.group() in whole:
            assert whole in surrounding_words(line, *part.span())


def test_encoded_data_is_no_word():
    data = "iVBORw0K/+GgoAAA" * 200
    assert list(find_no_words(f"see {data} teh")) == [(4, 4 + len(data))]


@pytest.mark.parametrize("pair", list(itertools.product("a.@/\\-_:5 B(", repeat=2)))
def test_hostile_runs_take_as_many_steps_as_they_have_characters(pair):
    """A search that is not linear would take minutes and end at the test's time limit."""
    assert sum(end - start for start, end in find_no_words("".join(pair) * 20_000)) <= 40_000


def test_marks_that_hostile_words_alternate_are_divided_in_one_way():
    """A pattern that could divide them in several ways would not end."""
    assert not is_alphabetic("a" + "\u0301\U0001e94a" * 100 + "!")
    assert is_alphabetic("a" + "\u0301\U0001e94a" * 100)


@pytest.mark.parametrize("sign", IGNORED)
def test_a_word_that_is_typed_goes_on_at_characters_without_a_width(sign):
    assert last_word_start(f"the co{sign}op") == 4
    assert scan_words(WordState(begun=True), f"{sign}op".encode()) == ((), WordState(begun=True))
