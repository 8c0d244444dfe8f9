"""Limits on connections, event loop delay, and size and duration of request bodies.

Compressed bodies are rejected, because they could expand beyond the limit. Connections over the limit
get 503, and requests delayed by the event loop 429, except for the health endpoints.
"""

import asyncio
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.errors import OverloadedError
from service.api_errors import RETRY_AFTER_S, error_response
from service.engine.job import Shares
from service.engine.metrics import Metrics
from service.middleware.request_context import annotate, context_of, header
from service.schemas.replies import ErrorBody

OVER_LIMIT = "crowded"
"""Key in a request's state: true if its connection is over the limit."""

ARRIVAL_S = "arrival"
"""Key in a request's state: event loop time at which its head was read; if it waited already, at which
its connection was accepted."""

RECEIVE_TIMEOUT = "late"
"""Key in a request's state: the exceeded time limit for receiving the request, in seconds."""

_MAX_DELAY_S = 0.25
_MIN_DELAYED = 32
"""Requests under way below which a delay is no overload, but a single long step."""

_SHOWN_BYTES = 4096
_SHOWN_ENCODING_BYTES = 40
_MAX_DIGITS = 20
_SHORT_BODY_BYTES = 1 << 16
"""Size up to which a body is always accepted, so that interactive requests are."""

_CLOSE = {"connection": "close"}  # the rest of the body is not read


def content_length(scope: Scope) -> int:
    """Return the `Content-Length` of a request; 0 without one."""
    digits = (header(scope, b"content-length") or b"").lstrip(b"0")
    # digits beyond the parser's limit are ignored: converting them takes long or fails
    return int(digits[:_MAX_DIGITS]) if digits.isdigit() else 0


class HeldBodies(Shares[str]):
    """Sizes of the bodies of all unanswered requests in bytes, by API key; each key has a share."""

    def receive(self, owner: str, count: int, *, before: int) -> None:
        """Add received bytes, which the caller subtracts when the request ends.

        Args:
            owner: name of the API key; empty without keys.
            count: received bytes.
            before: bytes of the body received before.

        Raises:
            HTTPException: the body is long, not the only one, and exceeds the maximum and its owner's share.
        """
        is_long = before + count > _SHORT_BODY_BYTES
        if is_long and self.used > before and (refusal := self.refusal(owner, count)):
            raise HTTPException(
                429,
                f"the bodies of unanswered requests have {self.used} bytes, {before} of them of this request, which "
                f"has at least {count} more; {refusal}",
                {"retry-after": f"{RETRY_AFTER_S:.0f}", **_CLOSE},
            )
        self.add(owner, count)


class BodyLimit:
    """Middleware that rejects compressed, slow and too large bodies, with or without `Content-Length`.

    Args:
        app: application.
        max_bytes: maximum size of a body.
        held: size of all bodies.
        log_bodies: true to log the beginning of bodies.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, held: HeldBodies, log_bodies: bool = False) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held = held
        self._log_bodies = log_bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, owner = content_length(scope), str(context_of(scope).get("key", ""))
        num_received, is_complete = 0, False

        async def receive_limited() -> Message:
            nonlocal num_received, is_complete
            if is_complete:  # the next message is the disconnect, which has no time limit
                return await receive()
            encoding = header(scope, b"content-encoding") or b"identity"
            if encoding != b"identity":
                shown = encoding[:_SHOWN_ENCODING_BYTES].decode("latin-1")
                reason = f"Content-Encoding is {shown!r}; encoded bodies are not supported"
                raise HTTPException(415, reason, _CLOSE)
            if size > self._max_bytes:
                raise self._too_large(size)
            message = await receive()
            if message["type"] != "http.request":
                return message
            body = message.get("body", b"")
            self._held.receive(owner, len(body), before=num_received)
            num_received += len(body)
            is_complete = not message.get("more_body", False)
            if num_received > self._max_bytes:
                raise self._too_large(num_received)
            if not is_complete and (limit_s := scope["state"].get(RECEIVE_TIMEOUT)):
                reason = f"only {num_received} bytes of the request body arrived within the time limit of {limit_s:g} s"
                raise HTTPException(408, reason, _CLOSE)
            if self._log_bodies and body and num_received == len(body):
                annotate(scope, body=body[:_SHOWN_BYTES].decode(errors="replace"))
            return message

        try:
            await self._app(scope, receive_limited, send)
        finally:
            self._held.add(owner, -num_received)

    def _too_large(self, size: int) -> HTTPException:
        return HTTPException(
            413,
            f"the request body has at least {size} bytes; the limit is {self._max_bytes}",
            _CLOSE,
        )


class ConnectionLimit:
    """Middleware that replies 503 on connections over the limit, and 429 if requests wait for the loop.

    The health endpoints are exempt. Such a reply takes a quarter of the time of a short request.

    Args:
        app: application.
        metrics: counters of rejected requests.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"].startswith(("/health/", "/v2/health")):
            await self._app(scope, receive, send)
            return
        self._num_running += 1
        try:
            await (self._refusal(scope["state"]) or self._app)(scope, receive, send)
        finally:
            self._num_running -= 1

    def _refusal(self, state: dict[str, Any]) -> ASGIApp | None:
        """Return the reply to a refused request; None for others."""
        delay_s = asyncio.get_running_loop().time() - state.get(ARRIVAL_S, math.inf)
        if state.get(OVER_LIMIT):
            reason, status = "connections", 503
            message = "the service has reached its limit of open connections"
            body = ErrorBody(message, "service_unavailable_error", None, "too_many_connections")
        elif delay_s > _MAX_DELAY_S and self._num_running > _MIN_DELAYED:
            reason, status = "delay", 429
            message = (
                f"this request has waited {delay_s:.2f} s to be read, with {self._num_running} others under way; "
                f"the maximum is {_MAX_DELAY_S:g} s"
            )
            body = ErrorBody(message, "rate_limit_error", None, OverloadedError.code)
        else:
            return None
        self._metrics.rejected(reason)
        return error_response(status, body, {"retry-after": f"{RETRY_AFTER_S:.0f}", **_CLOSE})
