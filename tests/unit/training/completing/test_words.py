"""Lines as they are typed: words, keys, marks."""

import pytest

from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import Vocabulary
from training.evaluation.autocomplete import sample_lines, typing_line

WORDS = WordTokenizer(Vocabulary(["a"]))
CHARACTERS = CharacterTokenizer(Vocabulary("a"))


def spelled(line):
    return [line.text[word.begin : word.end] for word in line.words]


def test_words_of_a_word_tokenizer_stand_between_spaces():
    line = typing_line(WORDS, "so , he's in  it")
    assert spelled(line) == ["so", ",", "he's", "in", "it"]
    assert [word.joined for word in line.words] == [False, True, True, True, False]
    assert all(word.spaced for word in line.words)
    assert line.num_keys == 17


def test_words_of_a_pattern_are_its_matches():
    line = typing_line(WordTokenizer(Vocabulary(["a"]), pattern=r"\w+|[^\w\s]"), "so, it")
    assert spelled(line) == ["so", ",", "it"]
    assert [word.spaced for word in line.words] == [False, True, True]


def test_words_of_characters_are_runs_of_word_characters():
    line = typing_line(CHARACTERS, "“Don't,” well-known cafe\u0301s said — -3.")
    assert spelled(line) == ["Don't", "well-known", "cafe\u0301s", "said", "3"]
    assert [word.spaced for word in line.words] == [False, True, True, True, False]
    assert [word.joined for word in line.words] == [False, False, True, True, False]


@pytest.mark.parametrize("text", ["", "-", "--", "'a", "a-", "a--b", "-a'b-"])
def test_joiners_join_only_between_word_characters(text):
    runs = spelled(typing_line(CHARACTERS, text))
    assert runs == {"'a": ["a"], "a-": ["a"], "a--b": ["a", "b"], "-a'b-": ["a'b"]}.get(text, [])


@pytest.mark.parametrize("tokenizer", [WORDS, CHARACTERS])
def test_marks_of_unknown_words_are_neither_typed_nor_words(tokenizer):
    line = typing_line(tokenizer, "<unk> so <unk> it x<unk>")
    assert line.num_keys == len("so it x<unk> ")
    assert spelled(line)[:2] == ["so", "it"]
    assert not line.words[1].joined


def test_case_does_not_count_where_the_tokenizer_lower_cases():
    line = typing_line(WordTokenizer(Vocabulary(["a"]), lowercase=True), "So It")
    assert spelled(line) == ["so", "it"]


def test_lines_are_drawn_until_there_are_words_enough_and_always_the_same():
    texts = [f"line {number} of five words" for number in range(50)]
    drawn = sample_lines(texts, 51)
    assert len(drawn) == 11
    assert drawn == sample_lines(texts, 51) == sorted(drawn, key=texts.index)
    assert sample_lines(texts, 10_000) == texts


def test_the_first_lines_are_drawn_if_they_are_to_hang_together():
    assert sample_lines(["a b", "c <unk>", "d e", "f"], 4, consecutive=True) == ["a b", "c <unk>", "d e"]
