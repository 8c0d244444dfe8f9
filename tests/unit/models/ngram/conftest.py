"""A tiny n-gram model shared by the unit tests."""

import pytest

from models.language_model import Vocabulary
from models.ngram.model import NGramModel
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary(["i", "love", "cats", "dogs", "chase", "mice", "never-seen"])


@pytest.fixture(scope="session")
def corpus():
    """Three sentences: i love cats / i love dogs / cats chase mice."""
    return EncodedCorpus.from_sentences([[3, 4, 5], [3, 4, 6], [5, 7, 8]])


@pytest.fixture(scope="session")
def model(corpus, vocabulary) -> NGramModel:
    return estimate(corpus, vocabulary, order=3, progress=Progress()).model
