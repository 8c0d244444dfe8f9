"""A small language, and every kind of tokenizer learnt from it."""

import functools

import numpy as np

from training.corpus import EncodedCorpus
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

TOKENIZERS = {
    "word": {"kind": "word", "min_count": 2},
    "pattern": {"kind": "word", "pattern": r"\w+|[^\w\s]", "lowercase": True, "min_count": 2},
    "char": {"kind": "char"},
    "bpe": {"kind": "bpe", "vocab_size": 320},
    "unigram": {"kind": "unigram", "vocab_size": 296},
    "folded": {"kind": "bpe", "vocab_size": 90, "normalization": "nmt_nfkc_cf", "byte_fallback": False},
}
"""Settings of tokenizers by name; `folded` normalises what it reads, and has no bytes to spell the unknown with."""

LOSSLESS = frozenset({"bpe", "unigram"})
"""Tokenizers that give any text back."""

TEXTS = (
    "The cat sat on the mat.",
    "A dog ran to the house, and a cat slept.",
    "the naïve owl  saw 漢字 <s> here",
    "zzz",
)
"""To ask about: seen words and unseen, two spaces, characters that no tokenizer has learnt, spellings of controls."""

_NOUNS, _PLACES = ("cat", "dog", "owl", "hen", "naïve café"), ("mat", "bed", "house", "roof")
_VERBS = ("sat on", "ran to", "slept on", "saw")


@functools.cache
def sentences(count: int = 160, seed: int = 3) -> tuple[str, ...]:
    """Lines in which words come again in like places; some words come once."""
    random = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        noun, place, verb = (str(random.choice(some)) for some in (_NOUNS, _PLACES, _VERBS))
        line = f"{random.choice(['The', 'A'])} {noun} {verb} the {place}"
        line += f", and a {random.choice(_NOUNS)} slept." if number % 3 else "."
        lines.append(line + f" Rare{number} word." if number % 16 == 0 else line)
    return tuple(lines)


@functools.cache
def tokenizer(name: str):
    """The tokenizer of a name."""
    return learn_tokenizer(TokenizerSettings(**TOKENIZERS[name]), list(sentences()))


@functools.cache
def encoded(name: str, *, held_out: bool = False) -> EncodedCorpus:
    """The language in a tokenizer's ids: what is learnt from, or other lines."""
    lines = sentences(40, seed=4) if held_out else sentences()
    return encode_corpus(tokenizer(name), list(lines))
