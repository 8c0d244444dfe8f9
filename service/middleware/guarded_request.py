"""A request behind the guard: limits, its bounded body, its reply's headers, and what its log line and trace tell.

Compressed bodies are rejected, because they could expand beyond the limit. Connections over the limit
get 503, and requests delayed by the event loop 429, except for the health endpoints.

Fields of the log line: `route`, `key`, `model`, `prompt_tokens`, `scored_tokens`, `generated_tokens`,
`queue_ms`, `trace_id`.

The models that a request uses are released when it is answered or abandoned; an unloaded model is
freed only then.
"""

import asyncio
import importlib.metadata
import math
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from models.errors import OverloadedError
from service.api_errors import RETRY_AFTER_S, error_response
from service.engine.job import Shares
from service.engine.metrics import Metrics
from service.hosting.loaded_model import LoadedModel
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

_KEY = "guarded"
"""Key in the state of a request's scope: the guarded request."""

WHOLE_REPLY = "whole_reply"
"""Key in a request's state: function that sends a reply, given its head and body, in one write; see `http_protocol`."""

_VALID_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_ID_HEADER = b"x-request-id"
_POLICY = b"content-security-policy"
_HEADERS = [
    (b"x-gramophone-version", importlib.metadata.version("gramophone-lm").encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_SHOWN_BYTES = 4096
_DEFAULT_POLICY = (_POLICY, b"default-src 'none'; frame-ancestors 'none'")
"""Default policy: a reply that a browser displays cannot load anything."""

_HEAD = b"".join(
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n",
        *(b"%b: %b\r\n" % header for header in [*_HEADERS, _DEFAULT_POLICY]),
        b"x-request-id: %b\r\n",
    ]
)
"""Status line and headers of a complete JSON reply, given its length and the request's id."""


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


class GuardedRequest:
    """A request and its reply, between the guard and an application.

    Args:
        scope: connection scope; the request is in its state.
        receive: source of the body.
        send: receiver of the reply.
        limit: bounds of the body.

    Attributes:
        headers: first header of each name.
        request_id: the client's id, or a random one.
        fields: fields of the log line: names, numbers, or texts that clients cannot choose.
        owner: name of the API key; empty without keys.
        status: status of the reply; 0 before it begins.
        is_complete: whether the end of the reply was sent.
        num_received: bytes of the body received.
    """

    __slots__ = (
        "_limit", "_models", "_num_held", "_parts", "_receive", "_send", "fields", "headers", "is_complete",
        "is_received", "num_received", "owner", "request_id", "scope", "status",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: BodyLimit) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        given_id = self.headers.get(_ID_HEADER)
        if given_id is not None and _VALID_ID.fullmatch(given_id):
            self.request_id = given_id.decode()
        else:
            self.request_id = f"{random.getrandbits(128):032x}"
        self.fields: dict[str, Any] = {}
        self.owner = ""
        self.status = 0
        self.is_complete = self.is_received = False
        self.num_received = self._num_held = 0
        self._parts: list[bytes] = []
        self._limit, self._receive, self._send = limit, receive, send
        self._models: list[LoadedModel] = []
        state = scope.setdefault("state", {})
        state["request_id"], state[_KEY] = self.request_id, self

    async def receive(self) -> Message:
        """Return the next part of the body, or the disconnect.

        Raises:
            HTTPException: the body is encoded, too long or too slow, or its client holds too much memory.
        """
        if self.is_received:  # the next message is the disconnect, which has no time limit
            return await self._receive()
        self._limit.check_head(self.headers)
        message = await self._receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")
            self._limit.held.receive(self.owner, len(body), before=self._num_held)
            self._num_held += len(body)
            if self._limit.log_bodies and body and not self.num_received:
                self.annotate(body=body[:_SHOWN_BYTES].decode(errors="replace"))
            self._parts.append(body)
            self.num_received += len(body)
            self._limit.check_size(self.num_received)
            self.is_received = not message.get("more_body", False)
            if not self.is_received:
                self._limit.check_time(self.scope, self.num_received)
        return message

    async def body(self) -> bytes:
        """Return the complete body, also if parts of it were received before.

        Raises:
            ClientDisconnect: the client has disconnected before its end.
            HTTPException: see `receive`.
        """
        while not self.is_received:
            if (await self.receive())["type"] == "http.disconnect":
                raise ClientDisconnect
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    async def body_parts(self, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the parts of a body, of which only the current one is kept, as they arrive.

        Args:
            max_bytes: maximum size of all parts, instead of that of other bodies.

        Raises:
            ClientDisconnect: the client has disconnected before its end.
            HTTPException: see `receive`.
        """
        self._limit = self._limit._replace(max_bytes=max_bytes)
        while not self.is_received:
            if (await self.receive())["type"] == "http.disconnect":
                raise ClientDisconnect
            part = b"".join(self._parts)
            yield part
            self._parts.clear()
            self._release()

    async def send(self, message: Message) -> None:
        """Send a part of the reply, with the headers of all replies."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # an enum member would be logged by name
            headers = [*message["headers"], *_HEADERS, (_ID_HEADER, self.request_id.encode())]
            if all(name != _POLICY for name, _ in headers):
                headers.append(_DEFAULT_POLICY)
            message["headers"] = headers
        elif not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)

    async def reply(self, content: bytes) -> None:
        """Send a complete JSON reply with status 200."""
        send_whole = self.scope["state"].pop(WHOLE_REPLY, None)
        if send_whole is not None:
            self.status, self.is_complete = 200, True
            await send_whole(_HEAD % (len(content), self.request_id.encode()), content)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send({"type": "http.response.body", "body": content})

    def header(self, name: bytes) -> str:
        """Return the first header with a name; empty if absent."""
        return self.headers.get(name, b"").decode("latin-1")

    def annotate(self, **fields: str | float) -> None:
        """Add fields to the log line."""
        self.fields.update(fields)

    def use_model(self, loaded: LoadedModel) -> None:
        """Count a model as used until the request ends, and add it to the log line."""
        self._models.append(loaded)
        loaded.use.in_flight += 1
        loaded.use.last_s = time.time()
        self.fields["model"] = loaded.address

    def end(self) -> None:
        """Release the body and the models of an answered or abandoned request, including streams."""
        self._release()
        self._parts.clear()
        while self._models:
            self._models.pop().use.in_flight -= 1
        # circles of references would wait for the garbage collector
        state = self.scope["state"]
        state.pop(_KEY, None)
        state.pop(WHOLE_REPLY, None)

    def _release(self) -> None:
        if self._num_held:
            self._limit.held.add(self.owner, -self._num_held)
            self._num_held = 0


def guarded(scope: Scope) -> GuardedRequest:
    """Return the guarded request of a scope."""
    request: GuardedRequest = scope["state"][_KEY]
    return request
