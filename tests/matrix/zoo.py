"""A small language, each kind of tokenizer for it, and a tiny model of each family."""

import functools

import numpy as np
import torch

from models.cache.config import CacheConfig
from models.cache.model import CacheModel
from models.mixture import MixtureModel
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests.support import families
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate, make_smoothing
from training.progress import Progress
from training.recipe import NGramSettings
from training.static_mixture import mix_statically
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

TOKENIZERS = {
    "word": {"kind": "word", "min_count": 2},
    "pattern": {"kind": "word", "pattern": r"\w+|[^\w\s]", "lowercase": True, "min_count": 2},
    "char": {"kind": "char"},
    "bpe": {"kind": "bpe", "vocab_size": 320},
    "unigram": {"kind": "unigram", "vocab_size": 296},
    "folded": {"kind": "bpe", "vocab_size": 90, "normalization": "nmt_nfkc_cf", "byte_fallback": False},
}
"""Tokenizer settings by name; `folded` normalises its input and has no bytes for unknown characters."""

LOSSLESS = frozenset({"bpe", "unigram"})
"""Tokenizers that reproduce any text."""

TEXTS = (
    "The cat sat on the mat.",
    "A dog ran to the house, and a cat slept.",
    "the naïve owl  saw 漢字 <s> here",
    "zzz",
)
"""Test texts: known and unknown words, two spaces, characters unknown to all tokenizers, spelled control tokens."""

_NOUNS, _PLACES = ("cat", "dog", "owl", "hen", "naïve café"), ("mat", "bed", "house", "roof")
_VERBS = ("sat on", "ran to", "slept on", "saw")


@functools.cache
def sentences(count: int = 160, seed: int = 3) -> tuple[str, ...]:
    """Return lines with recurring words; some words occur once."""
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
    """Return the tokenizer with a name."""
    return learn_tokenizer(TokenizerSettings(**TOKENIZERS[name]), list(sentences()))


@functools.cache
def encoded(name: str, *, held_out: bool = False) -> EncodedCorpus:
    """Return the language in a tokenizer's ids: the training lines, or held-out ones."""
    lines = sentences(40, seed=4) if held_out else sentences()
    return encode_corpus(tokenizer(name), list(lines))


SMOOTHINGS = (
    "mle",
    "laplace",
    "good-turing",
    "jelinek-mercer",
    "witten-bell",
    "absolute",
    "kneser-ney",
    "modified-kneser-ney",
)
"""Each smoothing with its own code; `add-k` shares that of `laplace`."""

NGRAMS = {
    **{name: {"smoothing": make_smoothing(name)} for name in SMOOTHINGS},
    "pruned": {"prune": (0, 0, 1), "prune_entropy": 1e-4},
    "quantised": {"quantise": True},
}
"""Arguments of `estimate` for each n-gram model."""

NETWORKS = {
    **{name.replace(" ", "-"): options for name, options in families.NEURAL.items()},
    "modern-feed-forward": {
        "cell": "feed-forward",
        "window": 3,
        "activation": "relu",
        "residual": True,
        "layer_norm": True,
    },
    "self-normalised": {"self_normalised": True},
    "backward-lstm": {"cell": "lstm"},
}
"""Configurations of the networks: those of the family tests, and more."""

PARTS = {
    "mixture": ("modified-kneser-ney", "lstm"),
    "mixture-by-context": ("gru", "modified-kneser-ney"),
    "nested-mixture": ("mixture", "elman"),
    "unigram-cache": ("witten-bell",),
    "cache": ("lstm",),
    "cached-mixture": ("mixture-by-context",),
    "backward-mixture": ("backward-ngram", "backward-lstm"),
}
"""Parts of composite models."""

BACKWARD = ("backward-ngram", "backward-lstm", "backward-mixture")
"""Families that read from right to left."""

FAMILIES = (*NGRAMS, "static-mixture", "backward-ngram", *NETWORKS, *PARTS)
"""All families, each after its parts."""

UNNORMALISED = frozenset({"quantised"})
"""Families whose rows sum only approximately to one."""

_ORDER = 3
_SHARPNESS = 1.5
"""Factor of the weights of untrained networks, so that their distributions are not flat."""


@functools.cache
def model(family: str, tokens: str):
    """Return the model of a family over a tokenizer's vocabulary."""
    if family in NGRAMS:
        return _ngram(tokens, **NGRAMS[family])
    if family == "backward-ngram":
        return _ngram(tokens, backward=True)
    if family == "static-mixture":
        parts = [model("absolute", tokens), model("witten-bell", tokens)]
        held_out = encoded(tokens, held_out=True)
        return mix_statically(
            parts, tokenizer(tokens).vocabulary, held_out, NGramSettings(), progress=Progress()
        )[0]
    if family in PARTS:
        return _composite(family, [model(part, tokens) for part in PARTS[family]])
    return _network(tokens, **NETWORKS[family])


def networks_in(family: str) -> set[str]:
    """Return the networks in a model of a family."""
    if family in PARTS:
        return set().union(*map(networks_in, PARTS[family]))
    return {family} & set(NETWORKS)


def _ngram(tokens, *, backward=False, **options):
    corpora = [encoded(tokens), encoded(tokens, held_out=True)]
    train, held_out = (corpus.reversed() if backward else corpus for corpus in corpora)
    vocabulary = tokenizer(tokens).vocabulary
    return estimate(train, vocabulary, order=_ORDER, held_out=held_out, progress=Progress(), **options).model


def _network(tokens, **options):
    vocabulary = tokenizer(tokens).vocabulary
    torch.manual_seed(len(str(options)))
    config = NetworkConfig(**{"layers": 2, "embedding_size": 13, "hidden_size": 17, **options})
    network = Network(config, len(vocabulary))
    with torch.no_grad():
        for param in network.parameters():
            param.mul_(_SHARPNESS)
    return NeuralModel(network, vocabulary)


def _composite(family, parts):
    if family == "mixture-by-context":
        table = [[0.8, 0.2], [0.5, 0.5], [0.2, 0.8]]  # one row per context length of order 3
        return MixtureModel(parts, [0.4, 0.6], weights_by_context=table)
    if family == "unigram-cache":
        return CacheModel(*parts, CacheConfig(kind="unigram", window=9, half_life=7.0, weight=0.2))
    if "cache" in family:
        config = CacheConfig(kind="continuous", window=6, flatness=3.0, half_life=4.0, weight=0.25)
        return CacheModel(*parts, config)
    return MixtureModel(parts, [0.6, 0.4])
