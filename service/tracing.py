"""A span for every request, by OpenTelemetry, where the extra `otel` is installed and an endpoint is set.

Nothing of it is imported otherwise. The SDK's own variables, such as OTEL_TRACES_SAMPLER, hold as well.
"""

import importlib.metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.errors import InvalidInputError
from service.routes.facts import annotate, context_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_UNTRACED = ("/health/", "/metrics")
_SEND_TIMEOUT_S = 3
"""With all its tries; the service also waits as long for a dead collector when it stops."""

_ATTRIBUTES = {
    "model": "gramophone.model",
    "key": "gramophone.key",
    "prompt_tokens": "gramophone.prompt_tokens",
    "scored_tokens": "gramophone.scored_tokens",
    "generated_tokens": "gramophone.generated_tokens",
    "queue_ms": "gramophone.queue_ms",
}
"""Fact → the span's attribute."""


def make_tracer_provider(endpoint: str) -> "TracerProvider":
    """What makes spans and sends them to a collector, from a thread of its own.

    Args:
        endpoint: of the collector; without a path, OTLP's own `/v1/traces` is meant.

    Raises:
        InvalidInputError: the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidInputError(
            "GRAMOPHONE_OTLP_ENDPOINT is set, and OpenTelemetry is not installed: "
            "pip install 'gramophone-lm[otel]', or unset it",
            parameter="GRAMOPHONE_OTLP_ENDPOINT",
        ) from None
    version = importlib.metadata.version("gramophone-lm")
    resource = Resource.create({"service.name": "gramophone", "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    whole = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + "/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=whole, timeout=_SEND_TIMEOUT_S)))
    return provider


class Tracing:
    """Makes a span of each request, but those that only look after the service. Plain ASGI.

    The caller's span, if `traceparent` names one, is its parent; its id is noted for the log.

    Args:
        app: what answers.
        provider: makes spans.
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
        """Answer one request."""
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
        status = 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            if status >= 500 or not status:
                span.set_status(self._failed)
            span.set_attribute("http.response.status_code", status or 500)
            self._describe(span, scope)
            span.end()

    def _describe(self, span: Any, scope: Scope) -> None:
        facts = context_of(scope)
        route = facts.get("route")
        if route is not None:
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)
        for fact, attribute in _ATTRIBUTES.items():
            if fact in facts:
                span.set_attribute(attribute, facts[fact])
