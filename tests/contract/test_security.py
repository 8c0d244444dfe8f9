"""Access control: keys, their scopes, and complete coverage of the routes."""

import httpx
import pytest

from gramophone_client import AccessError, Client
from models.errors import FormatError, InputError
from service.api_keys import KeyScope, create_key
from service.app import ENDPOINTS, access_table, create_app
from service.settings import Settings
from tests.support.http import asked
from tests.support.services import running, serving

KEYS = {scope: create_key(f"for-{scope}", [scope]) for scope in KeyScope}
LINES = tuple(made.key.line for made in KEYS.values())
ASKED = {
    KeyScope.INFER: ("POST", "/v1/next-token"),
    KeyScope.METRICS: ("GET", "/metrics"),
    KeyScope.ADMIN: ("GET", "/admin/models"),
}


def settings(registry, **options):
    return Settings(registry=registry.root, models=("mixture",), **options)


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture(scope="module")
def locked(registry):
    with (
        running(settings(registry, api_keys=LINES)) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def unlocked(registry):
    with running(settings(registry)) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def paths(routes):
    """Yield the paths of an application's routes, including nested routers."""
    for route in routes:
        if getattr(route, "path", None) is not None:
            yield route.path
        else:
            yield from paths(route.original_router.routes)


def test_no_route_is_outside_the_table(registry):
    app = create_app(settings(registry))
    found = set(paths(app.routes))
    assert {"/v1/score", "/metrics", "/v1/models/{address:path}"} <= found
    assert found == {endpoint.path for endpoint in ENDPOINTS}
    assert len(found) == len({(endpoint.path, endpoint.scope) for endpoint in ENDPOINTS})
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.scope is None} == {
        "/",
        "/docs",
        "/static/{name}",
        "/health/live",
        "/health/ready",
        "/v2/healthcheck",
    }
    for endpoint in ENDPOINTS:
        if endpoint.scope is not None:
            expected = {"/admin": KeyScope.ADMIN, "/metrics": KeyScope.METRICS}
            first = "/" + endpoint.path.split("/")[1]
            assert endpoint.scope is expected.get(first, KeyScope.INFER), endpoint.path


def test_a_route_outside_the_table_is_not_served(registry):
    app = create_app(settings(registry))
    app.add_api_route("/debug", lambda: "secret")
    with serving(app) as url:
        assert httpx.get(f"{url}/debug").status_code == 404


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/v2/healthcheck"])
def test_health_needs_no_key(locked, path):
    assert locked.get(path).status_code == 200
    assert locked.get(path, headers=bearer("wrong")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Basic Zm9vOmJhcg=="},
        bearer("gm_wrong"),
        bearer(KEYS[KeyScope.INFER].secret + "x"),
        bearer(KEYS[KeyScope.INFER].key.digest.hex()),
        bearer("x" * 5000),
    ],
)
@pytest.mark.parametrize("path", ["/v1/score", "/metrics", "/admin/models", "/nowhere", "/openapi.json"])
def test_without_a_good_key_nothing_is_answered(locked, headers, path):
    answer = locked.post(path, headers=headers, content=b"not even JSON")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="gramophone"'
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("held", KeyScope)
@pytest.mark.parametrize("asked", KeyScope)
def test_a_key_opens_what_its_scope_says_and_no_more(locked, held, asked):
    method, path = ASKED[asked]
    answer = locked.request(method, path, headers=bearer(KEYS[held].secret), json={"context": "the"})
    if held is asked:
        assert answer.status_code not in {401, 403}
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")
        assert f"scope {asked}" in answer.json()["error"]["message"]
        assert KEYS[held].key.name not in answer.text


def test_our_client_sends_its_key(locked):
    with Client(str(locked.base_url), api_key=KEYS[KeyScope.INFER].secret) as client:
        assert client.next_token("the").results
    with Client(str(locked.base_url)) as client, pytest.raises(AccessError, match="a key is required"):
        client.next_token("the")


def test_the_scheme_is_read_in_any_case(locked):
    secret = KEYS[KeyScope.METRICS].secret
    assert locked.get("/metrics", headers={"Authorization": f"bEARER  {secret}"}).status_code == 200


def test_with_a_good_key_a_wrong_path_is_404_and_a_wrong_method_405(locked):
    headers = bearer(KEYS[KeyScope.INFER].secret)
    assert locked.get("/nowhere", headers=headers).json()["error"]["code"] == "not_found"
    assert locked.get("/v1/score", headers=headers).status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/metrics%0a", "/METRICS", "//metrics", "/metrics/", "/v1/../metrics", "/v1/models/..%2f..%2fmetrics"],
)
def test_no_spelling_of_a_path_gets_round_the_table(locked, path):
    whole = str(locked.base_url).rstrip("/") + path  # `//metrics` alone would name a host
    answer = locked.get(whole, headers=bearer(KEYS[KeyScope.INFER].secret))
    assert answer.status_code in {403, 404}


def test_a_refusal_does_not_wait_for_the_body(locked):
    head = b"POST /v1/score HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"
    assert asked(locked.base_url, head, timeout_s=5).status == 401


def test_without_keys_all_is_open_but_administration(unlocked):
    assert unlocked.post("/v1/next-token", json={"context": "the"}).status_code == 200
    assert unlocked.get("/metrics", headers={"authorization": "Bearer"}).status_code == 200
    closed = unlocked.get("/admin/models", headers=bearer("gm_any"))
    assert closed.status_code == 403
    assert "GRAMOPHONE_API_KEYS_FILE" in closed.json()["error"]["message"]
    assert unlocked.get("/nowhere").status_code == 404


def test_keys_change_while_the_service_runs(registry, tmp_path):
    file = tmp_path / "keys"
    old, new = create_key("old", ["infer"]), create_key("new", ["infer"])
    file.write_text(old.key.line)
    with running(settings(registry, api_keys_file=file)) as server:

        def status(made):
            return httpx.get(f"{server.url}/v1/models", headers=bearer(made.secret)).status_code

        assert (status(old), status(new)) == (200, 401)
        other = tmp_path / "other"
        other.write_text(new.key.line)
        other.replace(file)  # mounted secrets are replaced like this
        server.app.state.keys.force_reload()
        assert (status(old), status(new)) == (401, 200)


def test_a_service_does_not_start_with_keys_it_cannot_read(registry, tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        create_app(settings(registry, api_keys_file=tmp_path / "none"))
    with pytest.raises(InputError, match=r"^GRAMOPHONE_API_KEYS, entry 1: a key has 3 fields"):
        create_app(settings(registry, api_keys=("gm_pasted-by-mistake",)))


def test_failures_are_counted_by_reason(registry):
    with running(settings(registry, api_keys=LINES)) as server:
        httpx.get(f"{server.url}/v1/models")
        httpx.get(f"{server.url}/v1/models", headers=bearer("gm_wrong"))
        httpx.get(f"{server.url}/v1/models", headers=bearer(KEYS[KeyScope.METRICS].secret))
        text = httpx.get(f"{server.url}/metrics", headers=bearer(KEYS[KeyScope.METRICS].secret)).text
    for reason in ("missing", "unknown", "scope"):
        assert f'gramophone_auth_failures_total{{reason="{reason}"}} 1.0' in text


def test_a_client_makes_up_no_labels(locked):
    locked.get("/made/up", headers=bearer(KEYS[KeyScope.INFER].secret))
    locked.request("PROPFIND", "/v1/score")
    text = locked.get("/metrics", headers=bearer(KEYS[KeyScope.METRICS].secret)).text
    assert "made" not in text
    assert "PROPFIND" not in text
    assert 'handler="unmatched"' in text


def test_parameters_match_as_the_router_has_them():
    table = access_table()
    assert table.scopes[table.route("/admin/models/lstm/aliases/champion")] is KeyScope.ADMIN
    assert table.route("/admin/models/a/b/aliases/champion") is None
    assert table.scopes[table.route("/v1/models/lstm@champion")] is KeyScope.INFER
    assert table.route("/v1/models/lstm/card") == "/v1/models/{address}/card"
    assert table.route("/v1/models/lstm/files/a/b.png") == "/v1/models/{address}/files/{name:path}"
    assert table.route("/v1/models/lstm/versions") == "/v1/models/{address:path}"
    assert table.route("/v1/score\n") is None
