"""Log lines never cost an answer."""

import io
import json
import logging
import sys

import pytest
import structlog

from service.logs import configure_logs


@pytest.fixture
def stream(monkeypatch):
    """Where log lines go; the process's own logging is put back afterwards."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level, raises = root.handlers, root.level, logging.raiseExceptions
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    yield written
    structlog.configure(**configuration)
    root.handlers, logging.raiseExceptions = handlers, raises
    root.setLevel(level)


def test_lines_are_json_with_level_and_time(stream):
    configure_logs(level="info", form="json")
    structlog.get_logger("a").info("loaded", model="m@1")
    structlog.get_logger("a").debug("too fine")
    logging.getLogger("library").warning("odd")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["model"], first["level"], second["event"]) == (
        "loaded",
        "m@1",
        "info",
        "odd",
    )
    assert "timestamp" in first


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_that_cannot_be_written_is_dropped(stream, form):
    configure_logs(level="info", form=form)
    stream.close()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        structlog.get_logger("a").exception("failed")
    structlog.get_logger("a").info("still here")
