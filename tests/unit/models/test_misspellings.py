"""Misspellings that are not offered, and what a typing error is."""

import random

import pytest
from rapidfuzz.distance import OSA

from models.checkpoint.load import load_tokenizer
from models.errors import ManifestError
from models.language_model import Vocabulary
from models.misspellings import Misspellings, is_mistyped
from models.slots import class_mark
from models.tokenizers import MISSPELLINGS_FILE, CharacterTokenizer, WordTokenizer

KNOWN = Misspellings(
    {"helidoesk": "heliodesk", "helioesk": "heliodesk", "odrer": "order"},
    {"oder": ["order", "older"]},
)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("odrer", "order"),
        ("oder", "order"),
        ("hte", "the"),
        ("orderr", "order"),
        ("thibg", "thing"),
        ("ab", "ba"),
    ],
)
def test_an_exchange_or_an_edit_inside_a_word_is_a_typing_error(form, word):
    assert is_mistyped(form, word)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("order", "order"),
        ("orders", "order"),
        ("border", "order"),
        ("mouse", "house"),
        ("walked", "walker"),
        ("cats", "cat"),
        ("odrre", "order"),
        ("", "a"),
    ],
)
def test_other_forms_and_edits_at_the_ends_are_not(form, word):
    assert not is_mistyped(form, word)


def test_typing_errors_are_single_edits_that_keep_both_ends_but_for_exchanges():
    drawn = random.Random(1)
    words = ["".join(drawn.choices("ab", k=drawn.randint(1, 5))) for _ in range(300)]
    for form, word in zip(words, reversed(words), strict=True):
        exchanges = {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)} - {word}
        keeps = form[0] == word[0] and form[-1] == word[-1]
        assert is_mistyped(form, word) == (OSA.distance(form, word) == 1 and (keeps or form in exchanges))


@pytest.mark.parametrize("text", ["helidoesk", "HeliDoesk", "HELIDOESK", "the Helioesk,", "an odrer now"])
def test_a_text_with_a_misspelling_in_any_case_has_one(text):
    assert KNOWN.are_in(text)


@pytest.mark.parametrize("text", ["", "heliodesk", "HelioDesk", "odrers", "od", "helidoesk-like"])
def test_other_texts_have_none(text):
    assert not KNOWN.are_in(text)
    assert not Misspellings().are_in(text)


@pytest.mark.parametrize(
    ("prefix", "number"),
    [("", 4), ("h", 2), ("HeliD", 1), ("od", 2), ("odrer", 1), ("odrers", 0), ("z", 0)],
)
def test_those_with_a_prefix_are_counted(prefix, number):
    assert KNOWN.num_with_prefix(prefix) == number
    assert Misspellings().num_with_prefix(prefix) == 0


@pytest.mark.parametrize("known", [KNOWN, Misspellings()], ids=["some", "none"])
@pytest.mark.parametrize(
    "tokenizer",
    [WordTokenizer(Vocabulary(["a"])), CharacterTokenizer(Vocabulary("ab"))],
    ids=["words", "characters"],
)
def test_they_are_stored_beside_the_tokenizer_and_change_nothing_else(tokenizer, known, tmp_path):
    fingerprint = tokenizer.fingerprint
    tokenizer.misspellings = known
    tokenizer.save(tmp_path)
    assert (tmp_path / MISSPELLINGS_FILE).exists() == bool(known.words)
    read = load_tokenizer(tmp_path)
    assert list(read.misspellings.words.items()) == list(known.words.items())
    assert read.misspellings.doubtful == known.doubtful
    assert read.fingerprint == fingerprint


@pytest.mark.parametrize(
    "text",
    [
        "odrer\n",
        "odrer\torder\n\n",
        "odrer\torder\tolder\n",
        "odrer\t?\n\n",
        b"\xff\t\n",
    ],
)
def test_a_damaged_file_is_refused(text, tmp_path):
    WordTokenizer(Vocabulary(["a"])).save(tmp_path)
    raw = text if isinstance(text, bytes) else text.encode()
    (tmp_path / MISSPELLINGS_FILE).write_bytes(raw)
    with pytest.raises(ManifestError, match="misspellings"):
        load_tokenizer(tmp_path)


def test_members_of_classes_are_no_misspellings():
    tokenizer = WordTokenizer(Vocabulary([class_mark("place"), "order"]))
    tokenizer.misspellings = KNOWN
    slotted = tokenizer.with_slots({"place": {"New Odrer": 1.0}})
    assert slotted.misspellings.words.keys() == {"helidoesk", "helioesk"}
    assert tokenizer.misspellings is KNOWN


def test_a_form_stands_for_one_word_or_may_stand_for_several():
    assert [*KNOWN.meant_by("odrer")] == ["order"]
    assert [*KNOWN.meant_by("oder")] == ["order", "older"]
    assert not KNOWN.meant_by("order")
    assert not KNOWN.are_in("oder")
    assert KNOWN.without(["oder", "odrer"]).words.keys() == {"helidoesk", "helioesk"}
    assert not KNOWN.without(["oder"]).doubtful
