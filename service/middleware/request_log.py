"""Request id, access log, request metrics, OpenTelemetry spans and the last-resort error handler.

Spans require the extra `otel` and a configured endpoint; else OpenTelemetry is not imported. The SDK's
own variables apply as it documents them.
"""

import importlib.metadata
import re
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.errors import InvalidInputError
from service.api_errors import CLIENT_GONE, error_response
from service.engine.metrics import Metrics
from service.middleware.request_context import annotate, begin_context, context_of, end_uses, header
from service.schemas.replies import ErrorBody

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


_STATUS = "status"
"""Key in a request's state: the status of its reply, once that has begun."""

_UNTRACED = ("/health/", "/v2/health", "/metrics")
_SEND_TIMEOUT_S = 3
"""Default timeout of a send with retries, also while the service stops and the collector is unreachable."""

_OTEL_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OTEL_TIMEOUTS = {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"}

_OWN_FIELDS = ("model", "key", "prompt_tokens", "scored_tokens", "generated_tokens", "queue_ms")
"""Fields of the request context that become span attributes, in this service's namespace."""


def make_tracer_provider(endpoint: str | None, variables: Mapping[str, str]) -> "TracerProvider | None":
    """Create a provider of spans, whose own thread sends them to a collector.

    Args:
        endpoint: URL of the collector; its path defaults to OTLP's `/v1/traces`. None for the endpoint that
            the variables name.
        variables: OpenTelemetry's own variables.

    Returns:
        The provider; None if there is no endpoint, or the variables disable traces.

    Raises:
        InvalidInputError: the extra is not installed.
    """
    names = ("GRAMOPHONE_OTLP_ENDPOINT",) if endpoint else [n for n in _OTEL_ENDPOINTS if n in variables]
    exporters = "otlp" if endpoint else variables.get("OTEL_TRACES_EXPORTER", "otlp")
    is_disabled = variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not names or is_disabled or "otlp" not in exporters:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidInputError(
            f"{names[0]} is set, but OpenTelemetry is not installed: "
            "pip install 'gramophone-lm[otel]', or unset it",
            parameter=names[0],
        ) from None
    if endpoint and not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    timeout_s = None if _OTEL_TIMEOUTS & variables.keys() else _SEND_TIMEOUT_S
    version = importlib.metadata.version("gramophone-lm")
    ours = Resource.create({"service.name": "gramophone", "service.version": version})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)))
    return provider


class Tracing:
    """Middleware that creates a span per request, except for health checks and metrics.

    The parent is the caller's span, if `traceparent` names one; the trace id is logged.

    Args:
        app: application.
        provider: provider of spans.
    """

    def __init__(self, app: ASGIApp, *, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._tracer = provider.get_tracer("gramophone")
        self._kind = trace.SpanKind.SERVER
        self._failed = trace.StatusCode.ERROR
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"].startswith(_UNTRACED):
            await self._app(scope, receive, send)
            return
        carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        parent = self._propagator.extract(carrier)
        attributes = {"http.request.method": scope["method"], "url.scheme": scope["scheme"]}
        span = self._tracer.start_span(
            scope["method"], context=parent, kind=self._kind, attributes=attributes
        )
        annotate(scope, trace_id=f"{span.get_span_context().trace_id:032x}")
        try:
            await self._app(scope, receive, send)
        finally:
            status = scope["state"].get(_STATUS, 0)
            if status >= 500 or not status:
                span.set_status(self._failed)
            span.set_attribute("http.response.status_code", status or 500)
            fields = context_of(scope)
            if "route" in fields:
                span.update_name(f"{scope['method']} {fields['route']}")
                span.set_attribute("http.route", fields["route"])
            for name in fields.keys() & _OWN_FIELDS:
                span.set_attribute(f"gramophone.{name}", fields[name])
            span.end()


_log = structlog.get_logger(__name__)
_VALID_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_HEADER = b"x-request-id"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADERS = (
    (b"x-gramophone-version", importlib.metadata.version("gramophone-lm").encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_INTERNAL_ERROR = ErrorBody(
    "the service failed on this request; see its log", "server_error", None, "internal_error"
)
_DEFAULT_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""Default policy: a reply that a browser displays cannot load anything."""


class RequestLog:
    """Middleware that assigns each request an id, logs it and records its metrics.

    Unhandled exceptions are logged and get a 500 reply; the request's models are released at its end.

    Args:
        app: application.
        metrics: counters and latency histograms of requests.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._instruments: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        given_id = header(scope, _HEADER) or b""
        request_id = given_id.decode() if _VALID_ID.fullmatch(given_id) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        fields = begin_context(scope)
        status, is_complete = 0, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = int(message["status"])  # an enum member would be logged by name
                scope["state"][_STATUS] = status
                headers = [*message["headers"], *_HEADERS, (_HEADER, request_id.encode())]
                if all(name != _DEFAULT_POLICY[0] for name, _ in headers):
                    headers.append(_DEFAULT_POLICY)
                message["headers"] = headers
            elif not message.get("more_body", False):
                is_complete = True
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:  # the last-resort handler
            _log.exception("request failed", request_id=request_id)
            if status:  # the reply has begun, so the server must close the connection
                raise
            await error_response(500, _INTERNAL_ERROR)(scope, receive, send_with_headers)
        finally:
            end_uses(scope)
            self._record(scope, fields, status, time.perf_counter() - started_s, is_complete=is_complete)

    def _record(
        self, scope: Scope, fields: dict[str, Any], status: int, elapsed_s: float, *, is_complete: bool
    ) -> None:
        # the route's template, set by the authentication: paths are unbounded in number
        route = fields.pop("route", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        key = (route, method, status)
        if key not in self._instruments:  # cached: a lookup by label takes longer than counting
            counter = self._metrics.http_requests.labels(route, method, str(status))
            self._instruments[key] = (counter, self._metrics.latency.labels(route))
        counter, latency = self._instruments[key]
        counter.inc()
        latency.observe(elapsed_s)
        if status == CLIENT_GONE or not is_complete:
            fields["cut_off"] = True
        _log.info(
            "request",
            method=method,
            route=route,
            status=status,
            duration_ms=round(1000 * elapsed_s, 3),
            request_id=scope["state"]["request_id"],
            **fields,
        )


def head_as_get(app: ASGIApp) -> ASGIApp:
    """Return middleware that handles HEAD as GET, for gateways and link checkers; the server omits bodies."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}  # a copy: the server needs the original method
        await app(scope, receive, send)

    return handle
