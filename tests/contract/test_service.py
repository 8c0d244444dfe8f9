"""Start, health, models, request ids, metrics, overload, shutdown and tracing."""

import contextlib
import importlib.metadata
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from models.checkpoint.registry import LocalRegistry
from models.errors import InputError, ModelNotFoundError, RegistryError
from models.training_status import TrainingStatus, remove_status, write_status
from service import app as composition
from service import http_server
from service.api_keys import create_key
from service.app import create_app
from service.middleware import tracing
from service.settings import Settings, otel_variables
from tests.support.http import answering, whole
from tests.support.services import running


def test_a_registry_that_is_not_there_stops_the_start(tmp_path):
    with pytest.raises(RegistryError, match="no registry at"):
        create_app(Settings(registry=tmp_path / "none"))


def test_an_empty_registry_stops_the_start(tmp_path):
    with pytest.raises(RegistryError, match="holds no model"):
        create_app(Settings(registry=tmp_path))


def test_settings_that_name_an_unknown_model_stop_the_start(registry):
    with pytest.raises(ModelNotFoundError, match="nobody"):
        create_app(Settings(registry=registry.root, models=("nobody",)))


def test_settings_that_name_no_version_after_the_at_sign_stop_the_start(registry):
    with pytest.raises(InputError, match="'mixture@'; a version number or an alias must follow the @"):
        create_app(Settings(registry=registry.root, models=("mixture@",)))


def test_ready_is_503_until_the_default_model_is_loaded(registry, serve, monkeypatch):
    gate = threading.Event()
    app = create_app(Settings(registry=registry.root, models=("mixture",)))
    loader = app.state.services.host._loader
    load = loader.read
    monkeypatch.setattr(loader, "read", lambda *a, **k: (gate.wait(5), load(*a, **k))[1])
    with serve(app) as url, httpx.Client(base_url=url) as client:
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").json()["status"] == "loading"
        of_languagetool = client.get("/v2/healthcheck")
        assert (of_languagetool.status_code, of_languagetool.text) == (503, "loading")
        asked = client.post("/v1/next-token", json={"context": "a"})
        assert (asked.status_code, asked.json()["error"]["code"]) == (503, "not_ready")
        gate.set()
        wait_for(lambda: client.get("/health/ready").status_code == 200)


def test_a_damaged_default_is_never_ready_and_others_are_served(registry, serve):
    app = create_app(Settings(registry=registry.root, default_model="damaged"))
    with serve(app) as url, httpx.Client(base_url=url) as client:
        wait_for(lambda: "loading" not in client.get("/health/ready").json()["models"].values())
        assert client.get("/health/ready").json()["status"] == "failed"
        assert client.get("/health/ready").status_code == 503
        assert client.post("/v1/score", json={"texts": ["a"]}).status_code == 503
        assert client.post("/v1/score", json={"texts": ["a"], "model": "mixture"}).status_code == 200


def test_models_are_listed_with_their_figures_and_failures(http):
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert cards["mixture@1"]["metrics"] == {"perplexity": 12.5}
    assert cards["mixture@1"]["aliases"] == ["champion"]
    assert cards["mixture@1"]["is_default"]
    assert cards["mixture@1"]["created"] == 1767225600
    assert (cards["damaged@1"]["state"], cards["chars@1"]["vocab_size"]) == ("failed", 32)
    assert "damaged/versions" in cards["damaged@1"]["reason"]


def test_running_trainings_of_the_registry_are_listed_with_the_models(registry, serve):
    app = create_app(Settings(registry=registry.root, models=("mixture",), watch_interval_s=0.05))
    with serve(app) as url, httpx.Client(base_url=url) as client:
        training = lambda: client.get("/v1/models").json().get("training")  # noqa: E731
        assert training() is None
        write_status(registry.work_folder, TrainingStatus("chars", "reading text", 0.25))
        try:
            wait_for(training)
            told = {"name": "chars", "stage": "reading text", "done": 0.25, "seconds_left": None}
            assert training() == [told]
        finally:
            remove_status(registry.work_folder, "chars")
        wait_for(lambda: not training())


@pytest.mark.parametrize("address", ["mixture", "mixture@1", "mixture%40champion"])
def test_one_model_is_found_by_any_address(http, address):
    assert http.get(f"/v1/models/{address}").json()["id"] == "mixture@1"


def test_a_sane_request_id_is_kept_and_another_replaced(http):
    def answered(given):
        return http.get("/health/live", headers={"x-request-id": given}).headers["x-request-id"]

    assert answered("abc-123") == "abc-123"
    assert len(answered('a"b c')) == 32
    assert len(answered("x" * 200)) == 32


def test_metrics_count_requests_and_tokens(http):
    http.post("/v1/score", json={"texts": ["the cat"]})
    text = http.get("/metrics").text
    assert 'gramophone_http_requests_total{handler="/v1/score",method="POST",status="200"}' in text
    assert 'gramophone_scored_tokens_total{model_name="mixture@1"}' in text
    assert 'gramophone_e2e_request_latency_seconds_bucket{handler="/v1/score",le="0.0005"}' in text
    assert "gramophone_num_requests_waiting 0.0" in text
    assert "gramophone_models_loaded 4.0" in text


def test_the_openapi_document_describes_every_body_and_reply(http):
    document = http.get("/openapi.json").json()
    for path in ("score", "rerank", "generate"):
        operation = document["paths"][f"/v1/{path}"]["post"]
        for content in (
            operation["requestBody"],
            operation["responses"]["200"],
            operation["responses"]["4XX"],
        ):
            schema = content["content"]["application/json"]["schema"]
            names = [one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])]
            assert document["components"]["schemas"].keys() >= set(names)


def test_one_request_too_many_is_told_to_come_back(registry, serve):
    app = create_app(Settings(registry=registry.root, models=("slow",), max_queued_requests=1))
    with serve(app) as url, httpx.Client(base_url=url) as client:
        wait_for(lambda: client.get("/health/ready").status_code == 200)
        app.state.services.host.resolve("slow").model.delay_s = 0.05
        body = {"max_tokens": 50, "stream": True}
        with client.stream("POST", "/v1/generate", json=body):
            refused = httpx.post(f"{url}/v1/next-token", json={"context": "a"})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"


def test_a_queue_full_of_one_keys_requests_admits_those_of_another_up_to_its_share(registry, serve):
    keys = {name: create_key(name, ["infer"]) for name in ("hostile", "other")}
    lines = tuple(made.key.line for made in keys.values())
    app = create_app(
        Settings(registry=registry.root, models=("slow",), max_queued_requests=2, api_keys=lines)
    )
    body = {"max_tokens": 50, "stream": True}
    with serve(app) as url, contextlib.ExitStack() as stack:
        wait_for(lambda: httpx.get(f"{url}/health/ready").status_code == 200)
        app.state.services.host.resolve("slow").model.delay_s = 0.05
        told = []
        for name in ("hostile", "hostile", "hostile", "other", "other"):
            headers = {"authorization": f"Bearer {keys[name].secret}"}
            stream = httpx.stream("POST", f"{url}/v1/generate", json=body, headers=headers)
            response = stack.enter_context(stream)
            told.append(response.status_code if response.is_success else response.read() and response.json())
        assert told[:2] + told[3:4] == [200] * 3
        assert [one["error"]["code"] for one in (told[2], told[4])] == ["overloaded", "share_exceeded"]


def test_a_request_out_of_time_is_answered_504(registry, serve):
    app = create_app(Settings(registry=registry.root, models=("slow",), request_timeout_ms=100))
    with serve(app) as url, httpx.Client(base_url=url) as client:
        wait_for(lambda: client.get("/health/ready").status_code == 200)
        app.state.services.host.resolve("slow").model.delay_s = 0.02
        response = client.post("/v1/generate", json={"max_tokens": 1000})
        assert response.status_code == 504
        assert "100 ms" in response.json()["error"]["message"]


def test_shutting_down_finishes_what_is_under_way_and_refuses_the_rest(registry, serve):
    app = create_app(Settings(registry=registry.root, models=("slow",)))
    finished = []
    with serve(app) as url, httpx.Client(base_url=url) as client:
        wait_for(lambda: client.get("/health/ready").status_code == 200)
        app.state.services.host.resolve("slow").model.delay_s = 0.02
        body = {"max_tokens": 20, "seed": 1}
        thread = threading.Thread(target=lambda: finished.append(httpx.post(f"{url}/v1/generate", json=body)))
        thread.start()
        wait_for(lambda: len(app.state.services.engine.scheduler) == 1)
        app.state.services.engine.scheduler.drain()
        assert client.get("/health/ready").json()["status"] == "draining"
        refused = client.post("/v1/next-token", json={"context": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    thread.join()
    assert finished[0].json()["usage"]["completion_tokens"] == 20


def test_requests_on_their_way_are_answered_and_their_connections_closed(registry, serve, monkeypatch):
    monkeypatch.setattr(http_server, "_LAST_REQUESTS_S", 3)
    app = create_app(Settings(registry=registry.root, models=("mixture",)))
    with contextlib.ExitStack() as stack, httpx.Client(base_url=stack.enter_context(serve(app))) as kept:
        assert "connection" not in kept.get("/health/ready").headers
        stopping = threading.Thread(target=stack.close)
        stopping.start()
        time.sleep(0.5)  # the server has left its main loop
        for answered in (kept.get("/health/live"), httpx.get(kept.base_url.join("/health/live"))):
            assert (answered.status_code, answered.headers["connection"]) == (200, "close")
        stopping.join()
        with pytest.raises(httpx.ConnectError):
            kept.get("/health/live")


def test_two_apps_in_one_process_count_apart(registry, serve):
    apps = [create_app(Settings(registry=registry.root, models=("mixture",))) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(serve(app)) for app in apps]
        httpx.get(f"{urls[0]}/health/live")
        assert "/health/live" in httpx.get(f"{urls[0]}/metrics").text
        assert "/health/live" not in httpx.get(f"{urls[1]}/metrics").text


def test_the_registry_is_left_as_it_was(registry):
    assert LocalRegistry(registry.root).models() == ["broken", "chars", "damaged", "mixture", "slow"]


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come about")


def value(text, series):
    """Return the value of a series in an exposition."""
    (line,) = [line for line in text.splitlines() if line.rpartition(" ")[0] == series]
    return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def watching(registry):
    """Run a service that polls its registry often."""
    settings = Settings(registry=registry.root, models=("mixture",), watch_interval_s=0.05)
    with running(settings) as server:
        yield server


def read(server):
    return httpx.get(f"{server.url}/metrics").text


def test_build_info_has_the_version(watching):
    version = importlib.metadata.version("gramophone-lm")
    assert value(read(watching), f'gramophone_build_info{{version="{version}"}}') == 1


def test_a_service_that_is_ready_says_so(watching):
    text = read(watching)
    assert (value(text, "gramophone_ready"), value(text, "gramophone_draining")) == (1, 0)


def test_a_service_that_drains_is_not_ready(registry):
    with running(Settings(registry=registry.root, models=("mixture",))) as server:
        server.app.state.services.engine.scheduler.drain()
        text = read(server)
    assert (value(text, "gramophone_ready"), value(text, "gramophone_draining")) == (0, 1)


def test_the_age_of_the_last_look_is_small_while_the_registry_can_be_read(watching):
    assert value(read(watching), "gramophone_registry_look_age_seconds") < 5


def test_a_service_that_does_not_follow_the_registry_tells_no_age(registry):
    with running(Settings(registry=registry.root, models=("mixture",), watch_interval_s=0)) as server:
        assert "registry_look_age" not in read(server)


def test_memory_in_use_is_below_what_there_is(watching):
    text = read(watching)
    used, limit = (value(text, f"gramophone_memory_{name}_bytes") for name in ("working_set", "limit"))
    assert 0 < used < limit


@pytest.mark.parametrize(
    "series",
    [
        'rejections_total{reason="tokens"}',
        'auth_failures_total{reason="unknown"}',
        'model_loads_total{outcome="failed"}',
        'jobs_ended_total{how="deadline"}',
    ],
)
def test_counters_start_at_zero(watching, series):
    assert value(read(watching), f"gramophone_{series}") == 0


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def traced(registry, spans, monkeypatch):
    """Run a service whose spans are recorded here."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(composition, "make_tracer_provider", lambda _endpoint, _variables: provider)
    settings = Settings(registry=registry.root, models=("mixture",), otlp_endpoint="http://collector:4318")
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        yield client


def finished(spans, count=1):
    """Wait for a number of spans: each ends shortly after its reply has arrived."""
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
    traced.get("/v2/healthcheck")
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
    ("endpoint", "complete"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/own/path", "https://c/own/path"),
    ],
)
def test_the_endpoint_is_completed(endpoint, complete):
    provider = tracing.make_tracer_provider(endpoint, {})
    (processor,) = provider._active_span_processor._span_processors
    assert processor.span_exporter._endpoint == complete
    provider.shutdown()


class Export(NamedTuple):
    """A request that a collector has received."""

    path: str
    headers: bytes
    resource: dict


@pytest.fixture
def exported(monkeypatch):
    """Send a span with these variables and return what the collector gets; `{}` in them is its URL."""

    def export(ours=None, **variables):
        requests = []

        async def collect(writer, _number, request):
            requests.append(request)
            writer.write(whole())

        with answering(collect) as url:
            for name, value in variables.items():
                monkeypatch.setenv(name, value.format(url))
            provider = tracing.make_tracer_provider(ours and ours.format(url), otel_variables())
            provider.get_tracer("test").start_span("a").end()
            provider.shutdown()
        head, _, body = requests[0].partition(b"\r\n\r\n")
        (spans,) = ExportTraceServiceRequest.FromString(body).resource_spans
        attributes = {each.key: each.value.string_value for each in spans.resource.attributes}
        return Export(head.split(b" ")[1].decode(), head, attributes)

    return export


BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("variables", "ours", "path"),
    [
        ({BASE: "{}"}, None, "/v1/traces"),
        ({BASE: "{}/own"}, None, "/own/v1/traces"),
        ({BASE: NOWHERE, TRACES: "{}/own"}, None, "/own"),
        ({BASE: "{}", "OTEL_TRACES_EXPORTER": "otlp"}, None, "/v1/traces"),
        ({BASE: NOWHERE, TRACES: NOWHERE}, "{}", "/v1/traces"),
        ({BASE: NOWHERE, "OTEL_TRACES_EXPORTER": "none"}, "{}", "/v1/traces"),
    ],
)
def test_opentelemetrys_own_endpoints_are_used_and_ours_wins(exported, variables, ours, path):
    assert exported(ours, **variables).path == path


def test_opentelemetrys_own_names_and_headers_are_used(exported):
    assert exported("{}").resource["service.name"] == "gramophone"
    attributes = "service.name=first,deployment.environment.name=test"
    named = exported("{}", OTEL_RESOURCE_ATTRIBUTES=attributes, OTEL_EXPORTER_OTLP_HEADERS="x-key=secret")
    assert b"x-key: secret" in named.headers
    assert named.resource["service.name"] == "first"
    assert named.resource["deployment.environment.name"] == "test"
    assert named.resource["service.version"]
    assert exported("{}", OTEL_SERVICE_NAME="second").resource["service.name"] == "second"


@pytest.mark.parametrize(
    ("variables", "timeout_s"),
    [
        ({}, 3),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "7"}, None),
        ({"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "7"}, None),
    ],
)
def test_a_timeout_of_opentelemetrys_own_replaces_ours(monkeypatch, variables, timeout_s):
    given = []

    def export(**options):
        given.append(options)
        return InMemorySpanExporter()

    monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", export)
    tracing.make_tracer_provider("http://c:4318", variables).shutdown()
    assert given == [{"endpoint": "http://c:4318/v1/traces", "timeout": timeout_s}]


@pytest.mark.parametrize(
    ("variables", "ours"),
    [
        ({}, None),
        ({BASE: "", TRACES: " "}, None),
        ({BASE: "http://b", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({BASE: "http://b", "OTEL_SDK_DISABLED": "true"}, None),
        ({"OTEL_SDK_DISABLED": " TRUE "}, "http://c:4318"),
    ],
)
def test_without_an_endpoint_or_disabled_there_are_no_traces(monkeypatch, variables, ours):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracing.make_tracer_provider(ours, otel_variables()) is None


@pytest.mark.parametrize("name", ["GRAMOPHONE_OTLP_ENDPOINT", BASE, TRACES])
def test_set_but_not_installed_stops_the_start(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    ours, variables = ("http://c:4318", {}) if name.startswith("G") else (None, {name: "http://c:4318"})
    with pytest.raises(InputError, match=rf"^{name} is set.*gramophone-lm\[otel\]"):
        tracing.make_tracer_provider(ours, variables)


def test_unset_it_is_not_imported():
    """FastAPI brings the API package; only the SDK is expensive."""
    code = "import sys, service.app; print(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert not any(
        name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for name in done.stdout.split()
    )


def test_the_processs_metrics_have_prometheus_own_names(http):
    text = http.get("/metrics").text
    assert {"process_start_time_seconds", "process_resident_memory_bytes", "process_open_fds"} <= {
        line.split()[0] for line in text.splitlines()
    }
    assert "gramophone_process_" not in text
