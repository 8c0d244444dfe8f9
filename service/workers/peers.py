"""Communication between workers: relaying by affinity, internal endpoints, HTTP over Unix sockets.

Personal models and sessions of autocomplete belong to the worker chosen by a hash of their name,
states and reranking sessions to the worker named in their handles. New states are opened by the
worker chosen by the header `X-Gramophone-Session`, else by the client's address, so a client's
states are in one process and may occur in one request.

Internal endpoints, over sockets that only workers can reach:

GET /workers/metrics                  metrics of this worker
GET /workers/served                   addresses that it serves or will serve, and unloaded addresses
POST /workers/refresh?address&wait    poll the registry now; return the model that serves an address

A reply is forwarded while it arrives.
"""

import asyncio
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from models.errors import InputError, NotReadyError
from service.api_errors import error_body, error_response, error_status, not_found
from service.api_keys import KeyStore
from service.engine.metrics import Metrics
from service.http_client import ClientConnection, ConnectionPool, ExchangeError, encode_request
from service.middleware.authentication import presented_key
from service.middleware.guard import REFUSAL
from service.middleware.guarded_request import (
    OVER_LIMIT,
    RECEIVE_TIMEOUT,
    WHOLE_REPLY,
    HeldBodies,
    content_length,
    header,
)
from service.routes.request import Services, while_connected
from service.schemas.wire import check_json_size
from service.workers.pool import WorkerPool

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
PEER_PREFIX = "/workers/"
"""Prefix of the paths of internal endpoints, open to workers only."""

METRICS_PATH = PEER_PREFIX + "metrics"
SERVED_PATH = PEER_PREFIX + "served"
REFRESH_PATH = PEER_PREFIX + "refresh"
_AUTOCOMPLETE = "/v1/autocomplete"
_OPEN_STATES = "/v1/states"
_RERANK = "/v1/rerank"
AFFINITY_PATHS = frozenset(
    {_AUTOCOMPLETE, _OPEN_STATES, _RERANK, "/v1/states/advance", "/v1/states/next", "/v1/states/free"}
)
"""Paths of requests that may need data of one particular worker."""

_AFFINITY_HEADER = b"x-gramophone-session"
_HANDLE = re.compile(rb'"([\w-]{1,63})\.[0-9a-f]{6}\.[\w-]{16}[",]')
_BUFFER_BYTES = 1 << 18
"""Maximum buffered bytes of a reply that arrives faster than it is forwarded."""

_REPLY_TIMEOUT_S = 1.0
"""Timeout of requests to internal endpoints, which reply at once or hang."""

_HOP_BY_HOP_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"expect", b"te", b"trailer"}
)
_DROPPED_REQUEST_HEADERS = _HOP_BY_HOP_HEADERS | {b"content-length"}
_DROPPED_RESPONSE_HEADERS = _HOP_BY_HOP_HEADERS | {b"date"}
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class PeerResponse:
    """Complete reply; `send` collects an ASGI application's messages."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def send(self, message: Message) -> None:
        """Collect a message of an ASGI application."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        else:
            self.body += message.get("body", b"")


def encode_scope(scope: Scope, body: bytes) -> bytes:
    """Encode a scope's request; HEAD becomes GET: the forwarding worker omits the reply's body."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = [(name, value) for name, value in scope["headers"] if name not in _DROPPED_REQUEST_HEADERS]
    if header(scope, b"host") is None:  # HTTP/1.0 does not require it
        headers.insert(0, (b"host", b""))
    return encode_request(method, target, headers, body)


class Peer:
    """Peer worker, by its socket's path; connections are reused."""

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)
        self._pool = ConnectionPool(self._connect)

    async def get(self, path: str) -> PeerResponse:
        """Return the complete reply to a GET of an internal endpoint.

        Raises:
            ExchangeError: the reply is missing, late, incomplete or an error.
        """
        try:
            async with asyncio.timeout(_REPLY_TIMEOUT_S):
                answer = await self.ask(encode_request("GET", path.encode(), [(b"host", b"worker")]))
        except TimeoutError:
            raise ExchangeError("timeout", f"{self._socket}: no reply in {_REPLY_TIMEOUT_S:g} s") from None
        if answer.status != HTTPStatus.OK:
            raise ExchangeError("status", f"{self._socket}: the reply has the status {answer.status}")
        return answer

    async def ask(self, request: bytes) -> PeerResponse:
        """Send a request and return the complete reply; see `exchange`."""
        answer = PeerResponse()
        await self.exchange(request, answer.send)
        return answer

    async def exchange(self, request: bytes, send: Send) -> None:
        """Send a request and forward the reply.

        Args:
            request: request from `encode_request` or `encode_scope`.
            send: receives the messages of the reply as it arrives.

        Raises:
            ExchangeError: the worker does not listen, or its reply was incomplete.
        """
        while True:
            async with self._pool.connection() as connection:
                was_used = connection.was_used
                try:
                    return await connection.forward(request, send)
                except ExchangeError as error:
                    if error.reply_begun or not was_used:
                        # else an idle connection was closed, or the worker died: retry on another
                        raise

    async def _connect(self) -> "_PeerConnection":
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_unix_connection(_PeerConnection, self._socket)
        except OSError as error:
            raise ExchangeError("refused", f"{self._socket}: {error.strerror or error}") from None
        return connection


class _PeerConnection(ClientConnection):
    """Connection to a peer, whose replies become an ASGI application's messages."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[Message] = []
        self._arrived = asyncio.Event()
        self._waiting_bytes = 0
        self._error: ExchangeError | None = None

    @property
    def is_idle(self) -> bool:
        """True if another request can be sent; false while the last reply is incomplete."""
        return super().is_idle and not self._messages

    async def forward(self, request: bytes, send: Send) -> None:
        """Send a request and forward the reply; see `Peer.exchange`."""
        self.start(request)
        is_complete = False
        while not is_complete:
            await self._arrived.wait()
            self._arrived.clear()
            messages, self._messages, self._waiting_bytes = self._messages, [], 0
            if self.transport is not None:
                self.transport.resume_reading()
            for message in messages:
                await send(message)
                is_complete = message.get("more_body") is False
            if self._error is not None:
                raise self._error

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waiting_bytes > _BUFFER_BYTES:
            self.transport.pause_reading()

    @override
    def begin_reply(self) -> None:
        headers = [(name, value) for name, value in self.headers if name not in _DROPPED_RESPONSE_HEADERS]
        self._add({"type": "http.response.start", "status": self.status, "headers": headers})

    @override
    def on_body(self, body: bytes) -> None:
        self._waiting_bytes += len(body)
        self._add({"type": "http.response.body", "body": body, "more_body": True})

    @override
    def end_reply(self, error: ExchangeError | None) -> None:
        self._error = error
        last = self._messages[-1] if self._messages else {}
        if error is None and last.get("more_body"):
            last["more_body"] = False  # saves a message
        elif error is None:
            self._add({"type": "http.response.body", "body": b"", "more_body": False})
        self._arrived.set()

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._arrived.set()


@dataclass(frozen=True, slots=True)
class PeerMiddleware:
    """Middleware that sends requests to other workers.

    Attributes:
        app: application of this worker.
        pool: worker pool.
        peers: other workers, by number.
        metrics: metrics of this worker.
        max_body_bytes: maximum size of a body; this worker rejects longer ones.
        held: size of the bodies of all requests.
    """

    app: ASGIApp
    pool: WorkerPool
    peers: Mapping[int, Peer]
    metrics: Metrics
    max_body_bytes: int
    held: HeldBodies

    async def read_body(
        self, scope: Scope, receive: Receive, owner: str = ""
    ) -> tuple[bytes | None, Receive]:
        """Read the body of a request, which is not held when this returns.

        Returns:
            The body, and a `receive` for the application that replays the messages. The body is None if too long,
            too slow or incomplete; the application rejects the request.
        """
        messages: list[Message] = []
        size, is_complete, told = 0, False, content_length(header(scope, b"content-length") or b"")
        try:
            while not is_complete and told <= self.max_body_bytes:
                message = await receive()
                messages.append(message)
                count = len(message.get("body", b""))
                self.held.receive(owner, count, before=size)
                size += count
                if message["type"] != "http.request" or size > self.max_body_bytes:
                    break
                is_complete = not message.get("more_body", False)
                if not is_complete and scope["state"].get(RECEIVE_TIMEOUT):
                    break
        except HTTPException:
            is_complete = False
        finally:
            self.held.add(owner, -size)
        if not is_complete:
            return None, _replay(messages, receive)
        body = b"".join(message.get("body", b"") for message in messages)
        return body, _replay([{"type": "http.request", "body": body, "more_body": False}], receive)


def _replay(messages: list[Message], receive: Receive) -> Receive:
    remaining = iter(messages)

    async def receive_again() -> Message:
        message = next(remaining, None)
        return await receive() if message is None else message

    return receive_again


def affine_worker(scope: Scope, body: bytes, workers: Sequence[str]) -> int | None:
    """Return the number of the worker for a request to an affinity path; None for any.

    `workers` are the names of all workers in state handles.
    """
    path = scope["path"]
    if path == _AUTOCOMPLETE:
        session = _session_name(body)
        return None if session is None else zlib.crc32(session.encode(errors="replace")) % len(workers)
    if path != _OPEN_STATES and (path != _RERANK or b'"session"' in body):
        names = (match[1].decode() for match in _HANDLE.finditer(body))
        owner = next((workers.index(name) for name in names if name in workers), None)
        if owner is not None:
            return owner
    if path == _OPEN_STATES or (path == _RERANK and b'"commit"' in body):  # a session begins
        client = (scope.get("client") or ("",))[0].encode()
        return zlib.crc32(header(scope, _AFFINITY_HEADER) or client) % len(workers)
    return None


def _session_name(body: bytes) -> str | None:
    """Return the session of an autocomplete request; None without one."""
    if b'"session"' not in body and b"\\u" not in body:  # the key may be escaped
        return None
    try:
        check_json_size(body)
        fields = json.loads(body)
    except (InputError, ValueError, RecursionError):
        return None  # the worker that handles the request rejects it
    name = fields.get("session") if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None


def is_from_peer(scope: Scope) -> bool:
    """Return whether another worker sent a request: over a Unix socket, without port."""
    server = scope.get("server")
    return server is not None and server[1] is None


@dataclass(frozen=True, slots=True)
class AffinityRelay(PeerMiddleware):
    """Middleware that forwards requests to their worker, to authenticate, count and log there.

    It is the outermost one. Requests from other workers are answered here.

    Attributes:
        peer_endpoints: application of the internal endpoints.
        keys: the service's keys; with any, a body is read only if one is valid.
    """

    peer_endpoints: ASGIApp
    keys: KeyStore

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or forward one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif (
            scope["path"] in AFFINITY_PATHS
            and not is_from_peer(scope)
            and (key := self._acceptable_key(scope)) is not None
        ):
            await self._forward_to_owner(scope, receive, send, key)
        elif scope["path"].startswith(PEER_PREFIX) and is_from_peer(scope):
            scope["state"].pop(WHOLE_REPLY, None)
            await self.peer_endpoints(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _acceptable_key(self, scope: Scope) -> str | None:
        """Return the name of a request's key, empty without keys; None to reject it here."""
        if scope["method"] not in _METHODS or scope["state"].get(OVER_LIMIT):
            return None
        found = self.keys.find(presented_key(scope)) if self.keys else None
        return found.name if found is not None else None if self.keys else ""

    async def _forward_to_owner(self, scope: Scope, receive: Receive, send: Send, key: str) -> None:
        body, receive = await self.read_body(scope, receive, key)
        owner = None if body is None else affine_worker(scope, body, self.pool.process_names)
        if body is None or owner is None or owner == self.pool.number:
            await self.app(scope, receive, send)
            return
        self.metrics.relayed_requests.inc()
        # a circle of references, which the guard would end
        scope["state"].pop(WHOLE_REPLY, None)
        self.held.add(key, len(body))
        exchange = asyncio.ensure_future(self.peers[owner].exchange(encode_scope(scope, body), send))
        try:
            await while_connected(receive, exchange)
        except ClientDisconnect:
            return  # the closed connection cancels the work of the other worker
        except ExchangeError as error:
            _log.warning("worker did not reply", other=owner, reason=str(error))
            if not error.reply_begun:  # else the server closes the connection
                lost = NotReadyError(
                    f"worker {owner}, which stores the state or session of this request, does not reply; if it "
                    "has died, it restarts without them"
                )
                reply = error_response(error_status(lost).status, error_body(lost), {"retry-after": "1"})
                scope["state"][REFUSAL] = reply
                await self.app(scope, receive, send)
        finally:
            self.held.add(key, -len(body))


def served_addresses(services: Services) -> set[str]:
    """Return the addresses that a worker serves or will serve."""
    host = services.host
    hosted = {address for model in host.models.values() for address in host.followed_addresses(model)}
    return hosted | set(services.reloader.queued)


def peer_endpoints(services: Services) -> ASGIApp:
    """Return the application of a worker's internal endpoints."""
    at_start = served_addresses(services)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == METRICS_PATH:
            reply = Response(services.metrics.exposition(), media_type="text/plain")
        elif path == SERVED_PATH:
            now = served_addresses(services)
            reply = JSONResponse({"served": sorted(now), "unloaded": sorted(at_start - now)})
        elif path == REFRESH_PATH:
            query = parse_qs(scope["query_string"].decode())
            refreshed = services.reloader.refresh()
            if "wait" in query:
                await asyncio.shield(refreshed)
            model = services.host.address_table.by_address.get(query["address"][0])
            serving = model.address if model is not None and model.loaded is not None else None
            reply = JSONResponse({"serving": serving})
        else:
            reply = not_found(path)
        await reply(scope, receive, send)

    return answer
