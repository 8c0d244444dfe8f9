"""What surrounds the endpoints: start, health, models, request ids, metrics, overload, shutting down."""

import contextlib
import threading
import time

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.errors import InvalidInputError, ModelNotFoundError, RegistryError
from service.app import create_app
from service.settings import Settings


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
    with pytest.raises(InvalidInputError, match="'mixture@'; after @ stands"):
        create_app(Settings(registry=registry.root, models=("mixture@",)))


def test_ready_is_503_until_the_default_model_is_loaded(registry, serve, monkeypatch):
    gate = threading.Event()
    app = create_app(Settings(registry=registry.root, models=("mixture",)))
    loader = app.state.services.host._loader
    load = loader._read
    monkeypatch.setattr(loader, "_read", lambda *a, **k: (gate.wait(5), load(*a, **k))[1])
    with serve(app) as url, httpx.Client(base_url=url) as client:
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").json()["status"] == "loading"
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
            name = content["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert name in document["components"]["schemas"]


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
