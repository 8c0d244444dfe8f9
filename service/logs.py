"""How log lines look: structured, one a line, never with a request's text in it."""

import logging
import sys
from typing import Any

import structlog
from pydantic_core import to_json


def configure_logs(*, level: str, form: str) -> None:
    """Send this program's log lines, and those of its libraries, to standard error.

    Args:
        level: the least severe one written, such as `info`.
        form: `json` or `console`.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        finish: list[Any] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(
                serializer=lambda event, **_: to_json(event, fallback=str).decode()
            ),
        ]
    else:
        # plain: the decorated traceback shows local variables, and with them what clients sent
        plain = structlog.dev.plain_traceback
        finish = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    # a line that cannot be written, to a full disk or a closed pipe, must not cost an answer
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
