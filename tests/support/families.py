"""A small model of every family over one vocabulary, and this machine's torch devices."""

import functools

import numpy as np
import torch

from models.cache.config import CacheConfig, MarginalsConfig
from models.cache.model import CacheModel
from models.language_model import Vocabulary
from models.mixture import MixtureModel
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.ngram.cuda.model import TensorNGramModel
from models.tokenizers import WordTokenizer
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
"""Devices to test; a machine without CUDA collects no CUDA tests."""


NEURAL = {
    "lstm": {"cell": "lstm"},
    "gru": {"cell": "gru"},
    "elman": {"cell": "elman"},
    "mingru": {"cell": "mingru"},
    "feed-forward": {"cell": "feed-forward", "window": 3},
    "attentive elman": {"cell": "elman", "attention": "scaled", "attention_window": 4, "attention_size": 5},
    "adaptive": {"output": "adaptive", "cutoffs": (7, 12)},
    "every option": {
        "layers": 3,
        "residual": True,
        "layer_norm": True,
        "learned_state": True,
        "attention": "additive",
        "attention_window": 6,
    },
}
"""Settings of the small neural models that differ from the defaults, by name."""

NAMES = (
    "ngram",
    "tensor ngram",
    *NEURAL,
    "mixture",
    "nested mixture",
    "mixture by context",
    "cache",
    "unigram cache",
    "cached mixture",
    "adapted cache",
)
WORDS = [f"w{i}" for i in range(37)]  # deliberately an odd size


@functools.cache
def tokenizer() -> WordTokenizer:
    """Words w0 … w36."""
    return WordTokenizer(Vocabulary(WORDS))


@functools.cache
def corpus(sentences: int = 400, seed: int = 0) -> EncodedCorpus:
    """Sentences in which each word depends on its predecessor; `<unk>` occurs."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(sentences):
        ids = np.cumsum(random.integers(0, 5, random.integers(1, 12))) % len(WORDS) + 3
        ids[random.random(len(ids)) < 0.03] = 0
        rows.append(ids)
    words = sum(map(len, rows))
    return EncodedCorpus.from_sentences(rows, num_words=words, num_bytes=4 * words)


@functools.cache
def model(name: str):  # noqa: PLR0911 - one per family
    """Return the small model of a family."""
    vocabulary = tokenizer().vocabulary
    if name == "ngram":
        return estimate(corpus(), vocabulary, order=4, progress=Progress()).model
    if name == "tensor ngram":
        return TensorNGramModel(model("ngram"), device=DEVICES[-1])
    if name in NEURAL:
        torch.manual_seed(7)
        config = NetworkConfig(**{"layers": 2, "embedding_size": 13, "hidden_size": 17, **NEURAL[name]})
        return NeuralModel(Network(config, len(vocabulary)), vocabulary)
    if name == "mixture":
        return MixtureModel([model("ngram"), model("lstm")], [0.7, 0.3])
    if name == "mixture by context":
        table = [[0.2, 0.8], [0.4, 0.6], [0.6, 0.4], [0.9, 0.1]]
        return MixtureModel([model("lstm"), model("ngram")], [0.3, 0.7], weights_by_context=table)
    if name in {"cache", "cached mixture"}:
        config = CacheConfig(kind="continuous", window=6, flatness=3.0, half_life=4.0, weight=0.25)
        return CacheModel(model("lstm" if name == "cache" else "mixture by context"), config)
    if name == "unigram cache":
        return CacheModel(model("ngram"), CacheConfig(kind="unigram", window=9, half_life=7.0, weight=0.2))
    if name == "adapted cache":
        marginals = MarginalsConfig(half_life=5.0, exponent=1.2, prior=2.0, floor=0.3)
        config = CacheConfig(
            kind="continuous",
            window=7,
            flatness=3.0,
            half_life=4.0,
            weight=0.25,
            gate=(-0.4, 0.5, 0.9),
            marginals=marginals,
        )
        frequencies = np.random.default_rng(3).dirichlet(np.ones(len(vocabulary))).astype(np.float32)
        return CacheModel(model("mixture by context"), config, frequencies)
    return MixtureModel([model("mixture"), model("gru")], [0.4, 0.6])
