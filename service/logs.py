"""Log configuration: a structured line per event, without request texts unless enabled.

Lines may contain values chosen by clients, such as field names and paths. Control characters are
escaped, so a value can neither forge a line nor control a terminal. Messages of exceptions raised
by requests are omitted: they may quote texts; types and tracebacks are logged.

Nothing waits for the reader of the log: lines that it does not take are dropped and counted.
"""

import logging
import os
import queue
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any, TextIO

import structlog
from pydantic_core import to_json

_OWN_LOGGERS = ("service", "models", "training")
_FRAMES = 50
# C0 and C1 controls, line separators and text direction controls
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SEPARATOR, _SPECIAL = re.compile('[ =\t\n"]'), re.compile(r'["(\\]')
_Event = MutableMapping[str, Any]

_MAX_WAITING_LINES = 8192
_PIPE_BYTES = 4096
"""Bytes that a ready pipe takes without blocking."""

_PAUSE_S = 0.005
"""Pause of the thread after each write; else every line would cost the event loop time."""


class LineWriter:
    """Writer of log lines, on a thread between `start` and `stop`; the file of all loggers.

    Without the thread, as in the supervisor, which forks, lines that would wait are dropped.

    Attributes:
        stream: file that receives the lines.
        num_dropped: lines that were not written.
    """

    def __init__(self) -> None:
        self.stream: TextIO = sys.stderr
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.num_dropped = 0

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Write the waiting lines, for up to a second, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._lines.put(None)
            thread.join(1.0)

    def write(self, text: str) -> None:
        """Write complete lines, or have the thread write them."""
        if self._thread is None:
            self._write([text], may_wait=False)
        elif self._lines.qsize() < _MAX_WAITING_LINES:
            self._lines.put(text)
        else:
            self.num_dropped += 1

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _run(self) -> None:
        ended = False
        while not ended:
            lines = [self._lines.get()]
            while not self._lines.empty():
                lines.append(self._lines.get())
            ended = None in lines
            self._write([line for line in lines if line is not None], may_wait=True)
            time.sleep(_PAUSE_S)

    def _write(self, lines: list[str], *, may_wait: bool) -> None:
        try:
            rest, poll = "".join(lines).encode(errors="backslashreplace"), select.poll()
            poll.register(self.stream, select.POLLOUT)
            # the fewer calls, the less often the thread takes the interpreter lock from the event loop
            most = len(rest) if may_wait else _PIPE_BYTES
            while rest and (may_wait or poll.poll(0)):
                rest = rest[os.write(self.stream.fileno(), rest[:most]) :]
        except (OSError, ValueError):  # a full disk or closed pipe must not fail requests
            rest = b"all"
        self.num_dropped += len(lines) if rest else 0


writer = LineWriter()
"""Writer of this process's log."""


def configure_logs(*, level: str, form: str, texts: bool = False, worker: int | None = None) -> None:
    """Send this program's and its libraries' log lines to standard error.

    Args:
        level: lowest level written, such as `info`; for libraries at least `info`.
        form: `json` or `console`.
        texts: True to write messages of exceptions raised by requests.
        worker: number of this worker in every line; None for a single process.
    """

    def add_worker(_logger: Any, _method: str, event: _Event) -> _Event:
        event.setdefault("worker", worker)  # unless the line names another worker
        return event

    shared: list[Any] = [
        *([] if worker is None else [add_worker]),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        to_text = structlog.processors.JSONRenderer(lambda event, **_: to_json(event, fallback=str).decode())
        finish: list[Any] = [_escape_values, to_text]
    elif sys.stderr.isatty():
        finish = [_escape_values, structlog.dev.ConsoleRenderer()]
    else:
        finish = [_render_columns]
    writer.stream = sys.stderr
    structlog.configure(  # not by `logging`, which would double a line's cost
        processors=[*shared, partial(_add_exception, texts=texts, is_ours=True), *finish],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]  # has the methods that it calls
        cache_logger_on_first_use=True,
    )
    # format lines of `logging` like structlog's
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    add_exception = partial(_add_exception, texts=texts, is_ours=False)
    processors = [*shared, add_exception, remove_meta, *finish]
    handler = logging.StreamHandler(writer)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors))
    logging.raiseExceptions = False  # `logging` must not write a format's fault
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper() if level != "debug" else "INFO")  # without debug lines of compilers
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())


def _render_columns(logger: Any, method: str, event: _Event) -> str:
    """Render a line like structlog's console renderer without colours, ten times as fast."""
    exception = event.pop("exception", None)
    time, level, name = event.pop("timestamp"), event.pop("level"), event.pop("event")
    pairs = " ".join(
        [f"{key}={value if isinstance(value, str) else repr(value)}" for key, value in sorted(event.items())]
    )
    # one look at most lines tells that no value has to be escaped or quoted
    is_plain = pairs.count(" ") + 1 == pairs.count("=") == len(event) and _SPECIAL.search(pairs) is None
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
            if not value.isprintable():  # no unsafe character is; much faster than a search for each
                event[key] = escape(value)
        elif isinstance(value, (list, tuple)):
            event[key] = [escape(item) if isinstance(item, str) else item for item in value]
    return event


def _add_exception(_logger: Any, _method: str, event: _Event, *, texts: bool, is_ours: bool) -> _Event:
    """Replace a line's exception by its text, in escaped lines, most recent call last.

    Without `texts`, messages of exceptions that a request may have caused are omitted. If `is_ours`, the line is of
    this program, and has a `request_id` if a request caused it.
    """
    error = event.pop("exc_info", None)
    if error and not isinstance(error, BaseException):  # True, or a tuple like that of `sys.exc_info`
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
