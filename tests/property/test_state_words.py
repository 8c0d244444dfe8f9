"""Words that are added to a state one by one have the tokens of the text that they make."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import Vocabulary
from service.engine.loaded_model import LoadedModel
from service.engine.state_store import StoredState
from service.use_cases.states import ids_after
from training.progress import Silent
from training.tokenizer import TokenizerSettings, learn_tokenizer

WORDS = st.lists(
    st.one_of(
        st.sampled_from(["the", "cat", "naïve", "漢字", "0x41", "sat"]),
        st.text(
            st.characters(exclude_categories=["C", "Z"], exclude_characters="\u2581"), min_size=1, max_size=8
        ),
    ),
    min_size=1,
    max_size=6,
)
KINDS = ["word", "pattern", "char", "bpe", "unigram"]


@functools.cache
def loaded(kind):
    words = ["the", "cat", "sat", "0x41"]
    if kind == "word":
        tokenizer = WordTokenizer(Vocabulary(words))
    elif kind == "pattern":
        tokenizer = WordTokenizer(Vocabulary(words), pattern=r"\w+|[^\w\s]", lowercase=True)
    elif kind == "char":
        tokenizer = CharacterTokenizer(Vocabulary("abcdehnst 漢"))
    else:
        text = ["the cat sat on the mat", "naïve café <s> </s>", "0x41 <0x41> 漢字"] * 40
        tokenizer = learn_tokenizer(TokenizerSettings(kind=kind, vocab_size=280), text, progress=Silent())
    return LoadedModel("lm@1", SimpleNamespace(tokenizer=tokenizer))


@pytest.mark.parametrize("kind", KINDS)
@given(words=WORDS, spaced=st.booleans())
def test_words_one_by_one_have_the_tokens_of_the_whole(kind, words, spaced):
    """Whether they come with the space before them or without."""
    model, ids = loaded(kind), np.zeros(0, dtype=np.int64)
    for place, word in enumerate(words):
        before = StoredState(model, None, len(ids), int(ids[-1]) if len(ids) else None)
        ids = np.concatenate([ids, ids_after(before, " " + word if spaced and place else word)])
    assert ids.tolist() == model.tokenizer.encode(" ".join(words))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_no_token(kind):
    model = loaded(kind)
    for last in (None, 4):
        assert ids_after(StoredState(model, None, 1, last), "").tolist() == []
