"""Requests about what one worker remembers are answered by that worker, whoever has accepted them. Plain ASGI."""

import asyncio
from collections.abc import Mapping

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from models.errors import NotReadyError
from service.engine.metrics import Metrics
from service.routes.authentication import presented_key
from service.routes.errors import error_body, error_response, error_status
from service.routes.limits import OVER_LIMIT
from service.routes.middleware import RequestLog
from service.routes.serving import while_connected
from service.security.key_store import KeyStore
from service.workers.bodies import read_body
from service.workers.crew import WorkerPool
from service.workers.homes import Affinity, has_affinity
from service.workers.link import Peer, PeerConnectionError, encode_scope

_log = structlog.get_logger(__name__)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
PEER_PREFIX = "/workers/"
"""Where paths begin that workers ask of one another, and nobody else may."""


def is_from_peer(scope: Scope) -> bool:
    """Whether a request has come from another worker: over a Unix socket, which has a path and no port."""
    server = scope.get("server")
    return server is not None and server[1] is None


class AffinityRelay:
    """Passes requests on to the worker that they belong to, which does all there is to do: key, counts, log.

    The outermost of all. What comes from another worker is answered here.

    Args:
        app: what answers.
        pool: the workers.
        peers: the others, by number.
        peer_endpoints: answers what workers ask of one another.
        keys: of which one is asked for before a body is read.
        metrics: where relays are counted.
        max_body_bytes: a longer body is refused here.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        pool: WorkerPool,
        peers: Mapping[int, Peer],
        peer_endpoints: ASGIApp,
        keys: KeyStore,
        metrics: Metrics,
        max_body_bytes: int,
    ) -> None:
        self._app = app
        self._number = pool.number
        self._peers = peers
        self._peer_endpoints = peer_endpoints
        self._keys = keys
        self._metrics = metrics
        self._relayed = metrics.relayed_requests
        self._max_body_bytes = max_body_bytes
        self._affinity = Affinity(pool)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or have it answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif has_affinity(scope["path"]) and not is_from_peer(scope) and self._is_acceptable(scope):
            await self._pass_on_to_owner(scope, receive, send)
        elif scope["path"].startswith(PEER_PREFIX) and is_from_peer(scope):
            await self._peer_endpoints(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_acceptable(self, scope: Scope) -> bool:
        """Whether it will not be refused whatever it says; what will be is refused here."""
        if scope["method"] not in _METHODS or scope["state"].get(OVER_LIMIT):
            return False
        return not self._keys or self._keys.find(presented_key(scope)) is not None

    async def _pass_on_to_owner(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, receive = await read_body(scope, receive, max_bytes=self._max_body_bytes)
        home = None if body is None else self._affinity.of(scope, body)
        if body is None or home is None or home == self._number:
            await self._app(scope, receive, send)
            return
        self._relayed.inc()
        exchange = asyncio.ensure_future(self._peers[home].exchange(encode_scope(scope, body), send))
        try:
            await while_connected(receive, exchange)
        except ClientDisconnect:
            return  # the link is closed, and with it the other's work ends
        except PeerConnectionError as error:
            _log.warning("a worker did not answer", other=home, reason=str(error))
            if not error.reply_begun:  # else the server sees that the answer is not whole, and hangs up
                await RequestLog(_peer_lost(home), metrics=self._metrics)(scope, receive, send)


def _peer_lost(number: int) -> ASGIApp:
    error = NotReadyError(
        f"worker {number}, which keeps what this request is about, does not answer; it is started again if it has "
        "died, and then has forgotten it"
    )
    return error_response(error_status(error).status, error_body(error), {"retry-after": "1"})
