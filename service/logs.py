"""Log configuration: structured lines, one per event, without request texts unless enabled.

Lines may contain values chosen by clients, such as field names and paths. Control characters are
escaped, so a value can neither forge a line nor control a terminal. Messages of exceptions raised
by requests are omitted, because they may quote request texts; types and tracebacks are logged.
"""

import contextlib
import logging
import re
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any

import structlog
from pydantic_core import to_json
from typing_extensions import override

_OWN_LOGGERS = ("service", "models", "training")
_FRAMES = 50
# C0 and C1 controls, line separators and text direction controls
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SEPARATORS = frozenset(' =\t\n"')
_Event = MutableMapping[str, Any]


def configure_logs(*, level: str, form: str, texts: bool = False, worker: int | None = None) -> None:
    """Send the log lines of this program and of its libraries to standard error.

    Args:
        level: lowest level written, such as `info`; for libraries at least `info`.
        form: `json` or `console`.
        texts: True to write messages of exceptions raised by requests.
        worker: number of this worker, added to every line; None for a single process.
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
        finish: Any = structlog.processors.JSONRenderer(
            serializer=lambda event, **_: to_json(event, fallback=str).decode()
        )
    else:
        finish = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else _render_columns
    logger = _LineLogger(sys.stderr)
    structlog.configure(  # bypasses `logging`, which would double the cost of a request's line
        processors=[*shared, partial(_add_exception, texts=texts, is_ours=True), _escape_values, finish],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_names: logger,
        cache_logger_on_first_use=True,
    )
    # format lines of `logging` like structlog's
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    add_exception = partial(_add_exception, texts=texts, is_ours=False)
    processors = [*shared, add_exception, _escape_values, remove_meta, finish]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors))
    # a full disk or a closed pipe must not fail a request
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper() if level != "debug" else "INFO")  # without debug lines of compilers
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())


def _render_columns(_logger: Any, _method: str, event: _Event) -> str:
    """Render a line like structlog's console renderer without colours, but ten times as fast."""
    time, level, name = event.pop("timestamp"), event.pop("level"), event.pop("event")
    exception = event.pop("exception", None)
    pairs = " ".join(f"{key}={_format_value(value)}" for key, value in sorted(event.items()))
    line = f"{time} [{level:9}] {name:<30} {pairs}" if pairs else f"{time} [{level:9}] {name}"
    return line if exception is None else f"{line}\n{exception}"


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value if value.isprintable() and not _SEPARATORS & set(value) else repr(value)
    return repr(value)


class _LineLogger(structlog.WriteLogger):
    """Logger that writes complete lines and drops lines that cannot be written."""

    @override
    def msg(self, message: str) -> None:
        # a full disk or a closed pipe must not fail a request
        with contextlib.suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = msg


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
            if _UNSAFE.search(value):
                event[key] = escape(value)
        elif isinstance(value, (list, tuple)):
            event[key] = [escape(item) if isinstance(item, str) else item for item in value]
    return event


def _add_exception(_logger: Any, _method: str, event: _Event, *, texts: bool, is_ours: bool) -> _Event:
    """Replace the exception of a line by its text, in escaped lines, most recent call last.

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
