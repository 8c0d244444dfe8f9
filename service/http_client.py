"""HTTP/1.1 client: request encoding, connections for a request at a time, and their pool.

A connection costs little more than its parser. A client library would take longer than most replies of a
small model and, in a load generator, slow down a server on the machine.
"""

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
C = TypeVar("C", bound="ClientConnection")


def encode_request(
    method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b""
) -> bytes:
    """Encode a request with its `Content-Length`, which `headers` must lack."""
    lines = [method.encode(), b" ", target, b" HTTP/1.1\r\n"]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"content-length: %d\r\n\r\n" % len(body))
    lines.append(body)
    return b"".join(lines)


class ExchangeError(Exception):
    """Missing or incomplete reply.

    Attributes:
        kind: `cut` for a closed connection, `protocol` for a reply not HTTP, or the caller's.
        reply_begun: True if a part of the reply was received.
    """

    def __init__(self, kind: str, message: str, *, reply_begun: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.reply_begun = reply_begun


class ClientConnection(asyncio.Protocol, ABC):
    """Connection for a request at a time; a subclass receives replies as they arrive.

    Attributes:
        transport: transport of the event loop; None if the connection is closed.
        status: status of the reply; 0 before its head has arrived.
        headers: headers of the reply, with names in lower case.
        was_used: True if a request on the connection has ended.
    """

    def __init__(self) -> None:
        self.transport: Any = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.was_used = False
        self._parser = HttpResponseParser(self)
        self._is_busy = False
        self._keeps_alive = True

    @property
    def is_idle(self) -> bool:
        """True if another request can be sent."""
        is_open = self.transport is not None and not self.transport.is_closing()
        return is_open and not self._is_busy and self._keeps_alive

    def start(self, request: bytes) -> None:
        """Send the bytes of a request.

        Raises:
            ExchangeError: the connection is closed.
        """
        if self.transport is None or self.transport.is_closing():
            raise ExchangeError("cut", "the connection was closed before the request")
        self.status, self.headers, self._is_busy = 0, [], True
        self.transport.write(request)

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.abort()

    # --- implemented by subclasses ---

    @abstractmethod
    def begin_reply(self) -> None:
        """Receive the status and the headers."""

    @abstractmethod
    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""

    @abstractmethod
    def end_reply(self, error: ExchangeError | None) -> None:
        """Receive the reply's end, or the error if there is none."""

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail("protocol", f"the reply is not HTTP/1.1: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request, unless its reply ends with the connection."""
        self.transport = None
        if self.status and exc is None and not any(name in _FRAMING_HEADERS for name, _ in self.headers):
            self._end(None)
        else:
            self._fail("cut", f"the connection closed before the end of the reply{f': {exc}' if exc else ''}")
        del self._parser  # a reference cycle, and garbage collection may be off

    # --- called by the parser ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin the reply; skip informational ones (1xx); close the connection on an unrequested one."""
        status = self._parser.get_status_code()
        if not self._is_busy:
            self.close()
        elif status < 200:
            self.headers = []
        else:
            self.status = status
            self.begin_reply()

    def on_message_complete(self) -> None:
        """End the reply."""
        if self.status:
            # known only at the end of a message
            self._keeps_alive = self._parser.should_keep_alive()
            self._end(None)

    def _fail(self, kind: str, message: str) -> None:
        self._end(ExchangeError(kind, message, reply_begun=self.status > 0))

    def _end(self, error: ExchangeError | None) -> None:
        if self._is_busy:
            self._is_busy, self.was_used = False, True
            self.end_reply(error)


class ConnectionPool(Generic[C]):
    """Pool of connections; the last released is reused first, to keep few idle.

    Args:
        connect: opens a connection.
        max_connections: maximum open connections; further requests queue in order.

    Attributes:
        num_waited: requests that waited for a connection.
    """

    def __init__(self, connect: Callable[[], Awaitable[C]], max_connections: int = sys.maxsize) -> None:
        self.num_waited = 0
        self._connect = connect
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[C] = []

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[C]:
        """Provide a connection for a request; close it if that fails."""
        self.num_waited += self._slots.locked()
        async with self._slots:
            connection = self._pop_idle() or await self._connect()
            try:
                yield connection
            finally:
                if connection.is_idle:
                    self._idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        while (connection := self._pop_idle()) is not None:
            connection.close()

    def _pop_idle(self) -> C | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:  # the server may have closed it
                return connection
        return None
