"""Keys of /v1/autocomplete: letters, number pads and touches, alone and with errors, lists and users; bad input."""

import json
import math
import re

import numpy as np
import pytest

from models.completion.keys import LAYOUTS, key_centres, letters_of_touch
from tests.contract.test_autocomplete import IDS, MODEL, ask

PAD = {
    "2": "abc",
    "3": "def",
    "4": "ghi",
    "5": "jkl",
    "6": "mno",
    "7": "pqrs",
    "8": "tuv",
    "9": "wxyz",
}


def pressed(word):
    """Keys of a number pad for a word."""
    return [next(letters for letters in PAD.values() if letter in letters) for letter in word]


def texts_of(reply):
    return [one["text"] for one in reply["completions"]]


def alone(http, text, **options):
    """Completions of a text by probability without its typed prefix."""
    reply = ask(http, text, limit=100, **options)
    return {one["text"]: one["probability"] for one in reply["completions"]}


@pytest.mark.parametrize("model", ["mixture", "chars"])
def test_words_weigh_what_their_letters_weigh(http, model):
    """P(word | keys) is in proportion to P(word) times the product of its letters."""
    known = alone(http, "the ", model=model, max_steps=2000)
    best = sorted((word for word in known if len(word) > 1), key=lambda word: -known[word])[:6]
    keys = [
        {letter: 0.9 / 2**n for n, letter in enumerate(dict.fromkeys(word[at] for word in best), 1)}
        for at in (0, 1)
    ]
    want = {
        word: p * keys[0].get(word[0], 0) * keys[1].get(word[1], 0)
        for word, p in known.items()
        if len(word) > 1
    }
    want = {word: mass for word, mass in want.items() if mass}
    assert len(want) >= 2
    total = sum(want.values())
    got = alone(http, "the xx", keys=keys, model=model, max_steps=2000)
    assert got
    assert all(word[0] in keys[0] and word[1] in keys[1] for word in got)
    if model == "mixture":  # all words are found
        assert got == pytest.approx({word: mass / total for word, mass in want.items()}, rel=1e-4)


def test_a_number_pad_writes_words(http):
    reply = ask(http, "the 287", keys=pressed("cat"))
    assert texts_of(reply)[0] == "cat"
    first = reply["completions"][0]
    assert (first["suffix"], first["start"], first["edits"], reply["prefix"]) == (
        None,
        4,
        3,
        "287",
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_touches_beside_the_middle_of_keys_write_the_word(http, layout):
    touches = [
        [x + shift, y - shift / 2]
        for (x, y), shift in zip(
            (key_centres(layout)[letter] for letter in "house"),
            (0.4, -0.3, 0.2, -0.4, 0.3),
            strict=True,
        )
    ]
    reply = ask(http, "the jpydw", keys=touches, layout=layout)
    assert texts_of(reply) == ["house"]
    assert reply["completions"][0]["probability"] == pytest.approx(1)


def test_the_letters_of_a_touch_are_near_it_and_sum_to_one():
    for x, y in ((0.5, 0.5), (3.1, 1.4), (-9, -9), (29, 29)):
        letters = letters_of_touch(x, y, "qwerty")
        assert math.fsum(letters.values()) == pytest.approx(1)
        centres = key_centres("qwerty")
        nearest = min(centres, key=lambda letter: math.dist((x, y), centres[letter]))
        assert max(letters, key=letters.__getitem__) == nearest


def test_an_error_that_no_key_explains_is_corrected_if_asked_for(http):
    keys = pressed("huose")
    assert texts_of(ask(http, "the huose", keys=keys)) == []
    assert texts_of(ask(http, "the huose", keys=keys, fuzzy=1))[0] == "house"


def test_typed_capitals_are_those_of_the_letters_meant(http):
    keys = pressed("ca")
    assert texts_of(ask(http, "the Ba", keys=keys)) == []
    assert "Cat" in texts_of(ask(http, "the Ba", keys=keys, casing="ignore"))


@pytest.mark.parametrize("casing", ["exact", "ignore"])
def test_words_of_dictionaries_are_matched_by_keys(http, casing):
    dictionary = ["gramophone", {"text": "dormouse", "weight": 3}]
    reply = ask(http, "the 4726", keys=pressed("gram"), dictionary=dictionary, casing=casing)
    assert texts_of(reply)[0] == "gramophone"
    assert reply["completions"][0]["source"] == "user"


def test_certain_keys_are_the_typed_letters(http):
    plain = ask(http, "the ca", limit=50)
    same = ask(http, "the ca", limit=50, keys=[{"c": 1}, "a"])
    assert same["completions"] == plain["completions"]


@pytest.mark.parametrize(
    ("options", "param", "said"),
    [
        ({"keys": [{"c": 1}]}, "keys", "has 1 entries; the word being typed, 'ca', has 2 characters"),
        ({"keys": ["c", "a", "t"]}, "keys", "has 3 entries"),
        ({"keys": []}, "keys", "at least 1"),
        ({"keys": ["abc"] * 257}, "keys", "256"),
        ({"keys": ["", "a"]}, "keys[0]", ""),
        ({"keys": ["aa", "a"]}, "keys[0]", "'aa', whose letters are not distinct"),
        ({"keys": [{}, "a"]}, "keys[0]", ""),
        ({"keys": [{"c": 0.7, "d": 0.7}, "a"]}, "keys[0]", "probabilities whose sum is 1.4"),
        ({"keys": [{"c": 1.2}, "a"]}, "keys[0]", ""),
        ({"keys": [{"c": -0.2}, "a"]}, "keys[0]", ""),
        ({"keys": [{"c": 0}, "a"]}, "keys[0]", ""),
        ({"keys": [{"cd": 0.5}, "a"]}, "keys[0]", ""),
        ({"keys": [[1.0], "a"]}, "keys[0]", ""),
        ({"keys": [[1.0, 99], "a"]}, "keys[0]", ""),
        ({"keys": [7, "a"]}, "keys[0]", ""),
        ({"keys": ["c", "a"], "layout": "dvorak"}, "layout", "qwerty"),
    ],
)  # fmt: skip
def test_wrong_keys_are_refused_by_name(http, options, param, said):
    response = http.post("/v1/autocomplete", json={"text": "the ca", **options})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"].startswith(param), error
    assert said in error["message"], error


def test_keys_after_a_space_have_no_word(http):
    response = http.post("/v1/autocomplete", json={"text": "the ", "keys": ["a"]})
    assert response.json()["error"]["message"].endswith(
        "has 1 entries; the word being typed, '', has 0 characters"
    )


def test_completions_fit_what_follows(http):
    """The completion before "sat" is not what most often follows "the"."""
    plain, both = (alone(http, "the ", **options) for options in ({}, {"text_after": " sat on the mat"}))
    follows = {word: float(np.exp(MODEL.table[IDS[word]][IDS["sat"]])) for word in plain}
    assert both.keys() == plain.keys() - {"sat"}
    ratios = {
        word: both[word] / plain[word] / follows[word] for word in ("cat", "dog", "mat") if word in both
    }
    assert len(ratios) == 3
    assert max(ratios.values()) == pytest.approx(min(ratios.values()), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "after", "gone"),
    [("the ", "cat sat", "cat"), ("the ca", "t sat", "cat"), ("the ", " cat", "cat")],
)
def test_a_completion_that_repeats_what_follows_vanishes(http, text, after, gone):
    assert gone in alone(http, text)
    assert gone not in alone(http, text, text_after=after)
    assert gone in alone(http, text, text_after="\n" + after)


def test_probabilities_beside_what_follows_are_at_most_one_and_limits_hold(http):
    reply = ask(http, "the ", text_after=" sat", limit=2, min_probability=0.01)
    assert len(reply["completions"]) <= 2
    found = [one["probability"] for one in reply["completions"]]
    assert found == sorted(found, reverse=True)
    assert all(0.01 <= one <= 1 for one in found)


@pytest.mark.parametrize("before", ["the dog sat\nthe cat sat on\n", "\n\n", "x" * 500])
def test_lines_before_are_accepted_by_every_model(http, before):
    for model in ("mixture", "chars"):
        reply = ask(http, "the c", before=before, model=model)
        assert reply == ask(http, "the c", before=before, model=model)  # cached


def test_too_much_before_is_refused_with_limit_and_value(http):
    response = http.post("/v1/autocomplete", json={"text": "the c", "before": "the cat " * 10_000})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "before"), error
    assert re.search(r"has \d+ .* at most \d+", error["message"])
    response = http.post("/v1/autocomplete", json={"text": "the c", "before": "the cat\n" * 1_000})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "before"), error
    assert "tokens; at most" in error["message"]


@pytest.mark.parametrize("model", ["mixture", "chars"])
@pytest.mark.parametrize(
    "options",
    [
        {"keys": [{"\ud800": 0.5, "c": 0.5}, "a"]},
        {"keys": [{"\U0001f642": 0.5, "c": 0.5}, "\u0301a"], "fuzzy": 1},
        {"keys": ["ß\u0130", "ﬁǆ"], "casing": "ignore"},
        {"before": "\ud800 a\n\ud83d"},
        {"text_after": " \ud800 a\ud83d"},
        {"text_after": "\x00\x1c \u2028", "before": "\x00\x1c\u2028"},
        {"text_after": " a" * 5000},
    ],
)
def test_odd_characters_are_answered(http, model, options):
    for text in ("the ca", "the Ca", "ca"):
        body = json.dumps({"text": text, "model": model, **options})  # lone surrogates as escapes
        answer = http.post("/v1/autocomplete", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in {200, 400}, answer.text
