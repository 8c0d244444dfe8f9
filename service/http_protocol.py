"""HTTP connections that cannot be kept half open, and whose bytes have one reading: what uvicorn lacks.

With httptools it takes a head of any size, waits for it for ever, and answers connections past its limit
with a text that has no `Retry-After`. It loses the body of a request that offers to upgrade, and reads that as the
next request; it sends chunks to clients of HTTP/1.0, and hangs up on those that have said all they had to say.
That is decided here, before there is a request.
"""

import asyncio
import select
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.backlog import SlowClients
from service.request_heads import OLD_VERSIONS, head_error
from service.routes.errors import error_json
from service.routes.limits import OVER_LIMIT, RECEIVE_TIMEOUT
from service.schemas.replies import ErrorBody

_FRAME_BYTES = 4
"""Between a header's name and value, and after it."""

_GONE_POLL_S = 0.02
"""How often it is looked whether a client that sends no more has gone."""

_INVALID = "Invalid HTTP request received."


class GuardedProtocol(HttpToolsProtocol):
    """A connection whose requests have a limited time to arrive, and whose heads are limited in size.

    A connection past the limit in number may ask once, which the application answers 503; past
    twice the limit it is cut off, and so is a client that does not take its answer. `make_protocol` makes a class with
    limits of its own.
    """

    max_connections = 4096
    max_header_bytes = 32768
    receive_timeout_s = 30.0
    slow_clients = SlowClients(timeout_s=30.0, max_bytes=1 << 28)

    _framing_bytes = 0
    _head_done = False
    _request_complete = False
    _over_limit = False
    _ignores_input = False
    _refusal: tuple[int, str] | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection, and give it only so much time to ask."""
        super().connection_made(transport)
        self._over_limit = len(self.connections) > self.max_connections
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_timer()
        self.slow_clients.discard(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        self.slow_clients.add(self.transport)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if not self.transport.is_closing():
            self.slow_clients.discard(self.transport)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to take the last answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._track_unsent()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle, whether or not its client has taken all."""
        super().timeout_keep_alive_handler()
        self._track_unsent()

    def eof_received(self) -> bool:  # type: ignore[override]  # of uvicorn's, which closes whatever is asked
        """Keep the connection of a client that sends no more until all that it has asked is answered.

        One that has hung up looks the same, until something is sent to it.
        """
        if not self._has_unanswered_requests() or _has_hung_up(self.transport):
            return False
        self.cycle.keep_alive = False
        self._stop_timer()
        self._timer = self.loop.call_later(_GONE_POLL_S, self._check_hang_up)
        return True

    def data_received(self, data: bytes) -> None:
        """Parse what came; a head that outgrows its limit is refused before it is whole, and so are trailers."""
        if self._ignores_input:
            return
        self._framing_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
        if self.transport.is_closing():
            return
        if self._request_complete and self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._framing_bytes > self.max_header_bytes:
            self._refuse(*self._too_long())
        else:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start with a request's head; what came with the end of the one before does not count."""
        self._framing_bytes = 0
        self._head_done = self._request_complete = False
        super().on_message_begin()
        self.scope["state"][OVER_LIMIT] = self._over_limit

    def on_headers_complete(self) -> None:
        """Look at the head before anything is done with it; what may come after the body is no part of it."""
        framed, hosts, is_coded = len(self.url), 0, False
        for name, value in self.headers:
            framed += len(name) + len(value) + _FRAME_BYTES
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                is_coded = True
        if framed > self.max_header_bytes:
            self._stop(self._too_long())
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._stop((HTTPStatus.BAD_REQUEST, "the method is CONNECT; this service is no proxy"))
            return  # an offer: see `_parse`
        if hosts != 1 or is_coded:
            self._stop(head_error(self.headers, self.parser.get_http_version()))
        super().on_headers_complete()
        if self.scope["http_version"] in OLD_VERSIONS:
            self.cycle.keep_alive = False
            self.cycle.send = partial(_send_unchunked, self.cycle)  # type: ignore[method-assign]
        self.headers = []  # the request has its own; trailers must not pass for them
        self._framing_bytes = 0
        self._head_done = True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, whose size the application limits; what frames the next part is counted anew."""
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Know that no more of this request is to come."""
        if not self._head_done:  # but more is: all that stands after an offer
            return
        self._request_complete = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or what was found to be too long, in the shape of all our errors."""
        self._refuse(*(self._refusal or (400, msg)))

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse what came, as if nobody had offered to upgrade (RFC 9110, section 7.8).

        The parser takes an offer for the end of HTTP, without the request's body. So another goes on: from the same
        head, but for the offer.
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
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.parser.feed_data(b"".join([*head, b"\r\n"]))

    def _stop(self, refusal: tuple[int, str] | None) -> None:
        """Have the parser stop, and `send_400_response` be called, if there is a reason to refuse."""
        if refusal is not None:
            self._refusal = refusal
            raise ValueError(refusal)

    def _check_hang_up(self) -> None:
        """Cut off a client that has gone, once it is seen to have; all others go on waiting for their answers."""
        if self.transport.is_closing():
            return
        if _has_hung_up(self.transport):
            self.transport.abort()
            return
        if not self.pipeline and not self.cycle.response_started and self.cycle.transport is self.transport:
            self._begin_answer()
        self._timer = self.loop.call_later(_GONE_POLL_S, self._check_hang_up)

    def _begin_answer(self) -> None:
        """Send the byte with which any answer begins: the system of a client that has gone says so."""
        cycle, transport = self.cycle, self.transport

        def write_rest(data: bytes) -> None:
            cycle.transport = transport
            transport.write(data[1:])

        rest: Any = SimpleNamespace(write=write_rest, close=transport.close, is_closing=transport.is_closing)
        cycle.transport = rest
        transport.write(b"H")

    def _refuse(self, status: int, message: str) -> None:
        if self._has_unanswered_requests():  # they come first, and the end of the connection then
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
        """Whether whole requests are unanswered, and what is being read is none of them."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return self._request_complete or not self._head_done

    def _is_answering(self) -> bool:
        """Whether an answer is on its way, into which none may be written, or was given to what is still being read."""
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
        """A connection that was closed stays as long as there is something to send."""
        if self in self.connections:
            self.slow_clients.add(self.transport)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.receive_timeout_s, self._on_receive_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_receive_timeout(self) -> None:
        """What is awaited has not come: a first request, the rest of a head or of a body."""
        self._timer = None
        if self.pipeline:  # nothing is read while requests before this one are answered
            self._start_timer()
        elif self.headers is None or (
            self.cycle is not None and self.cycle.response_complete and self._head_done
        ):
            self._close()
        elif not self._head_done:
            self._refuse(408, f"the request's headers took longer than {self.receive_timeout_s:g} s")
        else:
            self.cycle.scope["state"][RECEIVE_TIMEOUT] = self.receive_timeout_s
            self.cycle.message_event.set()  # the application waits for the body: it looks, and answers 408


def _has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the other side has hung up or reset; not whether it just sends no more."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), 0)  # what is looked for is always told
    return bool(poll.poll(0))


async def _send_unchunked(cycle: RequestResponseCycle, message: Any) -> None:
    """Send a part of an answer as it is: without a length the end of the connection is its end."""
    cycle.chunked_encoding = False
    cycle.expected_content_length = len(message.get("body", b""))
    await RequestResponseCycle.send(cycle, message)


def make_protocol(
    *,
    max_connections: int,
    max_header_bytes: int,
    receive_timeout_s: float,
    send_timeout_s: float,
    max_unsent_bytes: int,
) -> type[GuardedProtocol]:
    """The protocol with these limits; uvicorn takes a class.

    Args:
        max_connections: open at most.
        max_header_bytes: of a request's line and headers together at most.
        receive_timeout_s: for a request to arrive.
        send_timeout_s: in which a client must take some of its answer.
        max_unsent_bytes: of answers that clients have not taken.
    """
    limits = {
        "max_connections": max_connections,
        "max_header_bytes": max_header_bytes,
        "receive_timeout_s": receive_timeout_s,
        "slow_clients": SlowClients(timeout_s=send_timeout_s, max_bytes=max_unsent_bytes),
    }
    return type("Guarded", (GuardedProtocol,), limits)
