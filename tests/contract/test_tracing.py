"""Spans of requests, where OpenTelemetry is there; nothing of it where it is not asked for."""

import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from models.errors import InvalidInputError
from service import app as composition
from service.middleware import request_log
from service.settings import Settings
from tests.servers import running

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def traced(registry, spans, monkeypatch):
    """A service whose spans are kept here."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(composition, "make_provider", lambda _endpoint: provider)
    settings = Settings(registry=registry.root, models=("mixture",), otlp_endpoint="http://collector:4318")
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        yield client


def finished(spans, count=1):
    """So many spans: each ends a moment after its answer has arrived."""
    give_up_s = time.monotonic() + 10
    while len(spans.get_finished_spans()) < count and time.monotonic() < give_up_s:
        time.sleep(0.005)
    return spans.get_finished_spans()


def test_a_request_is_a_span_with_what_is_known_of_it(traced, spans):
    traced.post("/v1/score", json={"texts": ["the cat"]})
    (span,) = finished(spans)
    assert span.name == "POST /v1/score"
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["gramophone.model"] == "mixture@1"
    assert span.attributes["gramophone.scored_tokens"] == 3
    assert span.status.is_ok or span.status.is_unset
    assert "the cat" not in str(span.to_json())


def test_the_caller_s_span_is_its_parent(traced, spans):
    traced.post("/v1/score", json={"texts": ["a"]}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    (span,) = finished(spans)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN


@pytest.mark.parametrize("given", ["", "nonsense", f"00-{'0' * 32}-{SPAN}-01", "x" * 5000])
def test_a_wrong_traceparent_is_ignored(traced, spans, given):
    assert traced.get("/v1/models", headers={"traceparent": given}).status_code == 200
    (span,) = finished(spans)
    assert span.parent is None


def test_health_and_metrics_make_no_spans(traced, spans):
    traced.get("/health/ready")
    traced.get("/metrics")
    traced.get("/v1/models")
    (span,) = finished(spans)
    assert span.name == "GET /v1/models"


def test_a_bad_request_is_no_failure_of_the_service(traced, spans):
    traced.post("/v1/score", content=b"{")
    traced.get("/nowhere")
    bad, nowhere = finished(spans, 2)
    assert bad.attributes["http.response.status_code"] == 400
    assert not bad.status.description
    assert bad.status.status_code.name == "UNSET"
    assert nowhere.name == "GET"


@pytest.mark.parametrize(
    ("endpoint", "whole"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/own/path", "https://c/own/path"),
    ],
)
def test_the_endpoint_is_completed(endpoint, whole):
    provider = request_log.make_tracer_provider(endpoint)
    (processor,) = provider._active_span_processor._span_processors
    assert processor.span_exporter._endpoint == whole
    assert provider.resource.attributes["service.name"] == "gramophone"
    provider.shutdown()


def test_set_but_not_installed_stops_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidInputError, match=r"gramophone-lm\[otel\]"):
        request_log.make_tracer_provider("http://c:4318")


def test_unset_it_is_not_imported():
    """FastAPI brings the interface; what costs is the SDK."""
    code = "import sys, service.app; print(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert not any(
        name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for name in done.stdout.split()
    )
