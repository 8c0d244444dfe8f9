"""Small models for tests of completion and checking: SentencePiece pieces, words, characters."""

import functools

import numpy as np

from models.arrays import to_numpy
from models.calls import materialize, run_to_completion, view
from models.checking.checker import Checker, find_issues
from models.checking.error_model import CheckSettings
from models.checking.lexicon import UserDictionary
from models.completion.pieces import PieceSearch
from models.completion.prefix import split_prefix
from models.completion.search import CompletionSearch, CompletionSettings, Reading
from models.completion.token_trie import TokenTrie
from models.completion.words import NextWords
from models.language_model import Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer
from tests.support.fake_models import FakeModel, fake_vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress
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
    """SentencePiece tokenizer of a few words, with byte fallback."""
    recipe = TokenizerSettings(kind=kind, **({"vocab_size": 290} if kind != "char" else {}), **options)
    return learn_tokenizer(recipe, TEXT * 20, progress=Progress())


@functools.cache
def spelled_pieces(kind):
    """Trie of the pieces' spellings."""
    return TokenTrie(learnt_pieces(kind))


@functools.cache
def piece_model(kind):
    """Trigram model over pieces."""
    tokenizer = learnt_pieces(kind)
    corpus = encode_corpus(tokenizer, TEXT * 3, progress=Progress())
    return estimate(corpus, tokenizer.vocabulary, order=3, progress=Progress()).model


def state_after(kind, context):
    """Model state after a context."""
    model, ids = piece_model(kind), learnt_pieces(kind).encode(context)
    return functools.reduce(lambda state, i: model.advance(state, np.array([i])), ids, model.initial_state(1))


def searched(kind, text, **options):
    """Run a completion search for a text to its end, over all spellings by default."""
    typed = split_prefix(learnt_pieces(kind), text)
    settings = CompletionSettings(**{"open_vocabulary": True, **options})
    state = state_after(kind, typed.context)
    search = begun_search(spelled_pieces(kind), piece_model(kind), state, typed.spelled, settings)
    drive(search, piece_model(kind))
    return search


def begun_search(tokens, model, state, spelled, settings, *, plain=False):
    """Begin a search after a state, by compiled code where the service has it, unless `plain`."""
    (row,) = to_numpy(model.next_log_probs(state))
    first = Reading(view(state), 0, NextWords.of_row(row) if tokens.whole_words else row)
    is_compiled = settings.max_words == 1 and not (tokens.whole_words or plain)
    return (PieceSearch if is_compiled else CompletionSearch)(tokens, first, spelled, settings)


def drive(search, model):
    """Run the model calls of a search to its end; return the number of rows of each step."""
    steps = []
    while (asked := search.next_step()) is not None:
        before, tokens = asked
        assert len(before) == len(tokens) > 0
        steps.append(len(tokens))
        state = model.advance(materialize(before), tokens)
        rows = to_numpy(model.next_log_probs(state))
        search.update(view(state), [*map(NextWords.of_row, rows)] if search._tokens.whole_words else rows)
    return steps


SENTENCES = [
    "the cat sat on the mat",
    "a dog ran to the house",
    "he took off his hat",
    "she thought of the old house",
    "we think of the cat in the house",
    "the dog took the hat off the mat",
] * 8


def fake(extra=(), **options):
    """Random bigram model of words, and its tokenizer."""
    tokenizer = WordTokenizer(fake_vocabulary(extra))
    return FakeModel(tokenizer.vocabulary, **options), tokenizer


ACCENTED = str.maketrans({"o": "\u00f6", "a": "\u00e4", "e": "\u00e9"})
"""Replacements that make the sentences ones with diacritics."""


@functools.cache
def trigram(kind="word", normalise="none", **settings):
    """Trigram model of a few sentences over words, pieces or characters, and its tokenizer.

    With a Unicode form, the sentences have diacritics.
    """
    sentences = SENTENCES if normalise == "none" else [text.translate(ACCENTED) for text in SENTENCES]
    recipe = TokenizerSettings(kind=kind, normalise=normalise, **settings)
    tokenizer = learn_tokenizer(recipe, sentences, progress=Progress())
    corpus = EncodedCorpus.from_sentences(tokenizer.encode_all(sentences), num_words=0, num_bytes=0)
    order = 5 if kind == "char" else 3
    return estimate(corpus, tokenizer.vocabulary, order=order, progress=Progress()).model, tokenizer


def characters(letters):
    """Random bigram model of characters, and its tokenizer."""
    tokenizer = CharacterTokenizer(Vocabulary(letters))
    return FakeModel(tokenizer.vocabulary), tokenizer


def weigh(model, tokenizer, text, *, dictionary=None, **options):
    """Results of rescoring each batch of a text."""
    checker, settings = (
        Checker(tokenizer),
        CheckSettings(dictionary=UserDictionary(dictionary or {}), **options),
    )
    works = checker.rescore_all(model, list(checker.sentences(text)), settings)
    return [run_to_completion(work) for work in works]


def check(model, tokenizer, text, *, threshold=0.5, max_suggestions=5, **options):
    """Issues found in a text."""
    tokens = tokenizer.vocabulary.tokens
    return [
        issue
        for weighed in weigh(model, tokenizer, text, **options)
        for issue in run_to_completion(
            find_issues(weighed, tokens, threshold=threshold, max_suggestions=max_suggestions)
        )
    ]
