"""Words of a real model are as probable as all ways to spell them in its pieces."""

import codecs

import numpy as np
import pytest

from models.completion.prefix import split_prefix
from models.vocabulary import EOS
from tests.completion_pieces import learnt_pieces, piece_model, searched, state_after
from tests.slow_completion import WORD

SURE, UNSURE, OTHER = range(3)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
@pytest.mark.parametrize("text", ["", "the c", "a cat can'", "hats, m"])
def test_words_are_as_probable_as_their_spellings(kind, text):
    """At least as what surely ends them, but for what was not looked into; at most as what may."""
    search = searched(kind, text, settled=0.0, floor=0.0, max_steps=400)
    typed = split_prefix(learnt_pieces(kind), text)
    likeliest = sorted(search.words, key=search.words.get)[-3:]
    for word in likeliest:
        sure, unsure, _ = spelled_masses(kind, typed, word)
        assert 0.97 * sure <= search.words[word] <= (sure + unsure) * (1 + 1e-5)


def spelled_masses(kind, typed, word):
    """How probable it is that a word comes and ends, that it may have ended, and that it goes on [3]."""
    token_bytes, model = learnt_pieces(kind).token_bytes, piece_model(kind)
    space = b" " if typed.spelled.startswith(b" ") else b""
    target, sums = space + word.encode(), np.zeros(3)

    def go_on(state, spelled, mass):
        row = np.exp(model.next_log_probs(state)[0].astype(float))
        for token in range(EOS, len(token_bytes)):
            longer = spelled + token_bytes[token]
            if token != EOS and target.startswith(longer):
                go_on(model.advance(state, np.array([token])), longer, mass * row[token])
            elif longer.startswith(target):
                sums[_end(longer[len(space) :], word, ended=token == EOS)] += mass * row[token]

    go_on(state_after(kind, typed.context), b"", 1.0)
    return sums


def _end(raw, word, *, ended):
    text, _ = codecs.utf_8_decode(raw, "replace", ended)
    if not ended and text[len(word) :] in {"", "'", "\u2019", "-"}:
        return UNSURE
    return SURE if WORD.match(text).group() == word else OTHER
