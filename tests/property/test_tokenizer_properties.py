"""Any text through SentencePiece and back; streamed decoding equals decoding of the whole."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tokenizers import Detokenizer
from models.vocabulary import BOS, EOS
from training.progress import Silent
from training.tokenizer import TokenizerSettings, learn_tokenizer

# U+2581 is SentencePiece's own sign for a space: the one character that does not come back
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=40)
KINDS = ["bpe", "unigram"]


@functools.cache
def tokenizer(kind):
    text = ["the cat sat on the mat", "naïve café <s> </s>", "0x41 <0x41> 漢字"] * 40
    return learn_tokenizer(TokenizerSettings(kind=kind, vocab_size=280), text, progress=Silent())


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_text_round_trips(kind, text):
    pieces = tokenizer(kind)
    ids = pieces.encode(text)
    assert pieces.decode(ids) == text
    assert not {BOS, EOS} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), continues=st.booleans())
def test_text_decoded_token_by_token_is_the_text_decoded_whole(kind, data, continues):
    """For any ids, half characters among them."""
    pieces = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(0, len(pieces.vocabulary) - 1), max_size=20))
    stream = Detokenizer(pieces, continues=continues)
    streamed = "".join([*(stream.push(i) for i in ids), stream.flush()])
    whole = pieces.decode([0, *ids]) if continues else pieces.decode(ids)
    assert streamed == (whole.removeprefix(pieces.decode([0])) if continues else whole)
