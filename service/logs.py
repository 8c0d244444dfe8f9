"""Log configuration: structured lines, one per event, without request texts unless enabled.

Values that clients choose, such as names of fields and paths, may occur in a line. Control
characters are escaped, so that such a value can neither look like a line of its own nor control a
terminal. An exception's message may quote a request's text: messages of exceptions raised by
requests are left out, their types and tracebacks kept.
"""

import contextlib
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator, MutableMapping
from typing import Any, TextIO

import structlog
from pydantic_core import to_json

_OWN_LOGGERS = ("service", "models", "training")
_FRAMES = 50
# C0 and C1 controls, separators of lines, and what turns the direction of writing
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SEPARATORS = frozenset(' =\t\n"')
_Event = MutableMapping[str, Any]


def configure_logs(*, level: str, form: str, texts: bool = False, worker: int | None = None) -> None:
    """Send this program's log lines, and those of its libraries, to standard error.

    Args:
        level: the least severe one written, such as `info`; of libraries, `info` at least.
        form: `json` or `console`.
        texts: whether messages of exceptions that requests led to are written.
        worker: which of several this process is, for every line.
    """
    shared: list[Any] = [
        *([] if worker is None else [_WorkerField(worker)]),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        finish: Any = structlog.processors.JSONRenderer(
            serializer=lambda event, **_: to_json(event, fallback=str).decode()
        )
    else:
        finish = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else _render_columns
    structlog.configure(  # not by way of `logging`, which would double what a request's line costs
        processors=[*shared, _ExceptionText(texts=texts, is_ours=True), _escape_values, finish],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_LineLogger(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _configure_libraries(level, [*shared, _ExceptionText(texts=texts, is_ours=False), _escape_values], finish)


def _configure_libraries(level: str, processors: list[Any], finish: Any) -> None:
    """The same for lines of `logging`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[*processors, structlog.stdlib.ProcessorFormatter.remove_processors_meta, finish]
        )
    )
    # a line that cannot be written, to a full disk or a closed pipe, must not cost an answer
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper() if level != "debug" else "INFO")  # compilers' own details are of no use here
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())


def _render_columns(_logger: Any, _method: str, event: _Event) -> str:
    """A line as structlog's own renderer writes it without colours, in a tenth of the time."""
    time, level, name = event.pop("timestamp"), event.pop("level"), event.pop("event")
    exception = event.pop("exception", None)
    pairs = " ".join(f"{key}={_format_value(value)}" for key, value in sorted(event.items()))
    line = f"{time} [{level:9}] {name:<30} {pairs}" if pairs else f"{time} [{level:9}] {name}"
    return line if exception is None else f"{line}\n{exception}"


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value if value.isprintable() and not _SEPARATORS & set(value) else repr(value)
    return repr(value)


class _LineLogger:
    """Makes loggers that write lines, whole ones, and drop those that cannot be written.

    Args:
        stream: where to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, *_names: str) -> "_LineLogger":
        """A logger: this one, whatever its name."""
        return self

    def msg(self, line: str) -> None:
        """Write a line."""
        # to a full disk or a closed pipe: it must not cost an answer
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


def escape(text: str) -> str:
    r"""The text on one line: control characters as `\n`, `\x1b`, `\u2028`.

    A backslash stays as it is, so what is read may be ambiguous, but never harmful.
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _escape_values(_logger: Any, _method: str, event: _Event) -> _Event:
    for key, value in event.items():
        if key == "exception":
            continue  # has lines of its own, each escaped
        if isinstance(value, str):
            if _UNSAFE.search(value):
                event[key] = escape(value)
        elif isinstance(value, (list, tuple)):
            event[key] = [escape(item) if isinstance(item, str) else item for item in value]
    return event


class _WorkerField:
    """Says in every line which worker wrote it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, _logger: Any, _method: str, event: _Event) -> _Event:
        """Add it, unless the line has it of another."""
        event.setdefault("worker", self._number)
        return event


class _ExceptionText:
    """Writes an exception as text, the last call last, each line harmless.

    Args:
        texts: whether to write messages where a request may have led to it.
        is_ours: whether the lines are this program's own, which name the request if there is one.
    """

    def __init__(self, *, texts: bool, is_ours: bool) -> None:
        self._texts = texts
        self._is_ours = is_ours

    def __call__(self, _logger: Any, _method: str, event: _Event) -> _Event:
        """Replace what was raised by its text."""
        error = _exception_of(event.pop("exc_info", None))
        if error is not None:
            at_start = self._is_ours and "request_id" not in event
            lines = _format_exception(error, messages=self._texts or at_start)
            event["exception"] = "\n".join(escape(line) for line in lines)
        return event


def _exception_of(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        error: BaseException | None = exc_info[1]
        return error
    return sys.exc_info()[1] if exc_info else None


def _format_exception(error: BaseException, *, messages: bool) -> Iterator[str]:
    """The lines that tell of an exception, after those of what led to it."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _format_exception(before, messages=messages)
        yield "… which led to:"
    for frame in traceback.format_tb(error.__traceback__, limit=-_FRAMES):
        yield from frame.rstrip("\n").split("\n")
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    yield f"{kind}: {error}" if messages else kind
