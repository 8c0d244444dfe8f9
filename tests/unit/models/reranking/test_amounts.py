"""Amounts: reading them from words and digits, and that each of their forms is the same amount."""

import time
from fractions import Fraction

import pytest

from models.reranking.amounts import AmountForms, split_tail
from models.reranking.numbers import number_words

ENGLISH = AmountForms("en")
SCALES = {"": 1, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def value_of(amount):
    """Value, unit, and whether it is an ordinal."""
    number = Fraction(f"{amount.number.value}.{amount.decimals or 0}") * SCALES[amount.scale]
    return number, amount.unit, amount.number.kind == "ordinal"


def read(text, forms=ENGLISH):
    """Number of words read, value, and unit."""
    found = forms.read(text.split(), 0)
    if found is None:
        return None
    number, unit, is_ordinal = value_of(found[1])
    return found[0], float(number), "th" if is_ordinal else unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$1.9 million", (2, 1.9e6, "$")),
        ("$1.9 million.", (2, 1.9e6, "$")),
        ("1,987", (1, 1987, "")),
        ("1,987, and", (1, 1987, "")),
        ("1987.", (1, 1987, "")),
        ("3.5.", (1, 3.5, "")),
        ("42%", (1, 42, "%")),
        ("42 %", (2, 42, "%")),
        ("42 per cent", (3, 42, "%")),
        ("forty-two percent", (2, 42, "%")),
        ("Forty two percent", (3, 42, "%")),
        ("one point five percent", (4, 1.5, "%")),
        ("2nd", (1, 2, "th")),
        ("2ND,", (1, 2, "th")),
        ("twenty twond", (2, 22, "th")),
        ("twenty-fiveth", (1, 25, "th")),
        ("one hundred and twenty-first", (4, 121, "th")),
        ("$nine hundred and nine million", (5, 909e6, "$")),
        ("three dollars and fifty cents", (5, 3.5, "$")),
        ("three dollars fifty cents", (4, 3.5, "$")),
        ("three dollars and five cents", (5, 3.05, "$")),
        ("three pounds fifty pence", (4, 3.5, "£")),
        ("three dollars and fifty", (2, 3, "$")),
        ("three dollars, fifty cents", (2, 3, "$")),
        ("three million dollars and fifty cents", (6, 3_000_000.5, "$")),
        ("$3 million and fifty cents", (2, 3e6, "$")),
        ("one dollar", (2, 1, "$")),
        ("€3.50", (1, 3.5, "€")),
        ("¥500", (1, 500, "¥")),
        ("one point five million dollars", (5, 1.5e6, "$")),
        ("one thousand, nine hundred and eighty-six", (6, 1986, "")),
        ("nineteen oh five", (3, 1905, "")),
        ("٣٤", (1, 34, "")),
        ("१२ million", (2, 12e6, "")),
        ("five. Six", (1, 5, "")),
        ("five, six", (1, 5, "")),
        ("twenty. One", (1, 20, "")),
        ("five. million", (1, 5, "")),
        ("one hundred and", (2, 100, "")),
        ("one hundred, and then", (2, 100, "")),
        ("one and two", (1, 1, "")),
        ("one point cat", (1, 1, "")),
    ],
)
def test_the_longest_amount_at_a_word_is_read(text, expected):
    assert read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "and five",
        "cat",
        "$",
        "%",
        "$cat",
        "a",
        "hundred",
        "million",
        "12,34",
        "1.5.2",
        "²",
        "½",
        "1/2",
        "-5",
        ",",
        ".",
        "1990s",
        "1e5",
        "🎉",
        "9" * 16,
        "$" + "9" * 16,
        "st",
        "nd",
        "th",
    ],
)
def test_other_words_are_no_amount(text):
    assert read(text) is None


def test_an_amount_is_read_from_any_word_of_a_text():
    words = ["it", "costs", "two", "hundred", "dollars", "today"]
    end, amount = ENGLISH.read(words, 2)
    assert (end, amount.number.value, amount.unit) == (5, 200, "$")
    assert ENGLISH.read(words, 5) is None


@pytest.mark.parametrize(
    ("text", "spoken", "written"),
    [
        (
            "$1.9 million",
            ["one point nine million dollars", "one point nine million dollar"],
            ["$1.9 million"],
        ),
        ("forty-two percent", ["forty two percent"], ["42%"]),
        ("twenty twond", ["twenty second"], ["22nd"]),
        ("$1", ["one dollar", "one dollar"], ["$1"]),
        ("$1.50", ["one dollar and fifty cents", "one dollar fifty cents"], ["$1.50"]),
        ("416", ["four hundred sixteen", "four sixteen", "four one six"], ["416"]),
        ("1986", ["nineteen eighty six", "one thousand nine hundred eighty six"], ["1,986", "1986"]),
        ("nineteen eighty six", ["nineteen eighty six"], ["1986"]),
        ("909 million dollars", ["nine hundred nine million dollars"], ["$909 million"]),
        ("nine hundred nine million", [], ["909 million", "909,000,000", "909000000"]),
    ],
)
def test_forms_of_an_amount_have_the_most_usual_first(text, spoken, written):
    amount = ENGLISH.read(text.split(), 0)[1]
    said = list(ENGLISH.spoken(amount))
    assert said[:1] == spoken[:1] or not spoken
    assert set(spoken) <= set(said)
    assert list(ENGLISH.written(amount)) == written


VALUES = [
    *range(24),
    30,
    42,
    99,
    100,
    101,
    110,
    250,
    416,
    999,
    1000,
    1001,
    1099,
    1100,
    1234,
    1905,
    1986,
    2000,
]
VALUES += [2001, 2010, 2099, 2100, 2500, 10_000, 12_345, 100_000, 700_019, 999_999]
ENGLISH_DIGITS = set(number_words("en").digits("0123456789").split())


def check_forms(given):
    """Check that each form of an amount that is read is equal, and that the first ones are read."""
    end, amount = ENGLISH.read(given.split(), 0)
    assert end == len(given.split())
    spoken, written = list(ENGLISH.spoken(amount)), list(ENGLISH.written(amount))
    assert spoken
    assert written
    for form in (*spoken, *written):
        again = ENGLISH.read(form.split(), 0)
        if again is not None and again[0] == len(form.split()):
            assert value_of(again[1]) == value_of(amount), form
        else:  # "a hundred", "four sixteen" and digits one by one are not read
            assert form not in {spoken[0], *written}
            assert form.startswith("a ") or form.split()[0] in ENGLISH_DIGITS, form


@pytest.mark.parametrize(
    "written",
    [
        "{}",
        "{:,}",
        "${}",
        "€{:,}",
        "{}%",
        "{} percent",
        "{} million",
        "${:,} billion",
        "{}.5",
        "{}.05%",
        "${}.50",
        "£{:,}.05",
        "${}.5",
        "${}.7 million",
        "¥{}",
    ],
)
def test_every_form_that_is_read_is_the_same_amount(written):
    for value in VALUES:
        check_forms(written.format(value))


@pytest.mark.parametrize("given", ["1000000", "$5,000,000,000", "€12000000", "7,000,001", "$3 trillion"])
def test_every_form_of_a_long_number_that_is_read_is_the_same_amount(given):
    check_forms(given)


def test_every_form_of_an_ordinal_that_is_read_is_the_same_ordinal():
    for value in (*range(1, 125), 200, 999, 1000, 1001, 1023, 1100, 2001):
        check_forms(number_words("en").ordinal_digits(value))


def test_an_ordinal_of_thousands_that_may_be_a_year_is_read():
    check_forms("2000th")


def test_a_percentage_of_a_million_is_written_so_that_it_is_read():
    check_forms("1000000%")


@pytest.mark.parametrize("language", ["de", "fr", "es", "nl"])
def test_a_number_of_another_language_is_read_from_its_words(language):
    forms = AmountForms(language)
    for value in (0, 7, 21, 80, 101, 345, 1000, 1987, 9999):
        amount = forms.read([str(value)], 0)[1]
        words = number_words(language).written(amount.number)[0].split()
        end, again = forms.read([*words, "xyz"], 0)
        assert (end, again.number.value) == (len(words), value)
        assert next(iter(forms.written(again))) == str(value)


def test_decimals_are_read_after_the_word_of_the_language():
    assert AmountForms("de").read(["drei", "komma", "fünf"], 0)[1].decimals == "5"
    assert list(AmountForms("de").spoken(AmountForms("de").read(["3.5"], 0)[1])) == ["drei komma fünf"]


def test_units_are_read_and_times_said_in_english_only():
    assert AmountForms("de").read(["fünf", "percent"], 0)[0] == 1
    assert list(AmountForms("de").times("3:30")) == []


@pytest.mark.parametrize(
    ("word", "spoken"),
    [
        ("3:30", ["three thirty"]),
        ("12:05", ["twelve oh five"]),
        ("3:00", ["three", "three o'clock"]),
        ("3:60", []),
        ("3:3", []),
        ("123:30", []),
        ("3:30pm", []),
        ("", []),
    ],
)
def test_a_time_is_said_in_hours_and_minutes(word, spoken):
    assert list(ENGLISH.times(word)) == spoken


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("cat.", ("cat", ".")),
        ("cat?!", ("cat", "?!")),
        ("3.5,", ("3.5", ",")),
        ("...", ("...", "")),
        ("", ("", "")),
    ],
)
def test_closing_punctuation_is_split_from_a_word(word, parts):
    assert split_tail(word) == parts


@pytest.mark.parametrize(
    "words", [["one"], ["thousand"], ["nine", "hundred"], ["and"], ["one", "and"], ["$one"]]
)
def test_a_long_run_of_number_words_is_read_in_bounded_time(words):
    text = words * 200
    begun = time.perf_counter()
    for begin in range(len(text)):
        found = ENGLISH.read(text, begin)
        assert found is None or begin < found[0] <= begin + 25
    assert time.perf_counter() - begun < 5


def test_a_word_of_many_names_of_scales_is_read_in_bounded_time():
    begun = time.perf_counter()
    assert ENGLISH.read(["millionthousand" * 15], 0) is None
    assert time.perf_counter() - begun < 0.2


def test_a_price_with_three_decimals_keeps_its_value():
    amount = ENGLISH.read(["$3.459"], 0)[1]
    for form in ENGLISH.written(amount):
        assert value_of(ENGLISH.read(form.split(), 0)[1]) == value_of(amount)


def test_decimals_of_other_scripts_are_written_in_the_digits_of_the_whole_part():
    assert list(ENGLISH.written(ENGLISH.read(["\u0663.\u0665"], 0)[1])) == ["3.5"]


def test_a_number_of_more_words_than_are_read_is_not_cut():
    words = number_words("en").written(ENGLISH.read(["987654321"], 0)[1].number)[0].split()
    found = ENGLISH.read(words, 0)
    assert found is None or found[1].number.value == 987_654_321


def test_hundredths_with_decimals_are_not_cut():
    amount = ENGLISH.read(["three", "dollars", "and", "five", "point", "five", "cents"], 0)[1]
    assert value_of(amount)[0] != Fraction("3.05")
