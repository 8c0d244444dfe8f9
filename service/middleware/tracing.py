"""OpenTelemetry spans of requests.

Spans require the extra `otel` and a configured endpoint; else OpenTelemetry is not imported. The SDK's
own variables apply as it documents them.
"""

import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from models.errors import InputError
from service.middleware.guarded_request import GuardedRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span


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
        InputError: the extra is not installed.
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
        raise InputError(
            f"{names[0]} is set, but OpenTelemetry is not installed: "
            "pip install 'gramophone-lm[otel]', or unset it",
            param=names[0],
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
    """Creator of a span per request, except for health checks and metrics.

    The parent is the caller's span, if `traceparent` names one; the trace id is logged.

    Args:
        provider: provider of spans.
    """

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("gramophone")
        self._kind = trace.SpanKind.SERVER
        self._failed = trace.StatusCode.ERROR
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request: GuardedRequest) -> "Span | None":
        """Start the span of a request; None if it has none."""
        scope = request.scope
        if scope["path"].startswith(_UNTRACED):
            return None
        carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        parent = self._propagator.extract(carrier)
        attributes = {"http.request.method": scope["method"], "url.scheme": scope["scheme"]}
        span = self._tracer.start_span(
            scope["method"], context=parent, kind=self._kind, attributes=attributes
        )
        request.annotate(trace_id=f"{span.get_span_context().trace_id:032x}")
        return span

    def end(self, span: "Span", request: GuardedRequest) -> None:
        """End the span of an answered or abandoned request."""
        status, fields = request.status, request.fields
        if status >= 500 or not status:
            span.set_status(self._failed)
        span.set_attribute("http.response.status_code", status or 500)
        if "route" in fields:
            span.update_name(f"{request.scope['method']} {fields['route']}")
            span.set_attribute("http.route", fields["route"])
        for name in fields.keys() & _OWN_FIELDS:
            span.set_attribute(f"gramophone.{name}", fields[name])
        span.end()
