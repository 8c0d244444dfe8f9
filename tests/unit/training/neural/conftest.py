"""The tiny vocabulary and the predictable texts of the networks' own tests."""

from tests.unit.models.neural.conftest import counting, vocabulary  # noqa: F401 - fixtures
