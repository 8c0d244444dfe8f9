"""HTTP/1.1 between workers, over the Unix sockets that they keep for one another.

A client library would take longer than most answers do; this is the parser, and what the parser says
as the messages of an ASGI application, so that an answer is passed on while it comes.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from starlette.types import Message, Scope, Send

from service.routes.facts import header

_BUFFER_BYTES = 1 << 18
"""Of an answer that arrives faster than it is passed on, before its sender must wait."""

_REPLY_TIMEOUT_S = 1.0
"""What workers ask of one another is answered at once; one that hangs is not waited for."""

_HOP_BY_HOP_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"expect", b"te", b"trailer"}
)
_DROPPED_REQUEST_HEADERS = _HOP_BY_HOP_HEADERS | {b"content-length"}
_DROPPED_RESPONSE_HEADERS = _HOP_BY_HOP_HEADERS | {b"date"}
Headers = Iterable[tuple[bytes, bytes]]


class PeerConnectionError(Exception):
    """A worker did not answer, or not to the end.

    Attributes:
        reply_begun: whether some of the answer had come.
    """

    def __init__(self, message: str, *, reply_begun: bool) -> None:
        super().__init__(message)
        self.reply_begun = reply_begun


@dataclass(slots=True)
class PeerResponse:
    """A whole answer; `send` takes it as an application sends it."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def send(self, message: Message) -> None:
        """Take a message of an ASGI application."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        else:
            self.body += message.get("body", b"")


def encode_request(method: str, target: bytes, headers: Headers, body: bytes = b"") -> bytes:
    """A request as it goes over a link."""
    lines = [method.encode(), b" ", target, b" HTTP/1.1\r\n"]
    for name, value in headers:
        if name not in _DROPPED_REQUEST_HEADERS:
            lines += (name, b": ", value, b"\r\n")
    lines.append(b"content-length: %d\r\n\r\n" % len(body))
    lines.append(body)
    return b"".join(lines)


def encode_scope(scope: Scope, body: bytes) -> bytes:
    """The request of a scope as it goes over a link; the answer to HEAD has its body cut off where it came from."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = scope["headers"]
    if header(scope, b"host") is None:  # HTTP/1.0 needs none
        headers = [(b"host", b""), *headers]
    return encode_request(method, target, headers, body)


class Peer:
    """Another worker; connections to it are kept for the next request.

    Args:
        socket: where it listens for the others.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)
        self._idle: list[_PeerConnection] = []

    async def get(self, path: str) -> PeerResponse:
        """The whole answer to a GET that is answered at once.

        Raises:
            CutError: there was none, it did not come soon, or it is an error.
        """
        answer = PeerResponse()
        request = encode_request("GET", path.encode(), [(b"host", b"worker")])
        try:
            async with asyncio.timeout(_REPLY_TIMEOUT_S):
                await self.exchange(request, answer.send)
        except TimeoutError:
            raise PeerConnectionError(
                f"{self._socket}: no answer in {_REPLY_TIMEOUT_S:g} s", reply_begun=answer.status > 0
            ) from None
        if answer.status != HTTPStatus.OK:
            raise PeerConnectionError(
                f"{self._socket}: its answer has the status {answer.status}", reply_begun=True
            )
        return answer

    async def exchange(self, request: bytes, send: Send) -> None:
        """Have a request answered.

        Args:
            request: as `encode` makes it.
            send: given the answer while it comes.

        Raises:
            CutError: nobody listens, or the answer was not whole.
        """
        while True:
            kept = self._idle_connection()
            link = kept or await self._connect()
            try:
                await link.exchange(request, send)
            except PeerConnectionError as error:
                if kept is None or error.reply_begun:
                    raise
                continue  # it was closed for having been idle, or its worker has died: the next is fresh, or refused
            finally:
                link.release(self._idle)
            return

    def _idle_connection(self) -> "_PeerConnection | None":
        while self._idle:
            link = self._idle.pop()
            if link.is_open:
                return link
        return None

    async def _connect(self) -> "_PeerConnection":
        try:
            _, link = await asyncio.get_running_loop().create_unix_connection(_PeerConnection, self._socket)
        except OSError as error:
            raise PeerConnectionError(
                f"{self._socket}: {error.strerror or error}", reply_begun=False
            ) from None
        return link


class _PeerConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._transport: Any = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[Message] = []
        self._arrived: asyncio.Future[None] | None = None
        self._begun = self._complete = self._keeps_alive = False
        self._waiting_bytes = 0
        self._problem: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, send: Send) -> None:
        """See `Sibling.exchange`."""
        self._begun = self._complete = False
        if not self.is_open:
            raise PeerConnectionError("the connection was closed", reply_begun=False)
        self._transport.write(request)
        while True:
            if not self._messages:
                if self._complete:
                    return
                if self._problem is not None:
                    raise PeerConnectionError(self._problem, reply_begun=self._begun)
                self._arrived = asyncio.get_running_loop().create_future()
                await self._arrived
                continue
            messages, self._messages, self._waiting_bytes = self._messages, [], 0
            if self._transport is not None:
                self._transport.resume_reading()
            for message in messages:
                await send(message)

    def release(self, idle: "list[_PeerConnection]") -> None:
        """Be kept for another request, if nothing of the last answer is to come, or waits to be passed on."""
        if self._complete and not self._messages and self.is_open and self._keeps_alive:
            idle.append(self)
        elif self._transport is not None:
            self._transport.abort()

    # --- called by the event loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._problem = f"what it said is not HTTP/1.1: {error}"
            self._transport.abort()
        if self._waiting_bytes > _BUFFER_BYTES:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request under way."""
        self._transport = None
        self._problem = self._problem or f"the connection ended{f': {exc}' if exc else ''}"
        self._wake()

    # --- called by the parser -----------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what is not of this connection alone."""
        name = name.lower()
        if name not in _DROPPED_RESPONSE_HEADERS:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The answer begins."""
        self._begun = True
        headers, self._headers = self._headers, []
        status = self._parser.get_status_code()
        self._messages.append({"type": "http.response.start", "status": status, "headers": headers})

    def on_body(self, piece: bytes) -> None:
        """It goes on."""
        self._waiting_bytes += len(piece)
        self._messages.append({"type": "http.response.body", "body": piece, "more_body": True})

    def on_message_complete(self) -> None:
        """It is whole."""
        self._complete = True
        self._keeps_alive = self._parser.should_keep_alive()  # it knows now only
        last = self._messages[-1] if self._messages else None
        if last is not None and last["type"] == "http.response.body":
            last["more_body"] = False
        else:
            self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
