"""The boundary between context and text, for every kind of tokenizer."""

import io
from types import SimpleNamespace

import pytest
import sentencepiece

from models.errors import InputError
from models.text_model import ContextEncoder, encode_after
from models.tokenizers import PieceTokenizer, WordTokenizer
from tests.matrix import zoo
from tests.support.fake_models import fake_vocabulary


@pytest.fixture(scope="module")
def pieces():
    """Small SentencePiece tokenizer."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["the cat sat on the mat", "a dog ran of the house"] * 20),
        model_writer=out,
        vocab_size=60,
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        minloglevel=2,
    )
    return PieceTokenizer(out.getvalue())


def split(loaded, context, text):
    sequence = encode_after(loaded, context, text, param="text")
    before, after = ([loaded.model.vocabulary[i] for i in ids] for ids in sequence)
    return before, after


@pytest.mark.parametrize(
    ("context", "text", "before", "after"),
    [
        ("the cat", " sat", ["the", "cat"], ["sat"]),
        ("the cat ", "sat", ["the", "cat"], ["sat"]),
        ("the ca", "t sat", ["the"], ["cat", "sat"]),
        ("the xq", "zz sat", ["the"], ["<unk>", "sat"]),
        ("the xq ", "zz", ["the", "<unk>"], ["<unk>"]),
        ("", "the cat", [], ["the", "cat"]),
        ("  ", "the", [], ["the"]),
    ],
)
def test_a_word_across_the_border_is_the_texts(words, context, text, before, after):
    assert split(words, context, text) == (before, after)


def test_words_by_a_pattern_are_cut_as_in_the_whole(load):
    model = load(
        WordTokenizer(fake_vocabulary(["3.5", "3", "."]), pattern=r"\d+\.\d+|\w+|\S", lowercase=True)
    )
    assert split(model, "THE 3", ".5 cat") == (["the"], ["3.5", "cat"])
    assert split(model, "the 3", ". cat") == (["the", "3"], [".", "cat"])


def test_characters_are_cut_where_the_text_begins(characters):
    assert split(characters, "ab?", "?c") == (["a", "b", "<unk>"], ["<unk>", "c"])


@pytest.mark.parametrize("text", ["the cat sat on the mat", "a dog ran of the house"])
def test_pieces_end_within_the_context_or_belong_to_the_text(load, pieces, text):
    """Split at every position; pieces before the boundary spell no more than the context."""
    model = load(pieces)
    for cut in range(1, len(text)):
        before, after = encode_after(model, text[:cut], text[cut:], param="text")
        assert [*before, *after] == pieces.encode(text)
        assert len(pieces.decode(before)) <= cut < len(pieces.decode([*before, after[0]]))


def test_ids_follow_ids(words):
    assert split(words, (3,), (4, 5)) == (["the"], ["cat", "sat"])


def test_text_and_ids_are_not_mixed(words):
    with pytest.raises(InputError, match="context is text but text is token ids"):
        encode_after(words, "the", (4,), param="text")


@pytest.mark.parametrize("name", list(zoo.TOKENIZERS))
@pytest.mark.parametrize(
    "context", ["the cat sat on the roof. ", "a漢字 naïve  café,", "aaaaaaaaaaaa", "\n \u3000 "]
)
def test_a_long_context_is_tokenised_once_and_as_with_each_text(name, context, monkeypatch):
    loaded = SimpleNamespace(tokenizer=zoo.tokenizer(name))
    encoder, context = ContextEncoder(loaded), context * 200
    texts = ["", "t", " The cat", "\u0301", "s", "漢", " "]
    expected = [encode_after(loaded, context, text, param="text") for text in texts]
    encoder.encode(context, "", param="text")
    read = []
    own = loaded.tokenizer.normaliser
    monkeypatch.setattr(loaded.tokenizer, "normaliser", lambda text: read.append(len(text)) or own(text))
    for text, (ids, own_ids) in zip(texts, expected, strict=True):
        encoded = encoder.encode(context, text, param="text")
        assert (encoded.context.tolist(), encoded.text.tolist()) == (ids.tolist(), own_ids.tolist())
    if name == "word" and " " in context[:300]:
        assert max(read) < 1000
