"""A small model of every family over one vocabulary, for the invariants that all share."""

import functools

import numpy as np
import torch

from models.mixture import MixtureModel
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.ngram.device.model import TensorNGramModel
from models.tokenizers import WordTokenizer
from models.vocabulary import Vocabulary
from tests.devices import DEVICES
from training.corpora.encoded import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent

NAMES = ("ngram", "tensor ngram", "lstm", "gru", "mixture", "nested mixture")
WORDS = [f"w{i}" for i in range(37)]  # an odd width, on purpose


@functools.cache
def tokenizer() -> WordTokenizer:
    """Words w0 … w36."""
    return WordTokenizer(Vocabulary(WORDS))


@functools.cache
def corpus(sentences: int = 400, seed: int = 0) -> EncodedCorpus:
    """Sentences in which a word depends on the one before; `<unk>` occurs."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(sentences):
        ids = np.cumsum(random.integers(0, 5, random.integers(1, 12))) % len(WORDS) + 3
        ids[random.random(len(ids)) < 0.03] = 0
        rows.append(ids)
    words = sum(map(len, rows))
    return EncodedCorpus.from_sentences(rows, num_words=words, num_bytes=4 * words)


@functools.cache
def model(name: str):
    """The small model of a family."""
    vocabulary = tokenizer().vocabulary
    if name == "ngram":
        return estimate(corpus(), vocabulary, order=4, progress=Silent()).model
    if name == "tensor ngram":
        return TensorNGramModel(model("ngram"), device=DEVICES[-1])
    if name in {"lstm", "gru"}:
        torch.manual_seed(7)
        config = NetworkConfig(cell=name, layers=2, embedding_size=13, hidden_size=17)
        return NeuralModel(Network(config, len(vocabulary)), vocabulary)
    if name == "mixture":
        return MixtureModel([model("ngram"), model("lstm")], [0.7, 0.3])
    return MixtureModel([model("mixture"), model("gru")], [0.4, 0.6])
