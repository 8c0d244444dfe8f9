"""Checking texts with small models, at once: for the tests of `models.checking`."""

import functools

from models.checking.candidates import run_calls
from models.checking.checker import Checker, find_issues
from models.checking.error_model import CheckSettings
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import Vocabulary
from tests.fakes import FakeModel, fake_vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent
from training.tokenizer import TokenizerSettings, learn_tokenizer

SENTENCES = [
    "the cat sat on the mat",
    "a dog ran to the house",
    "he took off his hat",
    "she thought of the old house",
    "we think of the cat in the house",
    "the dog took the hat off the mat",
] * 8


def fake(extra=(), **options):
    """A made-up bigram model of words, and its tokenizer."""
    tokenizer = WordTokenizer(fake_vocabulary(extra))
    return FakeModel(tokenizer.vocabulary, **options), tokenizer


@functools.cache
def trigram(kind="word"):
    """A trigram model of a few sentences over words, pieces or characters, and its tokenizer."""
    tokenizer = learn_tokenizer(TokenizerSettings(kind=kind), SENTENCES, progress=Silent())
    corpus = EncodedCorpus.from_sentences(tokenizer.encode_all(SENTENCES), num_words=0, num_bytes=0)
    order = 5 if kind == "char" else 3
    return estimate(corpus, tokenizer.vocabulary, order=order, progress=Silent()).model, tokenizer


def characters(letters):
    """A made-up bigram model of characters, and its tokenizer."""
    tokenizer = CharacterTokenizer(Vocabulary(letters))
    return FakeModel(tokenizer.vocabulary), tokenizer


def weigh(model, tokenizer, text, **options):
    """What comes out for each batch of a text."""
    checker = Checker(tokenizer)
    works = checker.rescore_all(model, list(checker.sentences(text)), CheckSettings(**options))
    return [run_calls(model, work) for work in works]


def check(model, tokenizer, text, *, threshold=0.5, max_suggestions=5, **options):
    """The issues of a text."""
    tokens = tokenizer.vocabulary.tokens
    return [
        issue
        for weighed in weigh(model, tokenizer, text, **options)
        for issue in find_issues(weighed, tokens, threshold=threshold, max_suggestions=max_suggestions)
    ]
