"""Words within a few edits, and the tokens changed by a replacement."""

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from models.checking.candidates import token_replacer
from models.checking.lexicon import FuzzyLexicon
from models.checking.sentences import sentence_splitter_for
from tests.support.text_models import trigram

RANDOM = np.random.default_rng(1)
WORDS = sorted(
    {"".join(RANDOM.choice(list("abcde\u00e9\U0001f600"), RANDOM.integers(0, 7))) for _ in range(600)}
)


@pytest.mark.parametrize("max_edits", [1, 2])
@pytest.mark.parametrize("word", ["abc", "a", "", "edcba", "\U0001f600\u00e9b", "zzzz", "abcdeabcde"])
def test_fuzzy_matches_equal_a_full_comparison(word, max_edits):
    near = FuzzyLexicon(WORDS).fuzzy_matches(word, max_edits)
    expected = {w: d for w in WORDS if 0 < (d := OSA.distance(word, w)) <= max_edits}
    found = {WORDS[i]: d for i, d in zip(near.indices.tolist(), near.edits.tolist(), strict=True)}
    assert found == expected


def test_a_word_asked_for_again_is_not_searched_again(monkeypatch):
    lexicon = FuzzyLexicon(WORDS)
    first = lexicon.fuzzy_matches("abc", 2)
    monkeypatch.setattr(lexicon, "_search", None)
    assert lexicon.fuzzy_matches("abc", 2) is first


def test_cached_queries_are_bounded(monkeypatch):
    monkeypatch.setattr("models.checking.lexicon._MAX_CACHED_QUERIES", 3)
    lexicon = FuzzyLexicon(WORDS)
    for word in ("a", "b", "a", "c", "d", "e"):
        lexicon.fuzzy_matches(word, 1)
    assert [word for word, _ in lexicon._cached] == ["c", "d", "e"]


def test_cached_matches_are_bounded(monkeypatch):
    monkeypatch.setattr("models.checking.lexicon._MAX_CACHED_MATCHES", 100)
    lexicon = FuzzyLexicon(WORDS)
    sizes = [lexicon.fuzzy_matches(word, 2).indices.size for word in ("abc", "bcd", "cde", "dea")]
    assert 0 < max(sizes) <= 100 < sum(sizes)
    assert sum(near.indices.size for near in lexicon._cached.values()) <= 100


def test_a_list_without_words_has_none_near():
    assert FuzzyLexicon([]).fuzzy_matches("abc", 2).indices.size == 0


def test_words_longer_than_all_of_the_list_are_not_remembered():
    lexicon = FuzzyLexicon(["cat", "house"])
    assert lexicon.fuzzy_matches("h" * 8, 2).indices.size == 0
    assert not lexicon._cached
    assert lexicon.fuzzy_matches("houses", 2).indices.tolist() == [1]
    assert len(lexicon._cached) == 1


TEXTS = ["the cat sat on the mat", "  (the cat), sat!  on", "\u05e9\u05dc the \U0001f600 cat"]


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("new", ["dog", "old house", "cats"])
def test_replaced_tokens_are_those_of_the_replaced_text(kind, text, new):
    """Also with pieces, because each word between white space is tokenised alone."""
    cutter = sentence_splitter_for(trigram(kind)[1])
    sentence = cutter.sentence(text)
    start = text.index("cat")
    first, last, tokens = token_replacer(cutter, sentence, start, start + 3)[0](new)
    ids = sentence.ids.tolist()
    replaced = [*ids[:first], *tokens, *ids[last:]]
    assert replaced == cutter.sentence(text[:start] + new + text[start + 3 :]).ids.tolist()


def test_no_more_tokens_change_than_must():
    cutter = sentence_splitter_for(trigram()[1])
    sentence = cutter.sentence("the cat sat on the mat")
    first, last, tokens = token_replacer(cutter, sentence, 4, 11)[0]("cat ran")
    assert (first, last, len(tokens)) == (2, 3, 1)


def test_the_same_text_changes_nothing():
    cutter = sentence_splitter_for(trigram()[1])
    assert token_replacer(cutter, cutter.sentence("the cat"), 4, 7)[0]("cat") is None


@pytest.mark.parametrize("kind", ["word", "unigram"])
def test_a_word_that_is_left_out_takes_its_space_with_it(kind):
    cutter = sentence_splitter_for(trigram(kind)[1])
    sentence = cutter.sentence("the cat sat")
    first, last, _ = token_replacer(cutter, sentence, 4, 7)[0]("")
    ids = sentence.ids.tolist()
    assert [*ids[:first], *ids[last:]] == cutter.sentence("the sat").ids.tolist()


def test_an_unknown_word_for_another_is_a_change():
    cutter = sentence_splitter_for(trigram()[1])
    assert token_replacer(cutter, cutter.sentence("the newt sat"), 4, 8)[0]("gnu") == (1, 2, (0,))
