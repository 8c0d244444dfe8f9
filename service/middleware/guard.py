"""The guard in front of all endpoints: limits, keys, origins, then the endpoint, its log line and metrics.

One object handles a request from its head to the last byte of its reply. Operations answer it directly; the other
endpoints are routes of the framework's application.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api_errors import CLIENT_GONE, INTERNAL_ERROR, error_response, not_found, response_to
from service.engine.metrics import Metrics
from service.logs import log_request
from service.middleware.authentication import Authentication
from service.middleware.cross_origin import CrossOriginGuard, CrossOriginReplies
from service.middleware.guarded_request import (
    HEALTH_PATHS,
    WHOLE_REPLY,
    BodyLimit,
    ConnectionLimit,
    GuardedRequest,
)
from service.middleware.tracing import Tracing

Answer = Callable[[GuardedRequest], Awaitable[None]]
"""Function that answers a request."""

REFUSAL = "refusal"
"""Key in a request's state: the reply to a request that another worker could not answer."""

_log = structlog.get_logger(__name__)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(eq=False)
class Guard:
    """Middleware that checks each request, has it answered, logs it and records its metrics.

    Unhandled exceptions are logged and get a 500 reply.

    Attributes:
        app: application of the endpoints that are no operations.
        operations: functions that answer operations, by method and path.
        authentication: check of the API key; it knows all routes.
        origins: check of the sender's origin.
        cors: replies that pages of other origins may read.
        body_limit: bounds of request bodies.
        metrics: counters and latency histograms of requests.
        tracing: spans of requests; None without a collector.
    """

    app: ASGIApp
    operations: Mapping[tuple[str, str], Answer]
    authentication: Authentication
    origins: CrossOriginGuard
    cors: CrossOriginReplies
    body_limit: BodyLimit
    metrics: Metrics
    tracing: Tracing | None = None
    connections: ConnectionLimit = field(init=False)

    def __post_init__(self) -> None:
        self.cors.app = self._guard
        self.connections = ConnectionLimit(self.metrics)
        self._logs_requests = _log.bind().is_enabled_for(logging.INFO)
        self._counters: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.cors.allow_origins or scope["method"] == "OPTIONS":  # a preflight, or for a listed page
            # it would lack the headers for other origins
            scope["state"].pop(WHOLE_REPLY, None)
            await self.cors(scope, receive, send)
        else:
            await self._guard(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.perf_counter()
        request = GuardedRequest(scope, receive, send, self.body_limit)
        span = None if self.tracing is None else self.tracing.begin(request)
        is_counted = not scope["path"].startswith(HEALTH_PATHS)
        self.connections.num_running += is_counted
        try:
            refusal = self._refusal(request)
            # HEAD is handled as GET, for gateways and link checkers; the server omits bodies
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            answer = self.operations.get((method, scope["path"]))
            if refusal is not None:
                await refusal(scope, request.receive, request.send)
            elif answer is not None:
                await answer(request)
            else:  # a copy of the scope: the server needs the original method
                await self.app({**scope, "method": method}, request.receive, request.send)
        except Exception as error:  # noqa: BLE001 - the last-resort handler
            await self._reply_to(error, request)
        finally:
            self.connections.num_running -= is_counted
            request.end()
            if self.tracing is not None and span is not None:
                self.tracing.end(span, request)
            self._record(request, time.perf_counter() - started_s)

    def _refusal(self, request: GuardedRequest) -> Response | None:
        """Return the reply to a request that is not answered; None for others."""
        scope = request.scope
        refusal: Response | None = scope["state"].get(REFUSAL)
        if refusal is None:
            refusal = self.connections.refusal(scope)
        if refusal is None:
            refusal = self.authentication.refusal(request)
        if refusal is None and "route" not in request.fields:
            refusal = not_found(scope["path"])
        return self.origins.refusal(request) if refusal is None else refusal

    async def _reply_to(self, error: Exception, request: GuardedRequest) -> None:
        """Reply to an error of an operation; to one of the application that it did not expect, with 500."""
        reply = None if request.status else response_to(error, request.scope["path"], self.metrics)
        if reply is None:
            _log.exception("request failed", request_id=request.request_id)
            # the reply has begun, so the server must close the connection
            if request.status:
                raise error
            reply = error_response(500, INTERNAL_ERROR)
        await reply(request.scope, request.receive, request.send)

    def _record(self, request: GuardedRequest, elapsed_s: float) -> None:
        # the route's template, set by the authentication: paths are unbounded in number
        fields, status = request.fields, request.status
        route = fields.pop("route", "unmatched")
        method = request.scope["method"] if request.scope["method"] in _METHODS else "other"
        key = (route, method, status)
        # cached: a lookup by label takes longer than counting
        if key not in self._counters:
            counter = self.metrics.http_requests.labels(route, method, str(status))
            self._counters[key] = counter.inc, self.metrics.latency.labels(route).observe
        count, observe = self._counters[key]
        count()
        observe(elapsed_s)
        if not self._logs_requests:
            return
        if status == CLIENT_GONE or not request.is_complete:
            fields["cut_off"] = True
        line = {"method": method, "route": route, "status": status, "duration_ms": round(1000 * elapsed_s, 3)}
        log_request({**line, "request_id": request.request_id, **fields})
