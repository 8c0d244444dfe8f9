"""Probabilities of spellings, strings near a word, and what of a token is a word."""

import itertools
import math

import pytest
from rapidfuzz.distance import OSA

from models.checking.sentences import (
    SpellingModel,
    common_typo_corrections,
    is_alphabetic,
    match_case,
    one_edit_strings,
    split_affixes,
)


def test_probabilities_of_all_strings_sum_to_one():
    """Over a, b and the end; strings of other characters have the rest."""
    model = SpellingModel(["ab", "ba", "aab"], add=0.01)
    strings = ("".join(s) for n in range(12) for s in itertools.product("ab", repeat=n))
    total = math.fsum(math.exp(model.log_prob(s)) for s in strings)
    assert 0.9 < total < 1


def test_spellings_like_those_of_words_are_likelier():
    model = SpellingModel(["string", "strong", "spring", "thing", "bring"])
    assert model.log_prob("sting") > model.log_prob("gnits")
    assert model.log_prob("sting") > model.log_prob("st\u05e9ng") > -math.inf


def test_a_model_of_no_words_knows_strings_all_the_same():
    assert math.isfinite(SpellingModel([]).log_prob("abc"))


def test_strings_one_edit_away_are_all_there():
    strings = one_edit_strings("abc", "abcd")
    assert len(strings) == len(set(strings))
    assert all(OSA.distance("abc", s) == 1 for s in strings)
    everything = ("".join(s) for n in range(1, 5) for s in itertools.product("abcd", repeat=n))
    assert set(strings) == {s for s in everything if OSA.distance("abc", s) == 1}


def test_common_slips_are_strings_one_edit_away():
    slips = common_typo_corrections("eror")
    assert "error" in slips
    assert {"eorr", "reor", "ero"} <= set(slips)
    assert all(OSA.distance("eror", s) == 1 for s in slips)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("cat", ("", "cat", "")),
        ("(cat),", ("(", "cat", "),")),
        ("don't", ("", "don't", "")),
        ("<unk>", ("<", "unk", ">")),
        ("e\u0301t\u00e9", ("", "e\u0301t\u00e9", "")),
        ("3rd", None),
        ("snake_case", None),
        ("a.b", None),
        (",", None),
        ("", None),
    ],
)
def test_what_of_a_token_is_a_word(token, expected):
    found = split_affixes(token)
    assert (found and (found.affixes[0], found.core, found.affixes[1])) == expected


def test_words_take_the_case_of_what_was_typed():
    assert [match_case(t, "house") for t in ("hose", "Hose", "HOSE", "H")] == [
        "house",
        "House",
        "HOUSE",
        "House",
    ]


def test_runs_longer_than_a_word_are_not_looked_into():
    assert is_alphabetic("a-" * 127 + "a")
    assert not is_alphabetic("a-" * 128 + "a")
    assert split_affixes("a" * 256) == (("", ""), "a" * 256)
    assert split_affixes("a" * 257) is None
