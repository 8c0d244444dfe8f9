"""Compiled word lists against a slow reference: entries, words, prefixes, followers and damaged files."""

import unicodedata
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.calls import run_to_completion
from models.errors import ManifestError
from models.tensor_files import map_tensors, write_tensors
from models.word_list import WordList, WordListBuilder, WordListInfo

WORDS = [
    "new",
    "New",
    "NEW",
    "york",
    "York",
    "yo",
    "y",
    "caf\u00e9",
    "cafe\u0301",
    "CAF\u00c9",
    "don\u2019t",
    "don't",
]
WORDS += [
    "stra\u00dfe",
    "STRASSE",
    "\uff21\uff22",
    "ab",
    "a" * 40,
    "a" * 41,
    "\U0001f600",
    "na\u00efve",
    "so\u00adft",
]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
ENTRIES = st.lists(st.tuples(TEXTS, st.sampled_from([1.0, 2.0, 0.5])), max_size=40)


def compiled(folder, entries, **properties):
    builder = WordListBuilder(WordListInfo("terms", **properties))
    entries = [(unicodedata.normalize("NFC", text), weight) for text, weight in entries]
    half = len(entries) // 2
    builder.add(entries[:half])
    builder.add(entries[half:])
    builder.write(folder / "terms.words")
    return WordList(folder / "terms.words")


def sums(entries):
    """Weights of the entries and of their words, composed."""
    texts, words = Counter(), Counter()
    for text, weight in entries:
        parts = unicodedata.normalize("NFC", text).split()
        texts[" ".join(parts)] += weight
        for word in parts:
            words[word] += weight
    return texts, words


def plain(word, *, ignore_case):
    word = word.replace("\u2019", "'")
    return word.casefold() if ignore_case else word


@settings(deadline=None, max_examples=60)
@given(entries=ENTRIES)
def test_a_list_has_the_sums_of_its_entries_and_words(tmp_path_factory, entries):
    words = compiled(tmp_path_factory.mktemp("list"), entries)
    texts, counts = sums(entries)
    assert dict(words.entries()) == texts
    assert {word: words.count(word) for word in WORDS} == {word: counts[word] for word in WORDS}
    assert (words.info.entries, len(words), words.total) == (len(texts), len(counts), sum(counts.values()))
    heaviest = words.heaviest(5)
    assert [weight for _, weight in heaviest] == sorted(texts.values(), reverse=True)[:5]
    assert all(texts[text] == weight for text, weight in heaviest)


@settings(deadline=None, max_examples=60)
@given(
    entries=ENTRIES,
    prefixes=st.lists(
        st.sampled_from(["", "n", "N", "ne", "yo", "\u00e9", "caf", "don'", "a" * 40, "stras"]),
        min_size=1,
        max_size=3,
    ),
    ignore_case=st.booleans(),
)
def test_words_with_a_prefix_are_those_that_begin_with_it(tmp_path_factory, entries, prefixes, ignore_case):
    words = compiled(tmp_path_factory.mktemp("list"), entries)
    _, counts = sums(entries)
    expected = {
        word: n
        for word, n in counts.items()
        if plain(word, ignore_case=ignore_case).startswith(tuple(prefixes))
    }
    forms = [plain(prefix, ignore_case=ignore_case) for prefix in prefixes]
    if forms == prefixes:
        weight, found = run_to_completion(words.with_prefix(forms, 100, ignore_case=ignore_case))
        assert weight == pytest.approx(sum(expected.values()))
        assert sorted(found) == sorted(expected)
        _, best = run_to_completion(words.with_prefix(forms[:1], 2, ignore_case=ignore_case))
        of_first = [n for w, n in expected.items() if plain(w, ignore_case=ignore_case).startswith(forms[0])]
        assert [counts[word] for word in best] == sorted(of_first, reverse=True)[:2]


@settings(deadline=None, max_examples=60)
@given(entries=ENTRIES)
def test_followers_are_the_words_after_a_word_in_phrases(tmp_path_factory, entries):
    words = compiled(tmp_path_factory.mktemp("list"), entries)
    expected = {}
    for text, weight in entries:
        for one, other in pairwise(unicodedata.normalize("NFC", text).split()):
            expected.setdefault(one, Counter())[other] += weight
    for one in WORDS:
        pairs, counts = words.pairs_after(one), expected.get(one, Counter())
        assert pairs.total == sum(counts.values())
        assert pairs.novelty == sum(min(1, count) for count in counts.values())
        assert {word: pairs.count(word) for word in WORDS} == {word: counts[word] for word in WORDS}
        for prefix in ("", "y", "N", "caf"):
            begun = {word: count for word, count in counts.items() if word.startswith(prefix)}
            weight, found = pairs.with_prefix(prefix)
            assert (weight, sorted(found)) == (sum(begun.values()), sorted(begun))
    none = words.pairs_after("")
    assert (none.total, none.novelty, none.count("new"), none.with_prefix()) == (0, 0, 0, (0, []))


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize(
    "text", ["Caf\u00e9", "don\u2019t", "\ufb01ne", "\u1e69", "\u212bngstr\u00f6m", "New  York"]
)
def test_an_entry_is_found_in_any_unicode_form(tmp_path, form, text):
    words = compiled(tmp_path, [(text, 1), ("zebra", 1)])
    (tmp_path / "exact").mkdir()
    exact = compiled(tmp_path / "exact", [(text, 1), ("zebra", 1)], casing="exact")
    written = unicodedata.normalize(form, text)
    assert written in words
    assert written.upper() in words or written.upper().lower() != written.lower()
    assert written in exact
    assert written.swapcase() not in exact
    assert f"{written}x" not in words
    assert written[:-1] not in words


def test_an_entry_is_found_as_a_part_of_a_text(tmp_path):
    words = compiled(tmp_path, [("New York", 1), ("C++", 1), ("bad", 1)])
    for text in ("in New York today", "NEW YORK!", "C++ code", "too bad.", "(bad)"):
        assert words.has_part_in(text), text
    for text in ("in New Jersey", "York New", "badly", "", "newyork", "c"):
        assert not words.has_part_in(text), text


def test_sorting_agrees_with_the_order_of_bytes(tmp_path):
    random = np.random.default_rng(3)
    letters = list("ab\u00e9\U0001f600")
    texts = {"".join(random.choice(letters, random.integers(1, 30))) for _ in range(3000)}
    texts |= {"a" * n for n in range(1, 40)}
    words = compiled(tmp_path, [(text, 1) for text in texts], casing="exact")
    assert [text for text, _ in words.entries()] == sorted(texts)
    assert all(text in words for text in texts)
    assert not any(f"{text}b" in words for text in texts - {text[:-1] for text in texts})


def test_an_empty_list_has_nothing(tmp_path):
    words = compiled(tmp_path, [])
    assert list(words.entries()) == []
    assert words.total == 0
    assert "a" not in words
    assert run_to_completion(words.with_prefix([""], 3, ignore_case=True)) == (0, [])


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 500])
def test_a_cut_file_is_refused(tmp_path, size):
    compiled(tmp_path, [("alpha", 1), ("beta gamma", 2)])
    path = tmp_path / "terms.words"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ManifestError):
        WordList(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays | {"info": np.frombuffer(b'{"format": 2}', np.uint8)},
        lambda arrays: arrays | {"info": np.frombuffer(b"[]", np.uint8)},
        lambda arrays: arrays | {"exact.starts": arrays["exact.starts"][::-1].copy()},
        lambda arrays: arrays | {"pairs.weights": arrays["pairs.weights"][:0]},
        lambda arrays: {name: array for name, array in arrays.items() if name != "entries.starts"},
    ],
)
def test_a_file_of_another_content_is_refused(tmp_path, change):
    compiled(tmp_path, [("alpha", 1), ("beta gamma", 2)])
    arrays = {name: array.copy() for name, array in map_tensors(tmp_path / "terms.words").items()}
    write_tensors(tmp_path / "other.words", change(arrays))
    with pytest.raises(ManifestError, match=r"other\.words"):
        WordList(tmp_path / "other.words")
