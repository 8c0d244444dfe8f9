"""Log lines never cost an answer."""

import contextlib
import io
import json
import logging

import pytest
import structlog

from service.logs import configure_logs

pytestmark = pytest.mark.usefixtures("logs_as_before")


def configured(form):
    """Where the lines go."""
    written = io.StringIO()
    with contextlib.redirect_stderr(written):
        configure_logs(level="info", form=form)
    return written


def test_lines_are_json_with_level_and_time():
    written = configured("json")
    structlog.get_logger("a").info("loaded", model="m@1")
    structlog.get_logger("a").debug("too fine")
    logging.getLogger("library").warning("odd")
    first, second = map(json.loads, written.getvalue().splitlines())
    assert (first["event"], first["model"], first["level"], second["event"]) == (
        "loaded",
        "m@1",
        "info",
        "odd",
    )
    assert "timestamp" in first


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_that_cannot_be_written_is_dropped(form):
    configured(form).close()
    structlog.get_logger("a").info("still here", exc_info=ZeroDivisionError())
    logging.getLogger("library").warning("odd")
