"""Log configuration: a structured line per event, without request texts unless enabled.

Lines may contain values chosen by clients, such as field names and paths. Control characters are
escaped, so a value can neither forge a line nor control a terminal. Messages of exceptions raised
by requests are omitted: they may quote texts; types and tracebacks are logged.

Nothing waits for the reader of the log: lines that it does not take are dropped and counted.
"""

import asyncio
import contextlib
import logging
import os
import re
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import lru_cache, partial
from typing import Any, TextIO

import structlog
from pydantic_core import to_json

_OWN_LOGGERS = ("service", "models", "training")
_FRAMES = 50
# C0 and C1 controls, line separators and text direction controls
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SEPARATOR = re.compile('[ =\t\n"]')
_Event = MutableMapping[str, Any]

_MAX_WAITING_LINES = 8192
_PIPE_BYTES = 4096
"""Bytes that a ready pipe takes without blocking."""

_PAUSE_S = 0.01
"""Time between writes: a write per line would take longer than a short request."""

_LAST_S = 1.0
"""Maximum time in which `LineWriter.stop` writes waiting lines."""


class LineWriter:
    """Writer of log lines, from an event loop between `start` and `stop`; the file of all loggers.

    There is no thread: its waits for the interpreter lock would slow the event loop by half of a short request.
    Without a loop, as in the supervisor, lines that would wait are dropped.

    Attributes:
        stream: file that receives the lines.
        num_dropped: lines that were not written.
        render_request: function that renders the line of a request from its time (seconds since the epoch) and fields.
    """

    def __init__(self) -> None:
        self.stream: TextIO = sys.stderr
        self.num_dropped = 0
        self.render_request: Callable[[float, _Event], str] = partial(
            _render_request, [_render_columns], None
        )
        self._lines: deque[str | Callable[[], str]] = deque()
        self._rest = b""  # of lines of which a part is written
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread = 0

    def start(self) -> None:
        """Write from the running event loop."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def stop(self) -> None:
        """Write the waiting lines, for up to a second."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end_s = time.monotonic() + _LAST_S
        while not self._write() and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)
        self._drop()

    def write(self, text: str | Callable[[], str]) -> None:
        """Write a complete line, or one that a function renders, now or soon; from any thread."""
        if len(self._lines) >= _MAX_WAITING_LINES:
            self.num_dropped += 1
            return
        self._lines.append(text)
        if self._timer is not None:  # whose call writes it, too
            return
        if self._loop is None:
            self._write()
            self._drop()
        elif threading.get_ident() == self._thread:
            self._write_later()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._write_later)

    debug = info = warning = error = critical = write  # methods of structlog's loggers

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _write_later(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(_PAUSE_S, self._write_again)

    def _write_again(self) -> None:
        self._timer = None
        if not self._write():
            self._write_later()

    def _write(self) -> bool:
        """Write as much as the stream takes now; return true if that is everything."""
        try:
            poll = select.poll()
            poll.register(self.stream, select.POLLOUT)
            while (self._rest or self._lines) and poll.poll(0):
                while self._lines and len(self._rest) < _PIPE_BYTES:
                    line = self._lines.popleft()
                    self._rest += (line if isinstance(line, str) else line() + "\n").encode(
                        errors="backslashreplace"
                    )
                self._rest = self._rest[os.write(self.stream.fileno(), self._rest[:_PIPE_BYTES]) :]
        except (OSError, ValueError):  # a full disk or closed pipe must not fail requests
            self._drop()
        return not (self._rest or self._lines)

    def _drop(self) -> None:
        self.num_dropped += len(self._lines) + bool(self._rest)
        self._lines.clear()
        self._rest = b""


def log_request(fields: dict[str, Any]) -> None:
    """Write the line of a request, without structlog's steps: they would take as long as a short text's score."""
    writer.write(partial(writer.render_request, time.time(), fields))


def configure_logs(*, level: str, form: str, texts: bool = False, worker: int | None = None) -> None:
    """Send this program's and its libraries' log lines to standard error.

    Args:
        level: lowest level written, such as `info`; for libraries at least `info`.
        form: `json` or `console`.
        texts: True to write messages of exceptions raised by requests.
        worker: number of this worker in every line; None for a single process.
    """
    if form == "json":
        to_text = structlog.processors.JSONRenderer(lambda event, **_: to_json(event, fallback=str).decode())
        steps: list[Any] = [_escape_values, to_text]
    elif sys.stderr.isatty():
        steps = [_escape_values, structlog.dev.ConsoleRenderer()]
    else:
        steps = [_render_columns]
    render = partial(_render, steps)
    writer.stream, writer.render_request = sys.stderr, partial(_render_request, steps, worker)
    structlog.configure(  # not by `logging`, which would double a line's cost
        processors=[
            partial(_complete, worker=worker, texts=texts, is_ours=True),
            # rendered by the writer: many in a row take half the time
            lambda *line: ((partial(render, *line),), {}),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=True,
    )
    # format lines of `logging` like structlog's
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    complete = partial(_complete, worker=worker, texts=texts, is_ours=False)
    processors: list[Any] = [complete, remove_meta, render]
    handler = logging.StreamHandler(writer)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors))
    logging.raiseExceptions = False  # `logging` must not write a format's fault
    root = logging.getLogger()
    root.handlers = [handler]
    # without debug lines of compilers
    root.setLevel(level.upper() if level != "debug" else "INFO")
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())


def _render_request(steps: Sequence[Any], worker: int | None, now_s: float, fields: _Event) -> str:
    fields["event"] = "request"
    return _render(steps, None, "info", _stamp(fields, "info", now_s, worker))


def _render(steps: Sequence[Any], logger: Any, method: str, event: Any) -> str:
    for step in steps:
        event = step(logger, method, event)
    return str(event)


def _render_columns(logger: Any, method: str, event: _Event) -> str:
    """Render a line like structlog's console renderer without colours, ten times as fast."""
    exception = event.pop("exception", None)
    time, level, name = event.pop("timestamp"), event.pop("level"), event.pop("event")
    pairs = " ".join(
        [f"{key}={value if isinstance(value := event[key], str) else repr(value)}" for key in sorted(event)]
    )
    # one look at most lines tells that no value has to be escaped or quoted
    is_plain = pairs.count(" ") + 1 == pairs.count("=") == len(event) and not (
        '"' in pairs or "(" in pairs or "\\" in pairs
    )
    if not ((is_plain or not pairs) and (name + pairs).isprintable()):
        name = escape(name)
        escaped = sorted(_escape_values(logger, method, event).items())
        pairs = " ".join(f"{key}={_format_value(value)}" for key, value in escaped)
    line = f"{time} [{level:9}] {name:<30} {pairs}" if pairs else f"{time} [{level:9}] {name}"
    return line if exception is None else f"{line}\n{exception}"


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value if value.isprintable() and _SEPARATOR.search(value) is None else repr(value)
    return repr(value)


def escape(text: str) -> str:
    r"""Escape control characters as `\n`, `\x1b`, `\u2028`.

    Backslashes are not escaped, so the result may be ambiguous, but never harmful.
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _escape_values(_logger: Any, _method: str, event: _Event) -> _Event:
    for key, value in event.items():
        if key == "exception":
            continue  # several lines, each escaped already
        if isinstance(value, str):
            # no unsafe character is; much faster than a search for each
            if not value.isprintable():
                event[key] = escape(value)
        elif isinstance(value, (list, tuple)):
            event[key] = [escape(item) if isinstance(item, str) else item for item in value]
    return event


@lru_cache(maxsize=4)
def _format_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _stamp(event: _Event, level: str, now_s: float, worker: int | None) -> _Event:
    """Add level, time and worker to a line."""
    if worker is not None:
        event.setdefault("worker", worker)  # unless the line names another worker
    second = int(now_s)
    event["level"], event["timestamp"] = level, f"{_format_second(second)}.{int((now_s - second) * 1e6):06}Z"
    return event


def _complete(
    _logger: Any, method: str, event: _Event, *, worker: int | None, texts: bool, is_ours: bool
) -> _Event:
    """Add level, time and worker to a line; replace its exception by its text, in escaped lines, most recent call last.

    Without `texts`, messages of exceptions that a request may have caused are omitted. If `is_ours`, the line is of
    this program, and has a `request_id` if a request caused it.
    """
    _stamp(event, method, time.time(), worker)
    error = event.pop("exc_info", None)
    # True, or a tuple like that of `sys.exc_info`
    if error and not isinstance(error, BaseException):
        error = (error if isinstance(error, tuple) else sys.exc_info())[1]
    if isinstance(error, BaseException):
        at_start = is_ours and "request_id" not in event
        lines = _format_exception(error, messages=texts or at_start)
        event["exception"] = "\n".join(escape(line) for line in lines)
    return event


def _format_exception(error: BaseException, *, messages: bool) -> Iterator[str]:
    """Yield the lines of an exception, preceded by the lines of its cause."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _format_exception(cause, messages=messages)
        yield "… which led to:"
    for frame in traceback.format_tb(error.__traceback__, limit=-_FRAMES):
        yield from frame.rstrip("\n").split("\n")
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    yield f"{kind}: {error}" if messages else kind


writer = LineWriter()
"""Writer of this process's log."""
