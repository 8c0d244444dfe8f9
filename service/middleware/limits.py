"""Limits on connections, event loop delay, and size and duration of request bodies.

Compressed bodies are rejected, because they could expand beyond the limit. Connections over the limit
get 503, and requests delayed by the event loop 429, except for the health endpoints.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from models.errors import OverloadedError
from service.api_errors import RETRY_AFTER_S, error_response
from service.engine.job import Shares
from service.engine.metrics import Metrics
from service.schemas.replies import ErrorBody

OVER_LIMIT = "crowded"
"""Key in a request's state: true if its connection is over the limit."""

ARRIVAL_S = "arrival"
"""Key in a request's state: event loop time at which its head was read; if it waited already, at which
its connection was accepted."""

RECEIVE_TIMEOUT = "late"
"""Key in a request's state: the exceeded time limit for receiving the request, in seconds."""

HEALTH_PATHS = ("/health/", "/v2/health")
_MAX_DELAY_S = 0.25
_MIN_DELAYED = 32
"""Requests under way below which a delay is no overload, but a single long step."""

_SHOWN_ENCODING_BYTES = 40
_MAX_DIGITS = 20
_SHORT_BODY_BYTES = 1 << 16
"""Size up to which a body is always accepted, so that interactive requests are."""

_CLOSE = {"connection": "close"}  # the rest of the body is not read


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header with a name; None if absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def content_length(value: bytes) -> int:
    """Return the number in a header `Content-Length`; 0 if it is none."""
    digits = value.lstrip(b"0")
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


class BodyLimit(NamedTuple):
    """Rejections of encoded, slow and too large bodies, with or without `Content-Length`.

    Attributes:
        max_bytes: maximum size of a body.
        held: size of all bodies.
        log_bodies: true to log the beginning of bodies.
    """

    max_bytes: int
    held: HeldBodies
    log_bodies: bool = False

    def check_head(self, headers: Mapping[bytes, bytes]) -> None:
        """Reject an encoded body, or one that is too large by `Content-Length`.

        Raises:
            HTTPException: it is encoded, or too large.
        """
        encoding = headers.get(b"content-encoding", b"identity")
        if encoding != b"identity":
            shown = encoding[:_SHOWN_ENCODING_BYTES].decode("latin-1")
            raise HTTPException(
                415, f"Content-Encoding is {shown!r}; encoded bodies are not supported", _CLOSE
            )
        self.check_size(content_length(headers.get(b"content-length", b"")))

    def check_size(self, size: int) -> None:
        """Reject a body of at least `size` bytes if it is too large.

        Raises:
            HTTPException: it is too large.
        """
        if size > self.max_bytes:
            reason = f"the request body has at least {size} bytes; the limit is {self.max_bytes}"
            raise HTTPException(413, reason, _CLOSE)

    @staticmethod
    def check_time(scope: Scope, size: int) -> None:
        """Reject an incomplete body, of which `size` bytes arrived, if its time limit is over.

        Raises:
            HTTPException: the time limit is over.
        """
        if limit_s := scope["state"].get(RECEIVE_TIMEOUT):
            reason = f"only {size} bytes of the request body arrived within the time limit of {limit_s:g} s"
            raise HTTPException(408, reason, _CLOSE)


class ConnectionLimit:
    """Replies 503 on connections over the limit, and 429 if requests wait for the loop.

    The health endpoints are exempt. Such a reply takes a quarter of the time of a short request.

    Args:
        metrics: counters of rejected requests.

    Attributes:
        num_running: requests under way.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.num_running = 0

    def refusal(self, scope: Scope) -> Response | None:
        """Return the reply to a refused request; None for others."""
        state = scope["state"]
        if self.num_running <= _MIN_DELAYED and not state.get(OVER_LIMIT):
            return None
        delay_s = asyncio.get_running_loop().time() - state.get(ARRIVAL_S, math.inf)
        if delay_s <= _MAX_DELAY_S and not state.get(OVER_LIMIT):
            return None
        if scope["path"].startswith(HEALTH_PATHS):
            return None
        if state.get(OVER_LIMIT):
            reason, status = "connections", 503
            message = "the service has reached its limit of open connections"
            body = ErrorBody(message, "service_unavailable_error", None, "too_many_connections")
        else:
            reason, status = "delay", 429
            message = (
                f"this request has waited {delay_s:.2f} s to be read, with {self.num_running} others under way; "
                f"the maximum is {_MAX_DELAY_S:g} s"
            )
            body = ErrorBody(message, "rate_limit_error", None, OverloadedError.code)
        self._metrics.rejected(reason)
        return error_response(status, body, {"retry-after": f"{RETRY_AFTER_S:.0f}", **_CLOSE})
