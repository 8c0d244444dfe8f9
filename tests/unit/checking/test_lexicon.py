"""Words a few edits away, against comparing with every word."""

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from models.checking.lexicon import FuzzyLexicon

RANDOM = np.random.default_rng(1)
WORDS = sorted(
    {"".join(RANDOM.choice(list("abcde\u00e9\U0001f600"), RANDOM.integers(0, 7))) for _ in range(600)}
)


@pytest.mark.parametrize("max_edits", [1, 2])
@pytest.mark.parametrize("word", ["abc", "a", "", "edcba", "\U0001f600\u00e9b", "zzzz", "abcdeabcde"])
def test_what_is_near_is_all_that_a_full_comparison_finds(word, max_edits):
    near = FuzzyLexicon(WORDS).fuzzy_matches(word, max_edits)
    expected = {w: d for w in WORDS if 0 < (d := OSA.distance(word, w)) <= max_edits}
    found = {WORDS[i]: d for i, d in zip(near.indices.tolist(), near.edits.tolist(), strict=True)}
    assert found == expected


def test_a_word_asked_for_again_is_not_searched_again(monkeypatch):
    lexicon = FuzzyLexicon(WORDS)
    first = lexicon.fuzzy_matches("abc", 2)
    monkeypatch.setattr(lexicon, "_search", None)
    assert lexicon.fuzzy_matches("abc", 2) is first


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("models.checking.lexicon._MAX_CACHED_QUERIES", 3)
    lexicon = FuzzyLexicon(WORDS)
    for word in ("a", "b", "a", "c", "d", "e"):
        lexicon.fuzzy_matches(word, 1)
    assert [word for word, _ in lexicon._remembered] == ["c", "d", "e"]


def test_what_is_remembered_is_bounded_by_the_words_near_too(monkeypatch):
    monkeypatch.setattr("models.checking.lexicon._MAX_CACHED_MATCHES", 100)
    lexicon = FuzzyLexicon(WORDS)
    sizes = [lexicon.fuzzy_matches(word, 2).indices.size for word in ("abc", "bcd", "cde", "dea")]
    assert 0 < max(sizes) <= 100 < sum(sizes)
    assert sum(near.indices.size for near in lexicon._remembered.values()) <= 100


def test_a_list_without_words_has_none_near():
    assert FuzzyLexicon([]).fuzzy_matches("abc", 2).indices.size == 0


def test_words_longer_than_all_of_the_list_are_not_remembered():
    lexicon = FuzzyLexicon(["cat", "house"])
    assert lexicon.fuzzy_matches("h" * 8, 2).indices.size == 0
    assert not lexicon._remembered
    assert lexicon.fuzzy_matches("houses", 2).indices.tolist() == [1]
    assert len(lexicon._remembered) == 1
