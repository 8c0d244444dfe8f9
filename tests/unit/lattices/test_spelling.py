"""Words as tokens: alone they must have those that they have in every sentence."""

import pytest

from models.errors import UnsupportedParameterError
from models.lattices.graph import LabelTokenizer
from models.tokenizers import WordTokenizer
from models.vocabulary import EOS, UNK, Vocabulary
from training.progress import Silent
from training.tokenizer import TokenizerSettings, learn_tokenizer

TEXT = ["the cat sat on the mat .", "the dog ran to the cat !", "Über naïve café"] * 30
WORDS = ["", "the", "catamaran", "sat", "µ", "Über"]


def learn(**settings):
    return learn_tokenizer(TokenizerSettings(**settings), TEXT, progress=Silent())


@pytest.mark.parametrize(
    "settings",
    [{"kind": "word"}, {"kind": "bpe", "vocab_size": 300}, {"kind": "unigram", "vocab_size": 280}],
    ids=lambda settings: settings["kind"],
)
def test_the_tokens_of_words_make_up_those_of_a_sentence(settings):
    tokenizer = learn(**settings)
    spelling = LabelTokenizer(tokenizer).label_tokens(WORDS)
    sentence = [3, 1, 2, 4, 4, 5, 1]
    ids = [int(t) for label in sentence for t in spelling.tokens[label, : spelling.lengths[label]]]
    assert ids == tokenizer.encode(" ".join(WORDS[label] for label in sentence))
    assert spelling.tokens[spelling.end, : spelling.lengths[spelling.end]].tolist() == [EOS]


def test_words_that_the_model_does_not_know_are_counted_and_are_one_to_it():
    spelling = LabelTokenizer(WordTokenizer(Vocabulary(["a", "b"]))).label_tokens(["", "a", "x", "b", "y"])
    assert spelling.num_unknown.tolist() == [0, 0, 1, 0, 1, 0]
    assert spelling.canonical.tolist() == [0, 1, 2, 3, 2, 5]
    assert spelling.tokens[2, 0] == UNK


def test_the_label_without_a_word_has_no_tokens():
    spelling = LabelTokenizer(WordTokenizer(Vocabulary(["a"]))).label_tokens(["", "a"])
    assert spelling.lengths.tolist() == [0, 1, 1]
    assert spelling.num_words.tolist() == [0, 1, 0]


def test_characters_are_refused():
    with pytest.raises(UnsupportedParameterError, match=r"the word 'the' has 3 tokens, and said twice 7"):
        LabelTokenizer(learn(kind="char")).label_tokens(WORDS)


def test_a_pattern_that_splits_words_is_fine_as_long_as_it_keeps_to_them():
    tokenizer = learn(kind="word", pattern=r"\w+|[^\w\s]", lowercase=True)
    assert LabelTokenizer(tokenizer).label_tokens(["", "Cat!", "sat"]).lengths.tolist() == [0, 2, 1, 1]


def test_tokens_that_reach_beyond_a_space_are_refused():
    tokenizer = learn(kind="word", pattern=r"the cat|\w+")
    with pytest.raises(UnsupportedParameterError, match=r"' the cat' reaches beyond a space"):
        LabelTokenizer(tokenizer)
