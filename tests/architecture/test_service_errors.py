"""Every domain error has its place in the table of answers."""

import inspect

import pytest

from models import errors
from models.errors import LanguageModelError
from service.api_errors import ERROR_STATUSES, error_status

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LanguageModelError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_answered_on_purpose(kind):
    """By its own entry, or that of a class above it other than the root."""
    assert kind is LanguageModelError or any(
        above in ERROR_STATUSES
        for above in kind.__mro__
        if issubclass(above, LanguageModelError) and above is not LanguageModelError
    )


@pytest.mark.parametrize("kind", KINDS)
def test_statuses_are_errors_and_codes_are_own(kind):
    answer = error_status(kind.__new__(kind))
    assert 400 <= answer.status < 600
    assert kind is LanguageModelError or kind.code != LanguageModelError.code
