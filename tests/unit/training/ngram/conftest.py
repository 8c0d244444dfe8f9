"""The tiny n-gram model of the model tests."""

from tests.unit.models.ngram.conftest import corpus, model, vocabulary  # noqa: F401 - fixtures
