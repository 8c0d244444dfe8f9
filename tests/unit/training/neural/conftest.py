"""The tiny vocabulary and predictable texts of the network tests."""

from tests.unit.models.neural.conftest import counting, vocabulary  # noqa: F401 - fixtures
