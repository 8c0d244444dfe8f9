"""HTTP/1.1 connections for load generation, and server-sent events with their token counts.

A connection carries one request at a time and costs little more than the parser: the generator
often shares a machine with the server, where a client library would take more CPU than a small
model does. The pool opens connections up to a bound and reuses the one released last, so that few
are idle for long.
"""

import asyncio
import contextlib
import functools
import json
import re
import ssl
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple, Self

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from service.bench.plan import Request, Target

_DONE = b"[DONE]"


class EventSplitter:
    """Parser of a body's chunks into payloads of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, piece: bytes) -> Iterator[bytes]:
        """Yield the payloads completed by a chunk; comments have none."""
        rest = self._rest + piece
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        *complete, self._rest = rest.split(b"\n\n")
        for event in complete:
            lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
            payload = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
            if payload:
                yield payload


class Event(NamedTuple):
    """Content of an event.

    Attributes:
        num_tokens: number of tokens in it.
        usage_tokens: number generated in the reply, if the server counts them.
        error: reported by the server in the middle of a stream.
    """

    num_tokens: int = 0
    usage_tokens: int | None = None
    error: str | None = None


def parse_event(payload: bytes) -> Event:
    """Parse an event of this API, of OpenAI's completions or chats; any other counts as one token."""
    if payload == _DONE:
        return Event()
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):  # such as plain text
        return Event(num_tokens=1)
    if not isinstance(value, dict):
        return Event(num_tokens=1)
    if value.get("error"):
        return Event(error=error_message(payload))
    choices = value.get("choices")
    if not isinstance(choices, list):
        return Event(num_tokens=1)
    return Event(sum(map(_num_tokens, choices)), _usage_tokens(value))


def _num_tokens(choice: Any) -> int:
    if not isinstance(choice, dict):
        return 0
    if isinstance(ids := choice.get("token_ids"), list):
        return len(ids)
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return 1 if text else 0  # the last event of a choice has no text


def _usage_tokens(reply: dict[str, Any]) -> int | None:
    usage = reply.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def error_message(body: bytes) -> str:
    """Extract an error's message in one line: from OpenAI's or FastAPI's format, else the body's beginning."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        error = value.get("error", value.get("detail", value))
        body = str(error.get("message", error) if isinstance(error, dict) else error).encode()
    return " ".join(body.decode(errors="replace").split())[:200]


_EVENT_STREAM = b"text/event-stream"
_USAGE = re.compile(rb'"completion_tokens": *(\d+)')
_FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class ExchangeError(Exception):
    """No complete reply arrived.

    Attributes:
        kind: `cut` if the connection ended, `protocol` if the reply was not HTTP.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Reply:
    """A reply as it arrives.

    Attributes:
        status: of HTTP.
        streamed: whether it is a stream of server-sent events; such a body is not stored.
        num_tokens: number generated; without streaming, of the reply's usage.
        token_times_s: arrival times of events with tokens, by `time.perf_counter`.
        ended_s: time of its completion.
        error: reported in the middle of a stream.
    """

    __slots__ = (
        "_pieces",
        "_splitter",
        "ended_s",
        "error",
        "num_tokens",
        "status",
        "streamed",
        "token_times_s",
    )

    def __init__(self) -> None:
        self.status = 0
        self.streamed = False
        self.num_tokens = 0
        self.token_times_s = array("d")
        self.ended_s = 0.0
        self.error: str | None = None
        self._pieces: list[bytes] = []
        self._splitter: EventSplitter | None = None

    @property
    def body(self) -> bytes:
        """Return the complete body; empty for a stream."""
        return b"".join(self._pieces)

    def push(self, piece: bytes, now_s: float) -> None:
        """Add a chunk of the body that arrived at `now_s`."""
        if not self.streamed:
            self._pieces.append(piece)
            return
        if self._splitter is None:
            self._splitter = EventSplitter()
        for payload in self._splitter.push(piece):
            event = parse_event(payload)
            if event.num_tokens:
                self.token_times_s.append(now_s)
                self.num_tokens += event.num_tokens
            if event.usage_tokens:
                self.num_tokens = event.usage_tokens
            self.error = self.error or event.error

    def end(self, now_s: float) -> None:
        """Mark the reply as complete."""
        self.ended_s = now_s
        if not self.streamed and (found := _USAGE.search(self.body)):
            self.num_tokens = int(found[1])


class Connection(asyncio.Protocol):
    """A connection to a target; made by `open`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._reply = Reply()
        self._framed = False
        self._head_done = False
        self._now_s = 0.0
        self._keeps_alive = True

    @classmethod
    async def open(cls, target: Target) -> Self:
        """Connect.

        Raises:
            OSError: no server accepts the connection, or its certificate is not trusted.
        """
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: cls(target), target.host, target.port, ssl=_tls_context() if target.tls else None
        )
        return connection

    @property
    def is_idle(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and self._done is None and self._keeps_alive

    async def send(self, request: Request) -> Reply:
        """Send a request and return its complete reply.

        Raises:
            ExchangeError: there was no complete reply.
        """
        return await self.exchange(self._target.encode(request))

    async def exchange(self, data: bytes) -> Reply:
        """Send the bytes of a request, encoded by the target, and return its complete reply.

        Raises:
            ExchangeError: there was no complete reply.
        """
        if self._transport is None:
            raise ExchangeError("cut", "the connection was closed before the request")
        self._reply, self._head_done, self._framed = Reply(), False, False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._done

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    # --- called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        """Store the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; all of them get the same arrival time."""
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail("protocol", f"the answer is not HTTP/1.1: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the current request, unless the end of the connection ends its reply."""
        self._transport = None
        if self._head_done and not self._framed and exc is None and self._done is not None:
            self._now_s = time.perf_counter()
            self._finish()
        else:
            self._fail("cut", f"the connection ended before the answer was whole{f': {exc}' if exc else ''}")
        del self._parser  # a reference cycle, and garbage collection may be off

    # --- called by the parser -------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record the headers for content type and framing."""
        name = name.lower()
        if name == b"content-type":
            self._reply.streamed = value.startswith(_EVENT_STREAM)
        elif name in _FRAMING_HEADERS:
            self._framed = True

    def on_headers_complete(self) -> None:
        """Record the status."""
        self._reply.status = self._parser.get_status_code()
        self._head_done = self._reply.status >= 200

    def on_body(self, piece: bytes) -> None:
        """Pass a chunk to the reply."""
        self._reply.push(piece, self._now_s)

    def on_message_complete(self) -> None:
        """Complete the current request; informational (1xx) replies do not count."""
        if self._head_done:
            self._keeps_alive = self._parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is None:  # an unrequested reply: later replies could not be matched
            self.close()
        elif not done.cancelled():
            self._reply.end(self._now_s)
            done.set_result(self._reply)

    def _fail(self, kind: str, message: str) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            done.set_exception(ExchangeError(kind, message))


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


class ConnectionPool:
    """Pool of connections; the last released is reused first, so that few are idle for long.

    Args:
        target: the server.
        max_connections: largest number open at a time; further requests wait, in order.

    Attributes:
        num_waited: number of requests that had to wait for a connection.
    """

    def __init__(self, target: Target, max_connections: int) -> None:
        self.num_waited = 0
        self._target = target
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[Connection] = []

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Provide a connection for one request; it is closed if the request fails.

        Raises:
            OSError: no server accepts the connection.
        """
        self.num_waited += self._slots.locked()
        async with self._slots:
            connection = self._pop_idle() or await Connection.open(self._target)
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

    def _pop_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:  # the server may have closed it
                return connection
        return None
