"""The tokens that spell a text by themselves."""

import io

import pytest
import sentencepiece

from models.decoding.stopping import spellings
from models.tokenizers import CharacterTokenizer, SentencePieceTokenizer, WordTokenizer
from models.vocabulary import Vocabulary

LINES = [
    "the cat sat on the mat",
    "a cathedral and a concatenation",
    "scatter the cattle",
    "mats and hats",
] * 20


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def pieces(request):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        model_type=request.param,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return SentencePieceTokenizer(model.getvalue())


def test_words_are_spelled_in_one_way():
    words = WordTokenizer(Vocabulary(["the", "cat", "sat"]))
    assert spellings(words, "cat") == spellings(words, " cat") == [(4,)]
    assert spellings(words, "the cat") == [(3, 4)]


def test_what_has_an_unknown_word_cannot_be_generated():
    assert spellings(WordTokenizer(Vocabulary(["the", "cat"])), "the dog") == []


def test_characters_are_spelled_one_by_one():
    characters = CharacterTokenizer(Vocabulary("abc "))
    assert spellings(characters, "ab") == [(3, 4)]
    assert spellings(characters, " a") == [(6, 3)]


def test_pieces_spell_a_word_at_its_start_and_in_the_middle(pieces):
    found = spellings(pieces, "cat")
    texts = {b"".join(pieces.token_bytes[i] for i in ids) for ids in found}
    assert texts == {b" cat", b"cat"}
    assert tuple(pieces.encode("cat")) in found


def test_a_leading_space_means_the_start_of_a_word(pieces):
    texts = {b"".join(pieces.token_bytes[i] for i in ids) for ids in spellings(pieces, " cat")}
    assert texts == {b" cat"}
