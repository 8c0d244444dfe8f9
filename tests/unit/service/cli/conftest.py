"""Fixture that runs the command line in the test process."""

from functools import partial

import pytest

from tests.support.services import typed_line


@pytest.fixture
def typed(capsys, monkeypatch):
    """Run `gramophone …`: exit code, standard output, standard error."""
    return partial(typed_line, capsys, monkeypatch)
