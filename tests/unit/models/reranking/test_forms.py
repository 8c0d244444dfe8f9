"""Forms of amounts, abbreviations, initials and compounds: texts, features and values, and what is left alone."""

from collections import Counter

import numpy as np
import pytest

from models.errors import InputError
from models.reranking.forms import Forms
from models.reranking.proposals import FORM_FEATURES, LETTERS, SPELLING, SPOKEN, WRITTEN

ANY = Forms("en")
"""Forms where the words of the model are not recorded."""

LEXICON = {
    "1",
    "2",
    "the",
    "doctor",
    "dr",
    "twa",
    "TWA",
    "non",
    "stop",
    "nonstop",
    "united",
    "states",
    "flight",
}
LEXICON |= {"a", "i", "to", "today", "smith", "met", "is", "here"}


def forms(text, lexicon=None):
    """Begin, end, text, feature and value of each proposal."""
    proposer = ANY if lexicon is None else Forms("en", frozenset(lexicon).__contains__)
    return [tuple(one)[:5] for one in filter(None, proposer.propose(text.split()))]


def texts(text, lexicon=None):
    """Texts that are proposed."""
    return [one[2] for one in forms(text, lexicon)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$1.9 million", (0, 2, "one point nine million dollars", SPOKEN, 3)),
        ("one point nine million dollars", (0, 5, "$1.9 million", WRITTEN, -4)),
        ("pay 1,987 now", (1, 2, "one thousand nine hundred eighty seven", SPOKEN, 5)),
        ("42%", (0, 1, "forty two percent", SPOKEN, 2)),
        ("42 %", (0, 2, "forty two percent", SPOKEN, 1)),
        ("42 %", (0, 2, "42%", WRITTEN, -2)),
        ("at forty-two percent", (1, 3, "42%", WRITTEN, -2)),
        ("at forty-two percent", (1, 3, "forty two percent", SPOKEN, 0)),
        ("the 2nd", (1, 2, "second", SPOKEN, 0)),
        ("the second", (1, 2, "2nd", WRITTEN, -1)),
        ("at 3:30 today", (1, 2, "three thirty", SPOKEN, 1)),
        ("see dr smith", (1, 2, "doctor", SPOKEN, 0)),
        ("see the doctor", (2, 3, "dr", WRITTEN, -1)),
        ("at 60 mph", (2, 3, "miles per hour", SPOKEN, 2)),
        ("a non-stop flight", (1, 2, "non stop", SPELLING, 0)),
        ("a non-stop flight", (1, 2, "nonstop", SPELLING, 0)),
        ("on TWA today", (1, 2, "T W A", LETTERS, -1)),
        ("on TWA today", (1, 2, "t w a", LETTERS, -1)),
        ("on DNB today", (1, 2, "d n b", LETTERS, 1)),
        ("on t w a today", (1, 4, "TWA", WRITTEN, -3)),
        ("on t w a today", (1, 4, "twa", WRITTEN, -3)),
    ],
)
def test_an_amount_abbreviation_or_compound_has_its_other_form(text, expected):
    assert expected in forms(text)


def test_the_priors_of_all_forms_are_equal():
    assert {
        one.prior for one in filter(None, ANY.propose(["Dr.", "Jo", "paid", "$5", "on", "t", "w", "a"]))
    } == {0.0}


def test_a_form_at_the_start_of_a_sentence_has_a_capital():
    assert texts("Forty-two people") == ["42", "Forty two"]
    assert texts("Dr. Smith") == ["Doctor", "Drive"]
    assert texts("Non-stop flight") == ["Non stop", "Nonstop"]
    assert texts("the Dr. met") == ["doctor", "drive"]


@pytest.mark.parametrize("tail", [".", ",", "?", "!", ";", ":", "?!"])
def test_punctuation_after_a_form_is_kept(tail):
    assert texts(f"pay forty two{tail} now") == [f"42{tail}"]
    assert texts(f"pay 42%{tail} now") == [f"forty two percent{tail}"]
    assert texts(f"a non-stop{tail} flight") == [f"non stop{tail}", f"nonstop{tail}"]
    assert texts(f"at 3:30{tail}") == [f"three thirty{tail}"]


def test_the_full_stop_of_an_abbreviation_is_kept_at_the_end_of_a_sentence_only():
    assert texts("see Mr. now") == ["mister"]
    assert texts("see Mr., now") == ["mister,"]
    assert texts("see Mr.") == ["mister."]
    assert texts("the U.S. team") == ["U S", "u s"]
    assert texts("the U.S.") == ["U S.", "u s."]
    assert texts("pay 5. now") == ["five."]


def test_an_abbreviation_with_a_capital_has_a_full_stop():
    assert texts("see Doctor now") == ["Dr."]
    assert texts("see Doctor.") == ["Dr."]
    assert texts("see doctor now") == ["dr"]
    assert texts("see doctor.") == ["dr."]


@pytest.mark.parametrize(("short", "long"), [("no", "number"), ("co", "company"), ("rep", "representative")])
def test_an_abbreviation_that_is_a_word_is_written_out_with_a_capital_or_a_full_stop_only(short, long):
    assert texts(f"say {short} more") == []
    assert texts(f"say {short}, more") == []
    assert texts(f"say {short.title()} more") == [long]
    assert texts(f"say {short}. more") == [long]


def test_an_abbreviation_with_full_stops_and_one_in_capitals_are_written_out():
    assert texts("see M.R. now") == ["mister"]
    assert texts("see DR now") == ["doctor", "drive"]


def test_a_long_form_is_shortened_to_a_word_of_the_model_only():
    assert texts("the doctor", LEXICON) == ["dr"]
    assert texts("the doctor", LEXICON - {"dr"}) == []


def test_initials_without_vowels_have_the_greater_value():
    values = {text: forms(f"on {text} here")[0][4] for text in ("DNB", "TWA", "YMCA", "BBC", "P.M.")}
    assert values == {"DNB": 1, "TWA": -1, "YMCA": -1, "BBC": 1, "P.M.": 1}


def test_words_that_the_model_does_not_know_may_be_initials():
    assert texts("the pm is here", LEXICON) == ["p m"]
    assert texts("the pm is here", LEXICON | {"pm"}) == []
    assert texts("the PM is here", LEXICON | {"PM"}) == ["P M", "p m"]
    assert texts("the abcdef is here", LEXICON) == []
    assert texts("the ABCDEF is here", LEXICON) == []


def test_single_letters_are_initials_if_the_model_knows_the_word():
    assert texts("t w a", LEXICON) == ["twa", "TWA"]
    assert texts("t w a", LEXICON - {"twa"}) == ["TWA"]
    assert texts("t w b", LEXICON) == []
    assert texts("t. w. a.", LEXICON) == ["twa.", "TWA."]


@pytest.mark.parametrize("text", ["a", "t 1", "t ,", "a \U0001f389"])
def test_a_single_letter_is_no_initials(text):
    assert WRITTEN not in {one[3] for one in forms(text) if one[1] - one[0] > 1}


def test_words_are_joined_and_split_into_words_of_the_model():
    assert forms("non stop flight", LEXICON) == [(0, 2, "nonstop", SPELLING, -1)]
    assert forms("the unitedstates", LEXICON) == [(1, 2, "united states", SPELLING, -1)]
    assert texts("the unitedstates.", LEXICON) == ["united states."]


def test_nothing_is_joined_or_split_without_a_lexicon():
    assert forms("non stop unitedstates flight") == []


@pytest.mark.parametrize(
    "text", ["non, stop", "non st op", "a way", "a roundish", "is to", "nonstop", "stop non"]
)
def test_other_words_are_not_joined_or_split(text):
    known = LEXICON | {"op", "st", "way", "away", "isto", "roundish", "aroundish"}
    assert SPELLING not in {one[3] for one in forms(text, known)}


@pytest.mark.parametrize("text", ["forty two percent", "nineteen eighty six", "five dollars", "second"])
def test_a_model_that_knows_no_digits_has_no_written_amounts(text):
    assert WRITTEN in {one[3] for one in forms(text, {*text.split(), "1"})}
    assert WRITTEN not in {one[3] for one in forms(text, text.split())}
    assert SPOKEN in {one[3] for one in forms("42%", text.split())}


POOL = "the Dr. no. No co, Co. 42% $1.9 million billion 2nd 1,987 1,234.56 forty-two percent and t w a T. W. A. TWA"
POOL += " nonstop non-stop non stop 3:30 3:05. U.S. one hundred nineteen eighty six dollars cents point five 416 1986"
POOL += (
    " \U0001f389 \u05e9\u05dc\u05d5\u05dd \u0663\u0664 , ... $ % \u0130stanbul \u00df etc. mph Ft. number "
)
POOL += "Doctor, 007 x\u0301 unitedstates \ufb01 \u200f42\u200f"


@pytest.mark.parametrize("lexicon", [None, LEXICON, set()])
@pytest.mark.parametrize("seed", range(20))
def test_proposals_of_any_text_are_in_order_within_it_and_few(seed, lexicon):
    rng = np.random.default_rng(seed)
    words = [str(word) for word in rng.choice(POOL.split(), rng.integers(1, 40))]
    found = forms(" ".join(words), lexicon)
    assert [one[0] for one in found] == sorted(one[0] for one in found)
    for begin, end, text, feature, _ in found:
        assert 0 <= begin < end <= len(words)
        assert text != " ".join(words[begin:end])
        assert text == " ".join(text.split())
        assert feature in FORM_FEATURES
    assert max(Counter(one[:2] for one in found).values(), default=0) <= 8


def test_a_span_has_at_most_eight_forms_those_in_digits_first():
    # there are eight in words, and two in digits
    found = forms("1150.25 dollars")
    assert [one[3] for one in found] == [WRITTEN] * 2 + [SPOKEN] * 6
    assert found[0][2] == "$1,150.25"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\U0001f389", []),
        ("\U0001f389 two \U0001f389\U0001f389", [(1, 2, "2", WRITTEN, -1)]),
        ("\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", []),
        (
            "\u05e9\u05dc\u05d5\u05dd 12 \u05e2\u05d5\u05dc\u05dd",
            [(1, 2, "twelve", SPOKEN, 0)],
        ),
        ("... , --", []),
        ("the cat sat on the mat", []),
    ],
)
def test_texts_without_words_and_from_right_to_left_have_their_numbers_only(text, expected):
    assert forms(text) == expected


def test_other_languages_have_forms_of_numbers_and_no_english_abbreviations():
    german = Forms("de")
    found = [
        tuple(one)[:5]
        for one in filter(
            None, german.propose(["Dr.", "Meier", "hat", "zwanzig", "Hunde", "und", "21", "Katzen"])
        )
    ]
    assert found == [(3, 4, "20", WRITTEN, -1), (6, 7, "einundzwanzig", SPOKEN, 0)]


def test_an_unknown_language_is_refused():
    with pytest.raises(InputError, match="forms is 'xx'"):
        Forms("xx")


@pytest.mark.parametrize(("text", "expected"), [("the Doctor, said", "Dr.,"), ("the Company?", "Co.?")])
def test_punctuation_after_a_short_form_with_a_full_stop_is_kept(text, expected):
    assert texts(text) == [expected]


def test_the_full_stop_of_the_last_initial_is_dropped_within_a_sentence():
    assert texts("a T. W. A. flight") == ["TWA"]


@pytest.mark.parametrize("word", ["pre-", "-b-", "-b"])
def test_a_hyphen_at_the_edge_of_a_word_does_not_become_a_space(word):
    assert all(one == one.strip() for one in texts(f"the {word} word"))


def test_no_form_is_proposed_twice():
    found = forms("May is here", LEXICON)
    assert len(found) == len(set(found))
