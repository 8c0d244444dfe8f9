"""A small SentencePiece tokenizer and an n-gram model of its pieces, for tests of completions."""

import functools

import numpy as np

from models.completion.prefix import split_prefix
from models.completion.search import CompletionSearch, CompletionSettings
from models.completion.token_trie import TokenTrie
from training.ngram.estimate import estimate
from training.progress import Silent
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

TEXT = [
    "the cat sat on the mat",
    "a cat can't sit on that hat",
    "hats, mats, cats: that's it",
    "this it is, the catalogue of hats",
    "Paris is the cat's home",
]


@functools.cache
def learnt_pieces(kind, **options):
    """Pieces of a few words; bytes for all else."""
    recipe = TokenizerSettings(kind=kind, **({"vocab_size": 290} if kind != "char" else {}), **options)
    return learn_tokenizer(recipe, TEXT * 20, progress=Silent())


@functools.cache
def spelled_pieces(kind):
    """The same by what they spell."""
    return TokenTrie(learnt_pieces(kind))


@functools.cache
def piece_model(kind):
    """A trigram model of the text in pieces."""
    tokenizer = learnt_pieces(kind)
    corpus = encode_corpus(tokenizer, TEXT * 3, progress=Silent())
    return estimate(corpus, tokenizer.vocabulary, order=3, progress=Silent()).model


def state_after(kind, context):
    """What the model remembers of a context."""
    model, ids = piece_model(kind), learnt_pieces(kind).encode(context)
    return functools.reduce(lambda state, i: model.advance(state, np.array([i])), ids, model.initial_state(1))


def searched(kind, text, **options):
    """A search for what a text goes on as, driven to its end."""
    typed = split_prefix(learnt_pieces(kind), text)
    search = CompletionSearch(spelled_pieces(kind), typed.spelled, CompletionSettings(**options))
    drive(search, piece_model(kind), state_after(kind, typed.context))
    return search


def drive(search, model, state):
    """Answer what a search asks until it has no more to ask; the number of rows of each step."""
    search.update(state, model.next_log_probs(state))
    steps = []
    while (asked := search.next_step()) is not None:
        assert len(asked.state) == len(asked.tokens)
        steps.append(len(asked.tokens))
        state = model.advance(asked.state, asked.tokens)
        search.update(state, model.next_log_probs(state))
    return steps
