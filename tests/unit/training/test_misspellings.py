"""Misspellings found in a training text: by counts, edits and letters, and in none of its right words."""

import random
from collections import Counter

import pytest

from models.errors import InputError
from models.misspellings import Misspellings, is_mistyped
from training.misspellings import find_misspellings
from training.tokenizer import TokenizerSettings, learn_tokenizer

FREQUENT = {
    "heliodesk": 300,
    "order": 900,
    "orders": 200,
    "printer": 500,
    "house": 2000,
    "the": 9000,
    "need": 800,
}


def found(**rare):
    return find_misspellings(FREQUENT | rare).words


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("helidoesk", "heliodesk"),
        ("helioesk", "heliodesk"),
        ("helioodesk", "heliodesk"),
        ("heliopesk", "heliodesk"),
        ("ehliodesk", "heliodesk"),
        ("odrer", "order"),
        ("orxder", "order"),
        ("pritner", "printer"),
        ("teh", "the"),
    ],
)
def test_a_rare_form_one_edit_from_a_frequent_word_is_its_misspelling(form, word):
    assert found(**{form: 1}) == {form: word}


@pytest.mark.parametrize(
    "form",
    [
        "printers",
        "printed",
        "rprint",
        "sprinter",
        "heliodesks",
        "then",
        "horder",
        "xhe",
    ],
)
def test_edits_at_the_ends_and_of_short_words_make_other_words(form):
    assert not found(**{form: 1})


def test_a_form_that_is_not_much_rarer_is_a_word():
    assert found(heliodsek=5)
    assert not found(heliodsek=6)
    assert found(heliodessk=1)
    assert found(heliodessk=1, heliodesk=50)
    assert not found(heliodessk=1, heliodesk=49)
    # an error that is made twice must be one of a word that is still more frequent
    assert not found(heliodessk=2, heliodesk=399)
    assert found(heliodessk=2, heliodesk=400)


def test_letters_that_other_words_have_are_no_evidence():
    others = {"horn": 5, "orsay": 5, "horsy": 5, "morse": 5, "worse": 9, "corse": 5}
    assert find_misspellings({"house": 2000, "horse": 1}).words == {"horse": "house"}
    found = find_misspellings({"house": 2000, "horse": 1} | others)
    assert (found.words, found.doubtful) == ({}, {"horse": ["house"]})
    assert find_misspellings({"house": 2000, "huose": 1} | others).words == {"huose": "house"}


@pytest.mark.parametrize(
    "form",
    ["HelioDesk", "HELIODESK", "heliodesk's", "helio-desk", "heliod3sk", "helio_desk"],
)
def test_cases_possessives_and_numbers_are_no_misspellings(form):
    assert not found(**{form: 1})


def test_counts_of_all_cases_are_added():
    assert found(HELIODSEK=3, Heliodsek=2) == {"heliodsek": "heliodesk"}
    assert not found(HELIODSEK=3, Heliodsek=3)
    assert find_misspellings({"HelioDesk": 49, "heliodesk": 1, "Heliodsek": 1}).words


@pytest.mark.parametrize(
    ("word", "form"),
    [("北京大学校园", "北京大字校园"), ("שלום", "שולם"), ("안녕하세요", "안녕히세요")],
)
def test_scripts_without_capitals_are_left_alone(word, form):
    assert not [*find_misspellings({word: 10**6, form: 1}).lines()]


def test_misspellings_of_other_texts_remain_unless_they_are_frequent_here():
    known = [
        Misspellings({"odrer": "order"}),
        Misspellings({"pirnter": "printer"}, {"oder": ["order"], "odrer": ["odder"]}),
    ]
    rare = find_misspellings({"odrer": 4, "oder": 4}, known)
    assert (rare.words, rare.doubtful) == (
        {"odrer": "order", "pirnter": "printer"},
        {"oder": ["order"]},
    )
    frequent = find_misspellings({"odrer": 5, "oder": 5}, known)
    assert (frequent.words, frequent.doubtful) == ({"pirnter": "printer"}, {})


def test_rare_forms_that_may_be_words_are_doubtful_if_they_are_not_short():
    found = find_misspellings(FREQUENT | {"oder": 3, "thn": 1, "odder": 18, "oddder": 1})
    assert found.doubtful == {"odder": ["order"], "oder": ["order"]}


def test_neighbours_are_found_as_by_comparing_all_pairs():
    drawn = random.Random(3)
    counts = Counter("".join(drawn.choices("abc", k=drawn.randint(3, 7))) for _ in range(400))
    counts = {word: drawn.choice([1, 1, 1, 2, 3, 80, 5000]) for word in counts}
    expected = {form for form in counts for word in counts if _is_misspelling(form, word, counts)}
    assert expected
    found = find_misspellings(counts)
    assert found.words.keys() == expected
    near = {
        form: {w for w, n in counts.items() if n >= 50 * counts[form] and is_mistyped(form, w)}
        for form in counts
    }
    doubtful = {
        form: words for form, words in near.items() if words and len(form) > 3 and form not in expected
    }
    assert {form: {*words} for form, words in found.doubtful.items()} == doubtful


def _is_misspelling(form, word, counts):
    """Decide by the definition, without an index."""
    if form == word or not is_mistyped(form, word):
        return False
    if any(other != form and other.startswith(form) and n >= 5 for other, n in counts.items()):
        return False
    count, ratio = counts[form], counts[word] / counts[form]
    exchanged = sorted(form) == sorted(word)
    least = max(
        {3: 1000, 4: 500, 5: 100}.get(len(form), 50),
        (10 if exchanged else 100) * count if count > 1 else 0,
    )
    if ratio < least or exchanged:
        return ratio >= least
    if len(form) == 3:
        return False
    begin = next(
        (i for i in range(min(len(form), len(word))) if form[i] != word[i]),
        min(len(form), len(word)),
    )
    whole = f" {form} "
    windows = [whole[i : i + 4] for i in range(len(whole) - 3) if begin - 2 <= i <= begin + 1]
    shared = [
        sum(w in f" {other} " for other, n in counts.items() if n >= 5 and other != form) for w in windows
    ]
    return min(shared) == 0


@pytest.mark.parametrize(
    "settings",
    [{}, {"kind": "unigram"}, {"kind": "char"}, {"lowercase": True}],
    ids=str,
)
def test_tokenizers_learn_them_with_the_words(settings):
    lines = ["Open an order in HelioDesk, please."] * 120 + [
        "HeliDoesk: my odrer is late.",
        '"Helioesk" is slow.',
    ]
    tokenizer = learn_tokenizer(TokenizerSettings(**settings), lines)
    assert tokenizer.misspellings.words == {
        "odrer": "order",
        "helidoesk": "heliodesk",
        "helioesk": "heliodesk",
    }


def test_a_dictionary_tells_words_from_misspellings():
    """Without it, hause and oder would be some, and printr would be none, as it begins printrs."""
    counts = FREQUENT | {"hause": 1, "printr": 4, "printrs": 5, "ordre": 5, "oder": 1, "hosue": 1}
    right = {"order", "House", "printer", "oder", "hause"}
    found = find_misspellings(counts, is_right=right.__contains__)
    assert (found.words, found.doubtful) == ({"printr": "printer", "hosue": "house", "ordre": "order"}, {})
    alone = find_misspellings(counts)
    assert alone.words.keys() == {"hause", "oder", "hosue", "ordre"}


def test_training_reads_a_hunspell_dictionary(tmp_path):
    (tmp_path / "en.aff").write_text("SET UTF-8\nSFX S Y 1\nSFX S 0 s .\n")
    (tmp_path / "en.dic").write_text("2\nhouse/S\nhorse/S\n")
    lines = ["the houses"] * 3000 + ["the hourses", "the horses"]
    settings = TokenizerSettings(dictionary=str(tmp_path / "en.dic"))
    assert learn_tokenizer(settings, lines).misspellings.words == {"hourses": "houses"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nosuch.dic", "nosuch.dic: cannot be read: No such file or directory"),
        ("bad.dic", "bad.dic: line 1: "),
    ],
)
def test_a_dictionary_that_cannot_be_read_is_an_error_of_its_key(tmp_path, name, problem):
    (tmp_path / "bad.aff").write_text("SET UTF-8\n")
    (tmp_path / "bad.dic").write_text("house\n")
    with pytest.raises(InputError, match=rf"^tokenizer\.dictionary: .*{problem}"):
        learn_tokenizer(TokenizerSettings(dictionary=str(tmp_path / name)), ["a b"] * 9)
