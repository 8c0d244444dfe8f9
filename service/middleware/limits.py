"""Limits on open connections, and on the size and duration of request bodies.

Compressed bodies are refused, so that no body is larger than it looks. Connections over the limit
are answered 503, except for the health endpoints.
"""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api_errors import overloaded_response
from service.engine.metrics import Metrics
from service.middleware.request_context import annotate, header

OVER_LIMIT = "crowded"
"""Says in a request's state that its connection is one too many."""

RECEIVE_TIMEOUT = "late"
"""Says there that the request did not arrive within so many seconds."""

_SHOWN_BYTES = 4096
_SHOWN_ENCODING_BYTES = 40
_MAX_DIGITS = 20
_IDENTITY_ENCODINGS = (None, b"", b"identity")
_CLOSE = {"connection": "close"}  # the rest of the body is not read


def content_length(scope: Scope) -> int:
    """The size of a request's body as its head says it; 0 where it does not."""
    announced = (header(scope, b"content-length") or b"").lstrip(b"0")
    # more than the parser lets pass is not read: that would take long, or fail
    return int(announced[:_MAX_DIGITS]) if announced.isdigit() else 0


class BodyLimit:
    """Refuses bodies over a limit, whether their length is announced or not, packed ones, and slow ones.

    Args:
        app: what answers.
        max_bytes: the size at most.
        log_bodies: note the body's beginning for the log.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, log_bodies: bool = False) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._log_bodies = log_bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = content_length(scope)
        seen, is_complete = 0, False

        async def receive_limited() -> Message:
            nonlocal seen, is_complete
            if is_complete:  # what comes now is that the client has gone, and for that there is time
                return await receive()
            if (encoding := header(scope, b"content-encoding")) not in _IDENTITY_ENCODINGS:
                raise _unsupported_encoding(encoding)
            if size > self._max_bytes:
                raise self._too_large(size)
            message = await receive()
            if message["type"] != "http.request":
                return message
            body = message.get("body", b"")
            seen += len(body)
            is_complete = not message.get("more_body", False)
            if seen > self._max_bytes:
                raise self._too_large(seen)
            if not is_complete and scope["state"].get(RECEIVE_TIMEOUT):
                raise _too_slow(seen, scope["state"][RECEIVE_TIMEOUT])
            if self._log_bodies and body and seen == len(body):
                annotate(scope, body=body[:_SHOWN_BYTES].decode(errors="replace"))
            return message

        await self._app(scope, receive_limited, send)

    def _too_large(self, size: int) -> HTTPException:
        return HTTPException(
            413,
            f"the request body has {size} bytes or more; at most {self._max_bytes} are accepted",
            _CLOSE,
        )


def _unsupported_encoding(encoding: bytes | None) -> HTTPException:
    """Bodies are never unpacked, so none can be larger than it looks."""
    shown = (encoding or b"")[:_SHOWN_ENCODING_BYTES].decode("latin-1")
    message = f"the body's Content-Encoding is {shown!r}; bodies are taken as they are"
    return HTTPException(415, message, _CLOSE)


def _too_slow(seen: int, limit_s: float) -> HTTPException:
    message = f"{seen} bytes of the request body came within {limit_s:g} s, which is the time for all of it"
    return HTTPException(408, message, _CLOSE)


class ConnectionLimit:
    """Answers what comes over connections past the limit with 503, but for the health of the service.

    Args:
        app: what answers the others.
        metrics: where refusals are counted.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if (
            scope["type"] != "http"
            or not scope["state"].get(OVER_LIMIT)
            or scope["path"].startswith("/health/")
        ):
            await self._app(scope, receive, send)
            return
        self._metrics.rejected("connections")
        answer = overloaded_response(
            "there are as many connections as this service takes", "too_many_connections"
        )
        await answer(scope, receive, send)
