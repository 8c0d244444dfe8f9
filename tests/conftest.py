"""Fixtures that every test folder may use."""

import logging
import os
from pathlib import Path

import pytest
import structlog


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public data folder; where GRAMOPHONE_DATA is set it must be there."""
    named = os.environ.get("GRAMOPHONE_DATA")  # noqa: TID251 - tests are no part of the service
    if not named:
        pytest.skip("GRAMOPHONE_DATA is not set")
    folder = Path(named).resolve()
    assert (folder / "README.md").is_file(), f"GRAMOPHONE_DATA names {folder}, which is no data folder"
    return folder


@pytest.fixture
def logs_as_before():
    """`serve` sends the whole process's log lines elsewhere; put that back."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level, raises = root.handlers, root.level, logging.raiseExceptions
    yield
    structlog.configure(**configuration)
    root.handlers, logging.raiseExceptions = handlers, raises
    root.setLevel(level)
