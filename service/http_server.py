"""HTTP server: listening socket, TLS, file descriptor limit, uvicorn configuration and draining.

After a stop signal the server accepts no new work and gives running requests time to finish; a
second signal ends the process. `SocketListener` pauses when file descriptors run out; the event
loop's own accept would retry in a busy loop.
"""

import asyncio
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import structlog
import uvicorn
from fastapi import FastAPI

from models.errors import InputError
from models.files import read_settings_file
from service import logs
from service.engine.engine import Engine
from service.http_protocol import GuardedProtocol, SlowClients
from service.middleware.cross_origin import is_loopback
from service.settings import Settings

_log = structlog.get_logger(__name__)
_OTHER_FILES = 128
"""Descriptors for models, registry connections, other workers and the log, with a margin."""

_BACKLOG = 4096
"""Connections that wait to be accepted, if the kernel allows; others' clients wait a second."""

_RETRY_S = 0.1
_ACCEPTED_AT_ONCE = 256
"""Maximum connections accepted in a turn of the event loop; others wait unseen by limits."""

_CERTIFICATE = "GRAMOPHONE_TLS_CERTIFICATE"
_KEY = "GRAMOPHONE_TLS_KEY"
_NO_KEY = "it is not a private key in PEM format"

_TLS_CLOSE_S = 600.0
"""Maximum time from a TLS connection's closing to its end; normally `SlowClients` is faster."""

_CANCEL_MARGIN_S = 2
"""Seconds by which the server's drain timeout exceeds the engine's, which answers all clients."""

_LAST_REQUESTS_S = 0.25
"""Time for requests sent just before a stop, which closed connections would lose."""


def reserve_descriptors(max_connections: int) -> int:
    """Raise the limit on file descriptors; return how many connections fit.

    As many are reserved for those that get 503. The usual soft limit, 1,024, is below the hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return max_connections
    capacity = max(1, (soft - _OTHER_FILES) // 2)
    if capacity < max_connections:
        _log.warning("fewer connections than GRAMOPHONE_MAX_CONNECTIONS", room=capacity, max_open_files=soft)
    return min(capacity, max_connections)


class SocketListener:
    """Listener on the event loop, with the methods of an `asyncio.Server`.

    Args:
        listening: listening socket.
        connect: serves an accepted socket.
    """

    def __init__(self, listening: socket.socket, connect: Callable[[socket.socket], None]) -> None:
        self._socket = listening
        self._socket.settimeout(0)
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._listen()

    def close(self) -> None:
        """Stop accepting connections."""
        if not self._is_closed:
            self._is_closed = True
            self._pause(None)
            self._socket.close()

    async def wait_closed(self) -> None:
        """Return immediately; `close` has closed the socket."""

    def _listen(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _pause(self, seconds: float | None) -> None:
        self._loop.remove_reader(self._socket.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._listen)

    def _on_readable(self) -> None:
        """Accept waiting connections, as many as a turn may take."""
        for _ in range(_ACCEPTED_AT_ONCE):
            if not self._accept():
                return

    def _accept(self) -> bool:
        """Accept a connection; return whether this turn may accept another."""
        try:
            accepted, _ = self._socket.accept()
        except ConnectionAbortedError:
            return True  # the client disconnected
        except BlockingIOError:
            return False  # none waits, or another worker accepted it
        except OSError as error:
            _log.error("connection not accepted", reason=str(error))
            self._pause(_RETRY_S)  # for instance, no free descriptor
            return False
        self._connect(accepted)
        return True


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Read certificate and key; return the TLS context, or None for plain HTTP.

    Raises:
        InputError: a file is unset, missing or damaged, the key encrypted or not the certificate's.
    """
    if settings.tls_certificate is None and settings.tls_key is None:
        return None
    certificate = _readable(_CERTIFICATE, settings.tls_certificate)
    key = _readable(_KEY, settings.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # OpenSSL may allow older ones
    context.set_alpn_protocols(["http/1.1"])

    def refuse_password() -> NoReturn:
        raise _tls_error(_KEY, key, "it is encrypted; store it without a password")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError:
        raise _tls_error(_CERTIFICATE, certificate, "it is not a certificate in PEM format") from None
    try:
        context.load_cert_chain(certificate, key, refuse_password)
    except ssl.SSLError as error:
        fault = f"it does not fit {certificate} ({error.reason})" if error.reason else _NO_KEY
        raise _tls_error(_KEY, key, fault) from None
    return context


def _readable(name: str, file: Path | None) -> Path:
    if file is None:
        raise _tls_error(name, "unset", f"set both {_CERTIFICATE} and {_KEY}, or neither")
    try:
        read_settings_file(file)
    except OSError as error:
        raise _tls_error(name, file, str(error.strerror)) from None
    return file


def _tls_error(name: str, value: object, reason: str) -> InputError:
    return InputError.of(name, f"is {value}: {reason}")


class DrainingServer(uvicorn.Server):
    """Server that finishes running requests after a stop signal; a second ends it at once.

    Args:
        app: application with its services.
        settings: limits, drain timeout and TLS.
    """

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(server_config(app, settings))
        self._engine: Engine = app.state.services.engine
        self._settings = settings
        self._tls = tls_context(settings)
        self._is_renewed = False
        self._num_handshakes = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen on the given sockets."""
        logs.writer.start()
        await super().startup(sockets=[])
        for listening in sockets or ():
            listener = SocketListener(listening, self._connect)
            self.servers.append(listener)  # type: ignore[arg-type]  # has the methods that uvicorn calls

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Reject new work; uvicorn then waits for running requests."""
        if self.should_exit:
            # the default action works even if Python code hangs
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._engine.scheduler.drain()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; running requests may finish within the drain timeout.

        Replies to requests that arrive now, most 503, ask clients to close connections.
        """
        draining = asyncio.ensure_future(self._engine.close(drain_timeout_s=self._settings.drain_timeout_s))
        if self.server_state.connections:
            self.server_state.default_headers += [(b"connection", b"close")]
            await asyncio.sleep(_LAST_REQUESTS_S)
        await super().shutdown(sockets)
        await draining
        logs.writer.stop()

    def reload_certificate(self) -> None:
        """Read certificate and key again at the next connection; safe in a signal handler.

        The old ones are kept if the new are invalid.
        """
        self._is_renewed = True

    def _connect(self, accepted: socket.socket, on_end: Callable[[], None] = lambda: None) -> None:
        protocol = self._protocol()
        protocol.on_end = on_end
        self._spawn(self._open(protocol, accepted))

    async def _open(self, protocol: GuardedProtocol, accepted: socket.socket) -> None:
        """Open a connection, with a TLS handshake if there is a certificate."""
        connect = partial(asyncio.get_running_loop().connect_accepted_socket, lambda: protocol, accepted)
        if self._is_renewed:  # not in the signal handler: a log line may be half written
            self._is_renewed = False
            try:
                self._tls = tls_context(self._settings)
            except InputError as error:
                _log.error("certificate not reloaded", reason=str(error))
        if self._tls is None:
            await connect()
            return
        self._num_handshakes += 1
        try:
            if self._num_handshakes + len(self.server_state.connections) > 2 * protocol.max_connections:
                accepted.close()
                raise ConnectionAbortedError("too many connections")
            timeout_s = self._settings.body_timeout_s
            await connect(ssl=self._tls, ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=_TLS_CLOSE_S)
        except OSError as error:
            _log.info("TLS handshake failed", reason=str(error) or type(error).__name__)
            protocol.connection_lost(error)
        finally:
            self._num_handshakes -= 1

    def _protocol(self) -> GuardedProtocol:
        make: Any = self.config.http_protocol_class
        protocol: GuardedProtocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration for an application and settings."""
    limits = {
        "max_connections": reserve_descriptors(settings.max_connections),
        "max_header_bytes": settings.max_header_bytes,
        "operations": frozenset(
            (one.method, one.path) for one in app.state.endpoints if one.operation is not None
        ),
        "receive_timeout_s": settings.body_timeout_s,
        "slow_clients": SlowClients(
            timeout_s=settings.send_timeout_s,
            max_bytes=settings.max_unsent_bytes,
            pending_bytes=lambda: app.state.services.engine.scheduler.pending_bytes,
        ),
    }
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=type("Guarded", (GuardedProtocol,), limits),
        ws="none",  # an upgrade request is answered like any other request
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # the client's address chooses a worker, its scheme is in traces
        proxy_headers=settings.workers > 1 or app.state.tracing is not None,
        timeout_keep_alive=settings.keep_alive_timeout_s,
        timeout_graceful_shutdown=round(settings.drain_timeout_s) + _CANCEL_MARGIN_S,
    )


def listen(settings: Settings) -> socket.socket:
    """Open a socket at the settings' address; warn if others can reach it without keys.

    Raises:
        InputError: listening failed; another program may use the port.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}; "
            "choose another with --port or GRAMOPHONE_PORT",
            param="port",
        ) from None
    if not (settings.api_keys or settings.api_keys_file or is_loopback(settings.host)):
        _log.warning(
            "anyone who can reach this service can use it: no API keys are set",
            host=settings.host,
            advice="set GRAMOPHONE_API_KEYS_FILE (create keys with `gramophone keys create`), or listen on 127.0.0.1",
        )
    return listening


def url_of(listening: socket.socket, settings: Settings) -> str:
    """Return the URL of a listening socket."""
    scheme = "http" if settings.tls_certificate is None else "https"
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
