"""HTTP/1.1 connection handling: limits on slow, idle and oversized requests, and strict framing.

`GuardedProtocol` extends uvicorn's httptools protocol, which accepts request heads of any size,
waits for them without a timeout, and answers connections over its limit without `Retry-After`. It
also parses the body of an upgrade request as the next request (RFC 9110, section 7.8), sends chunks
to HTTP/1.0 clients, and closes half-closed connections. This module handles these cases before a
request is created.

A TLS connection is closed once its last bytes are sent. The event loop would wait for the client's
`close_notify`, which idle clients do not send. A half-closed TLS connection is a closed one.

`Host` and `Transfer-Encoding` are checked (RFC 9112, sections 3.2 and 6.1) against request
smuggling: a proxy that parses them differently would see other request boundaries in the same
bytes.

`SlowClients` bounds the time and the memory of replies to slow readers, whose unsent bytes would
otherwise stay here without limit. The classes are for the event loop only.
"""

import asyncio
import contextlib
import fcntl
import re
import select
import socket
import struct
import termios
import types
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from functools import partial
from http import HTTPStatus
from itertools import chain
from types import SimpleNamespace
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.api_errors import error_json
from service.middleware.guarded_request import ARRIVAL_S, OVER_LIMIT, RECEIVE_TIMEOUT, WHOLE_REPLY
from service.schemas.replies import ErrorBody

_BASE_PATH = re.compile("^/+(v[12])/+")
"""Start of a path, such as `//v2/` if a client's base URL ends in a slash, which is read as `/v2/`."""
_LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing resets the connection."""

_VERSIONS = frozenset({"0.9", "1.0", "1.1"})
OLD_VERSIONS = frozenset({"0.9", "1.0"})
"""HTTP versions without chunked encoding and without a required `Host` header."""

_MAX_QUOTED_BYTES = 40
_BLANK = b" \t"
_CODING = b"transfer-encoding"

_FRAME_BYTES = 4
"""Bytes between a header's name and value, and after the value."""

_FRAMING_RATIO = 17
"""Received bytes per byte of the body, itself included, that are not counted: chunks of one byte take six."""

_GONE_POLL_S = 0.02
"""Interval of the disconnection checks of half-closed connections."""

_SENT_POLL_S = 0.05
"""Interval of the checks of closing TLS connections for unsent bytes."""

_MAX_STARTED = 32
"""Maximum requests of one turn of the event loop that are answered before the others are read."""

_INVALID = "Invalid HTTP request received."
_CLOSE = (b"connection", b"close")


class SlowClients:
    """Connections with unsent bytes, oldest first.

    Args:
        timeout_s: time without progress after which a client is disconnected.
        max_bytes: maximum unsent bytes of all clients; above it the oldest connections are reset.
        pending_bytes: returns the bytes of replies that wait to be sent, divided among these clients.
    """

    def __init__(
        self, *, timeout_s: float, max_bytes: int, pending_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._pending_bytes = pending_bytes
        # unsent bytes at the last check, and the timer of the next check
        self._slow: dict[asyncio.Transport, tuple[int, asyncio.TimerHandle]] = {}

    def add(self, transport: asyncio.Transport) -> None:
        """Watch a connection until it is discarded, or disconnected for lack of progress."""
        if transport not in self._slow:
            self._check_later(transport)
            self._enforce_limit()

    def discard(self, transport: asyncio.Transport) -> None:
        """Stop watching a connection whose client has caught up or disconnected."""
        if (slow := self._slow.pop(transport, None)) is not None:
            slow[1].cancel()

    def _check_later(self, transport: asyncio.Transport) -> None:
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._check_progress, transport)
        self._slow[transport] = _unsent_bytes(transport), timer

    def _check_progress(self, transport: asyncio.Transport) -> None:
        if _unsent_bytes(transport) >= self._slow[transport][0]:
            self._cut_off(transport)
        else:
            self._check_later(transport)

    def _enforce_limit(self) -> None:
        sizes = {transport: transport.get_write_buffer_size() for transport in self._slow}
        each = self._pending_bytes() // len(sizes)
        excess = sum(sizes.values()) + each * len(sizes) - self._max_bytes
        for transport, size in [*sizes.items()][:-1]:
            if excess <= 0:
                break
            self._cut_off(transport)
            excess -= size + each

    def _cut_off(self, transport: asyncio.Transport) -> None:
        self.discard(transport)
        # without a reset, the kernel would still send its buffer; errors mean that it is just closed
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        transport.abort()


def _unsent_bytes(transport: asyncio.Transport) -> int:
    """Count unsent bytes here and in the kernel, which reports free space only in large steps."""
    buffered = transport.get_write_buffer_size()
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, AttributeError):  # just closed; a TLS connection then has no socket
        return buffered
    return buffered + int(struct.unpack("i", queued)[0])


def head_error(num_hosts: int, codings: Sequence[bytes], version: str) -> tuple[int, str] | None:
    """Return the error status and message of a head, or None if it is valid.

    Args:
        num_hosts: number of `Host` headers.
        codings: values of `Transfer-Encoding` headers.
        version: HTTP version, such as `1.1`.
    """
    if num_hosts > 1 or (not num_hosts and version not in OLD_VERSIONS):
        return HTTPStatus.BAD_REQUEST, f"the request has {num_hosts} Host headers; send one"
    if not codings:
        return None
    if version in OLD_VERSIONS:
        return HTTPStatus.BAD_REQUEST, f"HTTP/{version} has no Transfer-Encoding; send Content-Length"
    value = b",".join(codings)
    found = f"the request's Transfer-Encoding is {value[:_MAX_QUOTED_BYTES].decode('latin-1')!r}"
    *previous, last = (coding.strip(_BLANK).lower() for coding in value.split(b","))
    if last != b"chunked" or b"chunked" in previous:
        return HTTPStatus.BAD_REQUEST, f"{found}; chunked must be last and occur once"
    if previous:
        return HTTPStatus.NOT_IMPLEMENTED, f"{found}; only chunked is supported"
    return None


class GuardedProtocol(HttpToolsProtocol):
    """Connection with limits on the arrival time and the head size of requests.

    A connection above `max_connections` may send one request, which the application answers with 503; one above
    twice that number is closed, and so is that of a client that does not read its reply. A subclass sets the
    limits, because uvicorn requires a class.

    Attributes:
        max_connections: maximum open connections.
        max_header_bytes: maximum bytes of a request line and its headers together.
        receive_timeout_s: maximum time for a request to arrive.
        slow_clients: clients slow to read their replies.
        operations: method and path of requests that are answered without a task if they need not wait.
        num_started: number of these in this turn of the event loop.
        on_end: called at the end of the connection.
    """

    max_connections = 4096
    max_header_bytes = 32768
    receive_timeout_s = 30.0
    slow_clients = SlowClients(timeout_s=30.0, max_bytes=1 << 28)

    operations: Collection[tuple[str, str]] = ()
    num_started = 0

    _waiting: tuple[RequestResponseCycle, Any] | None = None
    _framing_bytes = 0
    _num_arrived = _head_bound = 0  # last bytes, and a bound of the head's
    _head_done = False
    _is_new = False  # whether a head has just been completed
    _request_complete = False
    _over_limit = False
    _ignores_input = False
    _refusal: tuple[int, str] | None = None
    _timer: asyncio.TimerHandle | None = None
    _idle_since_s: float | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_end: Callable[[], None] = lambda: None
        self._arrival_s: float | None = asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Count the connection, and start the timeout of its first request."""
        super().connection_made(transport)
        if self.scheme == "https" or not _is_ready(transport, select.POLLIN):
            # the time until the client sends is no delay of the event loop
            self._arrival_s = None
        self._over_limit = len(self.connections) > self.max_connections
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and the watch of unsent bytes."""
        self.on_end()
        self._stop_timer()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self.slow_clients.discard(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Watch a client that reads too slowly."""
        super().pause_writing()
        self.slow_clients.add(self.transport)

    def resume_writing(self) -> None:
        """Resume writing once the client reads again."""
        super().resume_writing()
        if not self.transport.is_closing():
            self.slow_clients.discard(self.transport)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to read the last reply."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._idle_since_s = self.loop.time()
                if self.timeout_keep_alive_task is None:
                    self._wait_idle(self.timeout_keep_alive)
        self._track_unsent()

    def _wait_idle(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """Note that the connection is not idle; a timer lasts for many requests, as making one takes long."""
        self._idle_since_s = None

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and watch its unsent bytes."""
        self.timeout_keep_alive_task = None
        if self._idle_since_s is None:
            return
        rest_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if rest_s > 0:
            self._wait_idle(rest_s)
            return
        super().timeout_keep_alive_handler()
        self._track_unsent()

    def shutdown(self) -> None:
        """Close an idle connection, or let its running request finish."""
        super().shutdown()
        self._track_unsent()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn always closes the connection
        """Keep a half-closed connection open until all its requests are answered.

        A disconnected client cannot be distinguished until bytes are sent to it.
        """
        if self.scheme == "https" or not self._has_unanswered_requests() or _is_ready(self.transport):
            return False
        self.cycle.keep_alive = False
        self._stop_timer()
        self._timer = self.loop.call_later(_GONE_POLL_S, self._check_hang_up)
        return True

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; reject heads and trailers over the limit before they are complete."""
        if self._ignores_input:
            return
        self._num_arrived = len(data)
        self._framing_bytes += self._num_arrived
        self._head_bound += self._num_arrived
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
        self._arrival_s = None  # the rest of an incomplete head arrives later
        self._control_time()
        if self._waiting is not None:
            self._start_now(*self._waiting)

    def _control_time(self) -> None:
        """Start or stop the timeout of the request being received; reject a head or trailers over the limit."""
        if self.transport.is_closing():
            return
        if self._request_complete and self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._framing_bytes > self.max_header_bytes:
            self._refuse(*self._too_long())
        else:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start a request's head; bytes received with the last request's end do not count."""
        self._framing_bytes, self._head_bound = 0, self._num_arrived
        self._head_done = self._request_complete = False
        super().on_message_begin()
        self.scope["state"][OVER_LIMIT] = self._over_limit

    def on_headers_complete(self) -> None:
        """Check the head before the request is created; trailers are not part of it."""
        names = [name for name, _ in self.headers]
        codings = [value for name, value in self.headers if name == _CODING] if _CODING in names else ()
        if self._head_bound > self.max_header_bytes:  # seldom
            head_bytes = len(self.url) + _FRAME_BYTES * len(names)
            head_bytes += sum(map(len, chain.from_iterable(self.headers)))
            if head_bytes > self.max_header_bytes:
                self._stop(self._too_long())
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._stop((HTTPStatus.BAD_REQUEST, "the method is CONNECT; this service is not a proxy"))
            return  # an upgrade request: see `_parse`
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            message = f"the request's version is HTTP/{version}; send HTTP/1.1"
            self._stop((HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, message))
        self._stop(head_error(names.count(b"host"), codings, version))
        self._is_new = True
        super().on_headers_complete()
        self._is_new = False
        self._set_up_cycle()
        self.headers = []  # the request refers to its headers; trailers must not be added
        self._framing_bytes = 0
        self._head_done = True

    def _set_up_cycle(self) -> None:
        """Prepare the answer to the request whose head is complete."""
        scope, cycle = self.scope, self.cycle
        if "//" in scope["path"]:
            scope["path"] = _BASE_PATH.sub(r"/\1/", scope["path"])
        if not self.pipeline:  # the request does not wait for an earlier one of its client
            scope["state"][ARRIVAL_S] = self._arrival_s or self.loop.time()
        if scope["http_version"] in OLD_VERSIONS:
            cycle.keep_alive = False
            cycle.send = partial(_send_unchunked, cycle)  # type: ignore[method-assign]
        elif scope["method"] != "HEAD":
            scope["state"][WHOLE_REPLY] = partial(_send_whole, cycle)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the answer: of an operation, at the end of the received bytes; of others as in uvicorn."""
        scope = cycle.scope
        if not self._is_new or (scope["method"], scope["path"]) not in self.operations:
            # also of a request that waited for an earlier one
            super()._start_asgi_task(cycle, app)
        else:
            self._waiting = cycle, app

    def _start_now(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run an answer until it has to wait, and only then make a task of the rest.

        `asyncio.current_task` is None until then. In a turn of the event loop with many requests the others wait as
        tasks, so the limit of their delay holds.
        """
        self._waiting = None
        kind = type(self)
        if not kind.num_started:
            self.loop.call_soon(setattr, kind, "num_started", 0)
        kind.num_started += 1
        if cycle.more_body or kind.num_started > _MAX_STARTED:
            super()._start_asgi_task(cycle, app)
            return
        answer = cycle.run_asgi(app)
        try:
            waits_for = answer.send(None)
        except StopIteration:
            return
        task = self.loop.create_task(_continue(answer, waits_for))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body, whose size the application limits; it allows for some bytes of framing."""
        self._framing_bytes = max(0, self._framing_bytes - _FRAMING_RATIO * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        if not self._head_done:  # an upgrade request: the body follows, see `_parse`
            return
        if (
            self.headers
            and sum(len(name) + len(value) for name, value in self.headers) > self.max_header_bytes
        ):
            self._stop(self._too_long())  # trailers
        self._request_complete = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, or an invalid head, with a JSON error."""
        self._refuse(*(self._refusal or (400, msg)))

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse received bytes and ignore `Upgrade` headers (RFC 9110, section 7.8).

        The parser stops after such a head. A new one then receives the head without the header, and the
        remaining bytes.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as offer:
                data = memoryview(data)[offer.args[0] :]
                self._parse_head_again()
            else:
                return

    def _parse_head_again(self) -> None:
        version = self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name != b"upgrade":
                head += (name, b": ", value, b"\r\n")
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        self.parser.feed_data(b"".join([*head, b"\r\n"]))

    def _stop(self, refusal: tuple[int, str] | None) -> None:
        """Make the parser fail if the head is invalid; the failure calls `send_400_response`."""
        if refusal is not None:
            self._refusal = refusal
            raise ValueError(refusal)

    def _check_hang_up(self) -> None:
        """Abort the connection of a disconnected client, or check again later."""
        if self.transport.is_closing():
            return
        if _is_ready(self.transport):
            self.transport.abort()
            return
        if not self.pipeline and not self.cycle.response_started and self.cycle.transport is self.transport:
            self._begin_answer()
        self._timer = self.loop.call_later(_GONE_POLL_S, self._check_hang_up)

    def _begin_answer(self) -> None:
        """Send `H`, the first byte of every reply; the kernel of a disconnected client answers with a reset."""
        cycle, transport = self.cycle, self.transport

        def write_rest(data: bytes) -> None:
            cycle.transport = transport
            transport.write(data[1:])

        stand_in: Any = SimpleNamespace(
            write=write_rest, close=transport.close, is_closing=transport.is_closing
        )
        cycle.transport = stand_in
        transport.write(b"H")

    def _refuse(self, status: int, message: str) -> None:
        # answer these first, then close the connection
        if self._has_unanswered_requests():
            self.cycle.keep_alive = False
            self._ignores_input = True
            self._stop_timer()
            return
        if self._is_answering():
            self._close()
            return
        body = error_json(ErrorBody(message, "invalid_request_error", None, "bad_http"))
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self._close()

    def _has_unanswered_requests(self) -> bool:
        """Return whether complete requests are unanswered, not counting one still being received."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return self._request_complete or not self._head_done

    def _is_answering(self) -> bool:
        """Return whether a reply is being sent, or was sent to a request still being received."""
        if self.cycle is None or not self.cycle.response_started:
            return False
        return not self.cycle.response_complete or (self._head_done and not self._request_complete)

    def _too_long(self) -> tuple[int, str]:
        return (
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request's line and headers have more than {self.max_header_bytes} bytes",
        )

    def _close(self) -> None:
        self.transport.close()
        self._track_unsent()

    def _track_unsent(self) -> None:
        """Watch a closing connection, which stays open while it has unsent bytes."""
        if self.transport.is_closing() and self in self.connections:
            self.slow_clients.add(self.transport)
            if self.scheme == "https":
                self._stop_timer()
                self._end_tls()

    def _end_tls(self, *, is_sent: bool = False) -> None:
        """Close the connection below TLS after two checks without unsent bytes: the loop may hold more."""
        if is_sent and not _unsent_bytes(self.transport):
            self.transport.abort()
            return
        check = partial(self._end_tls, is_sent=not _unsent_bytes(self.transport))
        self._timer = self.loop.call_later(_SENT_POLL_S, check)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.receive_timeout_s, self._on_receive_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_receive_timeout(self) -> None:
        """Handle the timeout of a first request, of an incomplete head or of an incomplete body."""
        self._timer = None
        if self.pipeline:  # no bytes are read while earlier requests are answered
            self._start_timer()
        elif self.headers is None or (
            self.cycle is not None and self.cycle.response_complete and self._head_done
        ):
            self._close()
        elif not self._head_done:
            self._refuse(408, f"the request's headers took longer than {self.receive_timeout_s:g} s")
        else:
            self.cycle.scope["state"][RECEIVE_TIMEOUT] = self.receive_timeout_s
            self.cycle.message_event.set()  # wakes the application, which then answers 408


def _is_ready(transport: asyncio.Transport, events: int = 0) -> bool:
    """Return whether events are there, or the client has closed or reset, not merely half-closed the connection."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), events)
    return bool(poll.poll(0))


async def _continue(answer: Coroutine[Any, Any, None], waits_for: Any) -> None:
    """Run the rest of a coroutine that waits for a future."""
    await _resume(answer, waits_for)


@types.coroutine
def _resume(answer: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    try:
        while True:
            try:
                result = yield waits_for
            except BaseException as error:  # noqa: BLE001 - of the future, or a cancellation
                waits_for = answer.throw(error)
            else:
                waits_for = answer.send(result)
    except StopIteration:
        pass


async def _send_whole(cycle: RequestResponseCycle, head: bytes, body: bytes) -> None:
    """Send a complete reply with one write instead of two, without a check of each header.

    Args:
        cycle: the request, not answered before.
        head: status line and headers, with a length, each with its line end; no `Connection`.
        body: the body.
    """
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    lines = [b"%b: %b\r\n" % header for header in cycle.default_headers if header != _CLOSE]
    if _CLOSE in cycle.default_headers:  # the service is shutting down
        cycle.keep_alive = False
    if not cycle.keep_alive:
        lines.append(b"connection: close\r\n")
    cycle.transport.write(b"".join([head, *lines, b"\r\n", body]))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


async def _send_unchunked(cycle: RequestResponseCycle, message: Any) -> None:
    """Send a part of a reply without chunks; the end of the connection ends a reply without a length."""
    cycle.chunked_encoding = False
    cycle.expected_content_length = len(message.get("body", b""))
    await RequestResponseCycle.send(cycle, message)
