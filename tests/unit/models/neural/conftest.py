"""A tiny vocabulary, models over it, and texts of predictable tokens."""

import numpy as np
import pytest
import torch

from models.language_model import Vocabulary
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests.support import families
from training.corpus import EncodedCorpus


@pytest.fixture
def vocabulary():
    return Vocabulary([f"w{i}" for i in range(12)])


@pytest.fixture(params=families.NEURAL)
def model(request, vocabulary):
    torch.manual_seed(1)
    options = {"layers": 2, "embedding_size": 6, "hidden_size": 10, **families.NEURAL[request.param]}
    config = NetworkConfig(**options)
    return NeuralModel(Network(config, len(vocabulary)), vocabulary)


@pytest.fixture
def counting():
    """Sentences that count up from a random number, such as 7 8 9; only the first token is uncertain."""
    generator = np.random.default_rng(2)
    starts = generator.integers(3, 9, 300)
    return EncodedCorpus.from_sentences([range(start, start + 6) for start in starts])
