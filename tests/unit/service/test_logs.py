"""Log output never fails a request."""

import asyncio
import contextlib
import json
import logging
import os
import tempfile

import pytest
import structlog

from service.logs import LineWriter, configure_logs

pytestmark = pytest.mark.usefixtures("logs_as_before")


class Written:
    """File of log lines."""

    def __init__(self):
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8", newline="")  # noqa: SIM115 - see `getvalue`

    def getvalue(self):
        """Return the lines and close the file."""
        with self.file:
            self.file.seek(0)
            return self.file.read()


def configured(form, *, level="info", texts=False):
    """Configure logging and return the file of its lines."""
    written = Written()
    with contextlib.redirect_stderr(written.file):
        configure_logs(level=level, form=form, texts=texts)
    return written


def fail_on(text):
    """Log a failure whose exceptions quote a text."""
    try:
        try:
            {}[text]
        except KeyError as error:
            raise ValueError(f"not {text}") from error
    except ValueError:
        structlog.get_logger("a").exception("request failed", request_id="1")


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
    configured(form).file.close()
    structlog.get_logger("a").info("still here", exc_info=ZeroDivisionError())
    logging.getLogger("library").warning("odd")


FORGED = "x\n2026-01-01T00:00:00Z [info     ] forged\r\x1b[2J\x9b31m\u2028\u202e\x00\x7f"


@pytest.mark.parametrize("form", ["json", "console"])
def test_nothing_that_is_logged_makes_a_line_or_steers_a_terminal(form):
    written = configured(form, texts=True)
    log = structlog.get_logger("a")
    log.warning(FORGED, value=FORGED, names=[FORGED, 3])
    logging.getLogger("library").warning("odd: %s", FORGED)
    lines = written.getvalue().split("\n")
    assert len(lines) == 3  # two lines and the rest after the last newline
    assert not {c for line in lines for c in line if c in "\r\x1b\x9b\u2028\u202e\x00\x7f"}


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_request_s_exceptions_are_told_without_their_messages(form):
    written = configured(form)
    fail_on("my" + " secret")
    told = written.getvalue()
    assert "my secret" not in told
    assert all(kind in told for kind in ("KeyError", "ValueError", "in fail_on", "request failed"))


def test_with_messages_if_that_is_asked_for():
    written = configured("console", texts=True)
    fail_on("my\nsecret")
    assert "ValueError: not my\\nsecret" in written.getvalue()


def test_exceptions_at_the_start_keep_their_messages():
    """They do not contain request texts."""
    written = configured("console")
    structlog.get_logger("a").error("loading models failed", exc_info=OSError("no space left"))
    assert "OSError: no space left" in written.getvalue()


def test_a_library_s_exception_is_told_without_its_message():
    """Messages of libraries, such as the HTTP server, may contain request texts."""
    written = configured("json")
    logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=ValueError("secret"))
    assert json.loads(written.getvalue())["exception"] == "ValueError"


def test_debugging_shows_our_details_and_not_the_libraries():
    written = configured("json", level="debug")
    structlog.get_logger("service.a").debug("ours")
    logging.getLogger("numba.core").debug("theirs")
    assert [json.loads(line)["event"] for line in written.getvalue().splitlines()] == ["ours"]


def test_columns_are_those_of_a_terminal_without_its_colours():
    written = configured("console")
    facts = {"route": "/v1/score", "status": 200, "said": "two words", "empty": "", "names": ["a"]}
    structlog.get_logger("a").info("request", **facts)
    structlog.get_logger("a").info("ready")
    first, second = written.getvalue().splitlines()
    shown = structlog.dev.ConsoleRenderer(colors=False)
    for line, event in ((first, {"event": "request", **facts}), (second, {"event": "ready"})):
        event |= {"level": "info", "timestamp": line.split()[0]}
        assert line.rstrip() == shown(None, "info", event).rstrip()


@pytest.fixture
def piped():
    """Writer to a pipe that nobody reads yet, and the pipe."""
    reading, writing = os.pipe()
    line_writer = LineWriter()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "w") as line_writer.stream:
        yield line_writer, pipe


LINES = [f"{number:099}\n" for number in range(2000)]  # 200 kB, three times as much as a pipe


def test_lines_that_nobody_takes_are_dropped_and_counted(piped):
    line_writer, pipe = piped
    for line in LINES:
        line_writer.write(line)
    os.set_blocking(pipe.fileno(), False)
    received = pipe.read().decode().splitlines(keepends=True)
    assert received == LINES[: len(received)]
    assert 0 < line_writer.num_dropped == len(LINES) - len(received)


def test_lines_wait_for_the_reader_and_keep_the_order(piped):
    line_writer, pipe = piped

    async def main():
        line_writer.start()
        for line in LINES:
            line_writer.write(line)
        received = await asyncio.to_thread(pipe.read, sum(map(len, LINES)))  # the loop writes meanwhile
        line_writer.stop()
        return received.decode()

    assert (asyncio.run(main()), line_writer.num_dropped) == ("".join(LINES), 0)


def test_lines_of_other_threads_are_written_too(piped):
    line_writer, pipe = piped

    async def main():
        line_writer.start()
        await asyncio.to_thread(line_writer.write, "first\n")
        assert await asyncio.to_thread(pipe.readline) == b"first\n"
        line_writer.stop()

    asyncio.run(main())


def test_lines_beyond_those_that_may_wait_are_dropped(piped, monkeypatch):
    monkeypatch.setattr("service.logs._MAX_WAITING_LINES", 3)
    monkeypatch.setattr("service.logs._LAST_S", 0.05)
    line_writer, pipe = piped

    async def main():
        line_writer.start()
        for line in LINES:
            line_writer.write(line * 700)  # more than a pipe holds
            await asyncio.sleep(0)
        line_writer.stop()  # nobody reads: it gives up

    asyncio.run(main())
    assert len(LINES) // 2 < line_writer.num_dropped <= len(LINES)
    pipe.close()


def test_lines_that_wait_are_written_at_the_end(piped):
    line_writer, pipe = piped

    async def main():
        line_writer.start()
        for line in LINES[:100]:
            line_writer.write(line)
        line_writer.stop()

    asyncio.run(main())
    line_writer.write("last\n")
    assert pipe.read(10_005).decode() == "".join(LINES[:100]) + "last\n"
