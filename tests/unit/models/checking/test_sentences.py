"""Sentences, words and character offsets; spelling probabilities and edit strings."""

import itertools
import math

import pytest
from rapidfuzz.distance import OSA

from models.checking.sentences import (
    MAX_SENTENCE_TOKENS,
    SpellingModel,
    common_typo_corrections,
    one_edit_strings,
    sentence_splitter_for,
)
from models.language_model import EOS, Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.words import is_alphabetic, match_case, split_affixes, word_pattern
from tests.support.text_models import trigram

TEXTS = [
    "the cat sat",
    "  two  spaces\tand a tab ",
    "\U0001f600 the \U0001f680cat\U0001f680 sat",
    "\u05e9\u05dc\u05d5\u05dd the \u0633\u0644\u0627\u0645 cat",
    "cafe\u0301 the na\u00efve cat\u0301 sat",
    "one line\r\nthe other\n\nand the last",
    "the\u00a0cat \u2028 sat \x00 \x1f on",
    "\ufb01nd the cat \u2460 mat",
]


def words_of(tokenizer, text):
    return [word for s in sentence_splitter_for(tokenizer).sentences(text, lookahead=4) for word in s.words]


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_where_they_say_whatever_the_text(kind, text):
    words = words_of(trigram(kind)[1], text)
    assert words
    assert all(text[word.start : word.end] == word.text for word in words)
    assert all(a.end <= b.start for a, b in itertools.pairwise(words))


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_every_token_of_plain_words_belongs_to_one(kind):
    (sentence,) = sentence_splitter_for(trigram(kind)[1]).sentences("the cat sat", lookahead=4)
    spans = [(word.first, word.last) for word in sentence.words]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(sentence.ids)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))


def test_a_space_belongs_to_the_word_after_it_and_punctuation_to_none():
    tokenizer = CharacterTokenizer(Vocabulary("abc ,"))
    (sentence,) = sentence_splitter_for(tokenizer).sentences("ab, c", lookahead=4)
    assert [(word.first, word.last) for word in sentence.words] == [(0, 2), (3, 5)]


def test_lower_casing_that_changes_lengths_moves_no_word():
    tokenizer = WordTokenizer(Vocabulary(["i\u0307stanbul", "is"]), lowercase=True)
    words = words_of(tokenizer, "\u0130stanbul IS")
    assert [(word.text, word.start, word.end, word.known) for word in words] == [
        ("\u0130stanbul", 0, 8, True),
        ("IS", 9, 11, True),
    ]


def test_lines_without_a_token_are_no_sentences():
    sentences = list(sentence_splitter_for(trigram()[1]).sentences("\n  \nthe cat\n\t\n", lookahead=4))
    assert [(sentence.text, sentence.offset) for sentence in sentences] == [("the cat", 4)]
    assert list(sentence_splitter_for(trigram()[1]).sentences("", lookahead=4)) == []


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_a_long_line_is_cut_at_words_and_its_parts_know_what_follows(kind):
    tokenizer = trigram(kind)[1]
    text = "the cat sat on the mat " * 200
    parts = list(sentence_splitter_for(tokenizer).sentences(text, lookahead=4))
    assert len(parts) > 1
    assert max(len(part.ids) for part in parts) <= MAX_SENTENCE_TOKENS
    assert [i for part in parts for i in part.ids.tolist()] == tokenizer.encode(text)
    assert [part.continues_line for part in parts] == [False] + [True] * (len(parts) - 1)
    assert all(text[w.start : w.end] == w.text for part in parts for w in part.words)
    for part, following in itertools.pairwise(parts):
        assert part.after.tolist() == following.ids[:4].tolist()
    assert parts[-1].after.tolist() == [EOS]
    assert sum(len(part.words) for part in parts) == 1200


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_a_part_of_a_long_line_has_the_text_of_its_tokens(kind):
    tokenizer = trigram(kind)[1]
    text = "the cat sat  on the mat, " * 200
    for part in sentence_splitter_for(tokenizer).sentences(text, lookahead=4):
        assert tokenizer.encode(part.text) == part.ids.tolist()
        assert text[part.offset :].startswith(part.text)


def test_one_endless_word_is_cut_too():
    tokenizer = CharacterTokenizer(Vocabulary("a"))
    parts = list(sentence_splitter_for(tokenizer).sentences("a" * 2000, lookahead=4))
    assert sum(len(part.ids) for part in parts) == 2000
    assert max(len(part.ids) for part in parts) <= MAX_SENTENCE_TOKENS


def test_known_words_depend_on_the_tokenizer_kind():
    assert [w.known for w in words_of(trigram("word")[1], "the newt")] == [True, False]
    assert [w.known for w in words_of(trigram("char")[1], "the newtz")] == [True, False]
    tokenizer = trigram("unigram")[1]
    whole = [word for word in ("the", "house") if len(tokenizer.encode(word)) == 1]
    assert all(w.known for w in words_of(tokenizer, " ".join(whole)))


def test_bytes_of_rare_characters_leave_pieces_where_they_are():
    tokenizer = trigram("unigram")[1]
    text = "the \u05e9\u05dc cat"
    (sentence,) = sentence_splitter_for(tokenizer).sentences(text, lookahead=4)
    last = sentence.words[-1]
    spelled = b"".join(tokenizer.token_bytes[i] for i in sentence.ids[last.first : last.last])
    assert spelled.decode().strip() == "cat"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("don't well-known", ["don't", "well-known"]),
        ("'quoted' -dash-", ["quoted", "dash"]),
        ("l\u2019\u00e9t\u00e9 snake_case 3rd", ["l\u2019\u00e9t\u00e9", "snake_case", "3rd"]),
        ("e\u0301a\u0300 x--y", ["e\u0301a\u0300", "x", "y"]),
    ],
)
def test_runs_of_word_characters(text, words):
    assert word_pattern().findall(text) == words


def test_probabilities_of_all_strings_sum_to_one():
    """Sums over strings of a and b; strings of other characters have the rest."""
    model = SpellingModel(["ab", "ba", "aab"] * 10)
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
def test_affixes_are_split_from_the_word(token, expected):
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


def test_a_known_word_with_a_no_break_space_is_one_and_others_are_two():
    tokenizer = WordTokenizer(Vocabulary(["il", "a", "Il\u00a0a", "the"]))
    text = "Il\u00a0a the b\u00a0the"
    sentence = sentence_splitter_for(tokenizer).sentence(text)
    assert [word.text for word in sentence.words] == ["Il\u00a0a", "the", "b", "the"]
    assert sentence.ids.tolist()[:2] == tokenizer.encode(text)[:2]
