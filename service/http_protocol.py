"""HTTP connections that cannot be kept half open: limits that uvicorn lacks.

With httptools it takes a head of any size, waits for it for ever, and answers connections past its limit
with a text that has no `Retry-After`. That is decided here, before there is a request.
"""

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.backlog import Backlog
from service.routes.errors import error_json
from service.routes.limits import CROWDED, LATE
from service.schemas.replies import ErrorBody

_FRAME_BYTES = 4
"""Between a header's name and value, and after it."""


class GuardedProtocol(HttpToolsProtocol):
    """A connection whose requests have a limited time to arrive, and whose heads are limited in size.

    A connection past the limit in number may ask once, which the application answers 503; past
    twice the limit it is cut off, and so is a client that does not take its answer. `guarded` makes a class with
    limits of its own.
    """

    max_connections = 4096
    max_header_bytes = 32768
    receive_timeout_s = 30.0
    backlog = Backlog(timeout_s=30.0, max_bytes=1 << 28)

    _framing_bytes = 0
    _head_done = False
    _whole = False
    _crowded = False
    _refusal: tuple[int, str] | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection, and give it only so much time to ask."""
        super().connection_made(transport)
        self._crowded = len(self.connections) > self.max_connections
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._unwatch()
        self.backlog.discard(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        self.backlog.add(self.transport)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if not self.transport.is_closing():
            self.backlog.discard(self.transport)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to take the last answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_closing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle, whether or not its client has taken all."""
        super().timeout_keep_alive_handler()
        self._watch_closing()

    def data_received(self, data: bytes) -> None:
        """Parse what came; a head that outgrows its limit is refused before it is whole, and so are trailers."""
        self._framing_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._whole:
            self._unwatch()
        elif self._framing_bytes > self.max_header_bytes:
            self._refuse(*self._too_long())
        else:
            self._watch()

    def on_message_begin(self) -> None:
        """Start with a request's head; what came with the end of the one before does not count."""
        self._framing_bytes = 0
        self._head_done = self._whole = False
        super().on_message_begin()
        self.scope["state"][CROWDED] = self._crowded

    def on_headers_complete(self) -> None:
        """Measure the head before anything is done with it; what may come after the body is no part of it."""
        framed = sum(len(name) + len(value) + _FRAME_BYTES for name, value in self.headers)
        if len(self.url) + framed > self.max_header_bytes:
            self._refusal = self._too_long()
            raise ValueError(self._refusal)  # the parser stops, and `send_400_response` is called
        super().on_headers_complete()
        self.headers = []  # the request has its own; trailers must not pass for them
        self._framing_bytes = 0
        self._head_done = True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, whose size the application limits; what frames the next part is counted anew."""
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Know that no more of this request is to come."""
        self._whole = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or what was found to be too long, in the shape of all our errors."""
        self._refuse(*(self._refusal or (400, msg)))

    def _refuse(self, status: int, message: str) -> None:
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

    def _is_answering(self) -> bool:
        """Whether an answer is on its way, into which none may be written, or was given to what is still being read."""
        if self.cycle is None or not self.cycle.response_started:
            return False
        return not self.cycle.response_complete or (self._head_done and not self._whole)

    def _too_long(self) -> tuple[int, str]:
        return (
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request's line and headers have more than {self.max_header_bytes} bytes",
        )

    def _close(self) -> None:
        self.transport.close()
        self._watch_closing()

    def _watch_closing(self) -> None:
        """A connection that was closed stays as long as there is something to send."""
        if self in self.connections:
            self.backlog.add(self.transport)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.receive_timeout_s, self._too_slow)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        """What is awaited has not come: a first request, the rest of a head or of a body."""
        self._timer = None
        if self.pipeline:  # nothing is read while requests before this one are answered
            self._watch()
        elif self.headers is None or (
            self.cycle is not None and self.cycle.response_complete and self._head_done
        ):
            self._close()
        elif not self._head_done:
            self._refuse(408, f"the request's headers took longer than {self.receive_timeout_s:g} s")
        else:
            self.cycle.scope["state"][LATE] = self.receive_timeout_s
            self.cycle.message_event.set()  # the application waits for the body: it looks, and answers 408


def guarded(
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
        "backlog": Backlog(timeout_s=send_timeout_s, max_bytes=max_unsent_bytes),
    }
    return type("Guarded", (GuardedProtocol,), limits)
