"""What browsers are told: which origins may ask, and to take replies for nothing but what they are."""

import httpx
import pytest
from pydantic import ValidationError

from service.api_keys import create_key
from service.settings import Settings
from tests.servers import running

PAGE = "https://app.example.org"
KEY = create_key("app", ["infer"])


@pytest.fixture(scope="module")
def cors(registry):
    settings = Settings(
        registry=registry.root, models=("mixture",), cors_origins=(PAGE,), api_keys=(KEY.key.line,)
    )
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        yield client


def preflight(client, origin, headers="authorization"):
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": headers,
    }
    return client.options("/v1/completions", headers=asked)


def test_a_page_of_a_named_origin_may_ask_without_a_key_for_the_preflight(cors):
    wanted = "authorization, content-type, x-request-id, x-stainless-lang, x-stainless-retry-count"
    told = preflight(cors, PAGE, wanted)
    assert told.status_code == 200
    assert told.headers["access-control-allow-origin"] == PAGE
    assert told.headers["access-control-allow-headers"] == wanted
    assert "access-control-allow-credentials" not in told.headers


def test_another_origin_may_not(cors):
    assert preflight(cors, "https://evil.example.org").status_code == 400
    answer = cors.get("/health/live", headers={"origin": "https://evil.example.org"})
    assert "access-control-allow-origin" not in answer.headers


def test_pages_may_read_ids_times_and_errors(cors):
    answer = cors.post("/v1/score", headers={"origin": PAGE})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == PAGE
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after"} <= set(exposed)


def test_without_the_setting_no_origin_is_named(http):
    answer = http.get("/health/live", headers={"origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert preflight(http, PAGE).status_code == 405


@pytest.mark.parametrize("origin", ["app.example.org", "https://app.example.org/", "https://a.org/x", "a b"])
def test_what_is_no_origin_is_refused_at_the_start(origin):
    with pytest.raises(ValidationError, match="no origin"):
        Settings(cors_origins=(origin,))


@pytest.mark.parametrize("path", ["/health/live", "/nowhere", "/v1/score", "/metrics"])
def test_every_reply_keeps_browsers_from_harm(http, path):
    headers = http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert "server" not in headers
