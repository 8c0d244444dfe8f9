"""Numbers in words: reading what was written, several languages, languages and packages that are missing."""

import sys

import pytest

from models.errors import InputError, UnsupportedError
from models.reranking.forms import Forms
from models.reranking.numbers import LANGUAGES, MAX_NUMBER, Number, NumberWords, number_words

READ_BELOW = {"en": 10_000, "de": 10_000, "fr": 10_000, "es": 10_000, "nl": 10_000, "it": 1000, "pt": 1000}
READ_BELOW["ru"] = 1000
"""Numbers below these are always read; greater ones have conjunctions and accents that are not read."""

VALUES = [*range(125), *range(126, 1000, 13), *range(1000, 1130, 3), *range(1200, 10_000, 173), 9999]


@pytest.mark.parametrize("language", READ_BELOW)
def test_a_written_number_is_read_or_unknown_and_never_another(language):
    numbers = number_words(language)
    for value in VALUES:
        for words in numbers.written(Number(value, "cardinal")):
            read = numbers.read(numbers.plain(words))
            assert read is None or read.value == value, words
            assert read is not None or value >= READ_BELOW[language], words


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "nl"])
@pytest.mark.parametrize(
    "value", [10**6, 2 * 10**6, 10**6 + 1, 987_654_321, 10**9, 3 * 10**12 + 7, 10**15 - 1]
)
def test_a_long_written_number_is_never_read_as_another(language, value):
    numbers = number_words(language)
    for words in numbers.written(Number(value, "cardinal")):
        read = numbers.read(numbers.plain(words))
        assert read is None or read.value == value
        assert read is not None or language != "en"


def test_english_ordinals_are_read_with_their_kind():
    numbers = number_words("en")
    for value in [*range(1, 131), 200, 999, 1000, 1001, 1023, 5000, 21_003]:
        for words in numbers.written(Number(value, "ordinal")):
            read = numbers.read(numbers.plain(words))
            # "one thousandth" has no word of its own
            assert read in {Number(value, "ordinal"), None}, words
            assert read is not None or value % 1000 == 0


def test_english_years_are_read_in_pairs():
    numbers = number_words("en")
    for value in range(1100, 2100):
        words = numbers.written(Number(value, "year"))
        assert {numbers.read(numbers.plain(one)) for one in words} == {Number(value, "year")}
    assert numbers.written(Number(1986, "year")) == ["nineteen eighty six"]
    assert numbers.written(Number(1905, "year")) == ["nineteen oh five"]


def test_an_english_number_has_forms_without_and_with_a_conjunction_and_article():
    assert number_words("en").written(Number(101, "cardinal")) == [
        "one hundred one",
        "one hundred and one",
        "a hundred one",
        "a hundred and one",
    ]
    assert number_words("en").written(Number(21, "cardinal")) == ["twenty one"]
    assert number_words("en").written(Number(1, "cardinal")) == ["one"]


def test_other_languages_have_one_form_and_keep_their_conjunctions():
    assert number_words("de").written(Number(121, "cardinal")) == ["einhunderteinundzwanzig"]
    assert number_words("es").written(Number(31, "cardinal")) == ["treinta y uno"]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("One Thousand, nine hundred and eighty-six", 1986),
        ("nineteen  eighty-six", 1986),
        ("a hundred", 100),
        ("twelve million one", 12_000_001),
        ("nine hundred ninety nine trillion", 999 * 10**12),
    ],
)
def test_hyphens_commas_case_and_conjunctions_do_not_count(words, value):
    numbers = number_words("en")
    assert numbers.read(numbers.plain(words)).value == value


@pytest.mark.parametrize(
    "words",
    [
        "",
        "a",
        "and",
        "cat",
        "hundred",
        "thousand",
        "one two",
        "five hundred hundred",
        "twenty ten one",
        "one thousand million",
        "one million two million",
        "million one thousand thousand",
        "one first",
        "oh",
    ],
)
def test_other_words_are_no_number(words):
    assert number_words("en").read(words) is None


def test_numbers_out_of_range_are_not_written():
    numbers = number_words("en")
    assert numbers.written(Number(MAX_NUMBER, "cardinal")) == []
    assert numbers.written(Number(-1, "cardinal")) == []
    assert numbers.written(Number(MAX_NUMBER - 1, "cardinal"))[0].startswith(
        "nine hundred ninety nine trillion"
    )


def test_digits_are_written_one_by_one():
    assert number_words("en").digits("007") == "zero zero seven"
    assert number_words("de").digits("12") == "eins zwei"


def test_the_word_before_decimals_and_ordinals_in_digits_are_of_the_language():
    assert (number_words("en").point, number_words("de").point) == ("point", "komma")
    assert number_words("en").ordinal_digits(22) == "22nd"
    assert number_words("de").ordinal_digits(3) == "3."


SAMPLE = [
    *range(30),
    99,
    100,
    101,
    999,
    1000,
    1001,
    1999,
    2024,
    123_456,
    *(10**power for power in range(4, 15)),
]
SAMPLE += [
    *(10**power + 5 for power in range(4, 15)),
    349_194_357_261_097,
    881_693,
    2_465_023,
    MAX_NUMBER - 1,
]


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_language_writes_and_reads_numbers_and_their_forms_without_a_fault(language):
    numbers, forms = number_words(language), Forms(language, lambda _: True)
    for value in SAMPLE:
        (words, *_) = numbers.written(Number(value, "cardinal"))
        read = numbers.read(numbers.plain(words))
        assert read is None or read.value == value, words
        for kind in ("ordinal", "year"):
            numbers.written(Number(value, kind))
        for text in (str(value), f"{value:,}", f"{value}.5", f"{value}%", f"{value}st", words):
            assert all(one.written for one in forms.propose(text.split()) if one is not None)


@pytest.mark.parametrize("language", ["am", "az", "tr", "xx", "", "EN", "x" * 1000])
def test_an_unknown_language_is_refused_with_those_that_are_known(language):
    with pytest.raises(
        InputError, match=r"^forms is '.{0,40}'; numbers can be written out in .*\bde\b"
    ) as error:
        NumberWords(language)
    assert error.value.param == "forms"


def test_a_missing_library_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(
        UnsupportedError, match=r"need the package num2words: pip install '.*\[speech\]'"
    ) as error:
        NumberWords("en")
    assert error.value.param == "forms"


def test_a_word_of_thousand_names_of_scales_is_no_number():
    assert number_words("en").read("thousand" * 2000) is None
