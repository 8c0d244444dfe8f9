"""The required scope of every route, cross-site requests and DNS rebinding, no outgoing connections."""

import http.client
import json
import re
import socket
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.routing import Mount, Route

from models.errors import InputError
from service.api_keys import KeyScope, create_key
from service.app import create_app
from service.settings import Settings, read_settings
from service.workers import peers
from service.workers.peers import PEER_PREFIX, is_from_peer
from service.workers.supervisor import _socket_folder
from tests.support.services import running

INFER, METRICS, ADMIN = KeyScope.INFER, KeyScope.METRICS, KeyScope.ADMIN
WAYS_IN = {
    **dict.fromkeys(("GET /", "GET /docs", "GET /static/{name}", "GET /health/live", "GET /health/ready")),
    "GET /v2/healthcheck": None,
    "GET /metrics": METRICS,
    **dict.fromkeys(
        (
            "GET /openapi.json",
            "GET /v1/models",
            "GET /v1/models/{address:path}",
            "GET /v1/models/{address}/card",
            "GET /v1/models/{address}/files",
            "GET /v1/models/{address}/files/{name:path}",
            "POST /v1/next-token",
            "POST /v1/score",
            "POST /v1/rerank",
            "POST /v1/rerank/tune",
            "POST /v1/correct",
            "POST /v1/lattices",
            "POST /v1/restore",
            "POST /v1/generate",
            "POST /v1/completions",
            "POST /v1/autocomplete",
            "GET /v1/autocomplete/users/{user}",
            "PUT /v1/autocomplete/users/{user}",
            "DELETE /v1/autocomplete/users/{user}",
            "DELETE /v1/autocomplete/users/{user}/words/{word:path}",
            "POST /v1/autocomplete/users/{user}/accepted",
            "PUT /v1/wordlists/{name}",
            "GET /v1/wordlists",
            "GET /v1/wordlists/{name}",
            "GET /v1/wordlists/{name}/entries",
            "DELETE /v1/wordlists/{name}",
            "POST /v1/check",
            "GET /v2/check",
            "POST /v2/check",
            "GET /v2/languages",
            "POST /v1/quality",
            "POST /v1/states",
            "POST /v1/states/advance",
            "POST /v1/states/next",
            "POST /v1/states/free",
            "POST /tokenize",
            "POST /detokenize",
            "GET /tokenizer_info",
        ),
        INFER,
    ),
    **dict.fromkeys(
        (
            "GET /admin/profiles",
            "GET /admin/profiles/{name}",
            "PUT /admin/profiles/{name}",
            "DELETE /admin/profiles/{name}",
            "GET /admin/models",
            "POST /admin/models/load",
            "POST /admin/models/unload",
            "PUT /admin/models/{name}/aliases/{alias}",
            "DELETE /admin/models/{name}/aliases/{alias}",
        ),
        ADMIN,
    ),
}
"""Method and path as in the router → scope required of a key; None is open to all."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
REFUSED = {401, 403}


def ways_into(routes, prefix=""):
    """Yield each method and path of an application, including nested routers and applications.

    A route of an unknown kind, such as a socket or a host, is yielded by its type, so the test finds it as new.
    """
    for route in routes:
        if hasattr(route, "original_router"):  # an included router
            yield from ways_into(route.original_router.routes, prefix)
        elif isinstance(route, Mount):
            yield from ways_into(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            yield from (f"{method} {prefix}{route.path}" for method in route.methods - {"HEAD"})
        else:
            yield f"{type(route).__name__} {prefix}{getattr(route, 'path', '')}"


def asked(url, method, path, secret=None):
    """Send an empty object to an unescaped path; return the status."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    headers = {"content-type": "application/json"}
    if secret is not None:
        headers["authorization"] = f"Bearer {secret}"
    try:
        connection.request(method, path, body=b"{}", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def filled(path):
    """Replace the parameters of a path."""
    return re.sub(r"\{\w+(:path)?\}", "mixture", path)


def test_all_ways_in_are_written_down(locked):
    assert set(ways_into(locked.app.routes)) == set(WAYS_IN)


@pytest.mark.parametrize("kind", ["route", "socket", "mount"])
def test_a_new_way_in_is_found(registry, kind):
    app = create_app(Settings(registry=registry.root, models=("mixture",)))
    if kind == "route":
        app.add_api_route("/debug", lambda: "secret")
    elif kind == "socket":
        app.add_api_websocket_route("/debug", lambda _: None)
    else:
        app.mount("/debug", create_app(Settings(registry=registry.root, models=("mixture",))))
    assert any("/debug" in way for way in set(ways_into(app.routes)) - set(WAYS_IN))


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_way_in_asks_for_its_scope(locked, way):
    method, path = way.split()
    path, scope = filled(path), WAYS_IN[way]
    statuses = {held: asked(locked.url, method, path, locked.secrets[held]) for held in KeyScope}
    if scope is None:
        assert asked(locked.url, method, path) not in REFUSED
        return
    assert asked(locked.url, method, path) == 401
    assert asked(locked.url, method, path, "gm_wrong") == 401
    assert {held for held, status in statuses.items() if status != 403} == {scope}
    assert statuses[scope] not in REFUSED


@pytest.mark.parametrize("path", sorted({way.split()[1] for way, scope in WAYS_IN.items() if scope}))
def test_no_other_method_gets_in_without_a_key(locked, path):
    assert {asked(locked.url, method, filled(path)) for method in METHODS} == {401}


@pytest.mark.parametrize("path", ["/admin/models", "/v1/models", "/metrics"])
def test_an_upgrade_is_no_way_round(locked, path):
    head = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    parts = urlsplit(locked.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    connection.request("GET", path, headers={**head, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert connection.getresponse().status == 401
    connection.close()


def test_internal_routes_of_workers_are_behind_no_port(locked):
    """Its paths are unknown from outside; `test_workers_shared` requests one from a service of two workers."""
    paths = [
        value for value in vars(peers).values() if isinstance(value, str) and value.startswith(PEER_PREFIX)
    ]
    assert len(paths) > 3  # PRIVATE itself is one
    assert {asked(locked.url, "GET", path) for path in paths} == {401}
    assert {asked(locked.url, "POST", path, locked.secrets[None]) for path in paths} == {404}
    assert not is_from_peer({"server": ("127.0.0.1", 8000)})
    assert is_from_peer({"server": ("/tmp/gramophone-x/0.sock", None)})  # noqa: S108 - as the server says it


def test_the_sockets_of_workers_lie_where_nobody_else_may_look():
    folder = _socket_folder()
    try:
        assert folder.path.stat().st_mode & 0o077 == 0
    finally:
        folder.remove()


KEY = create_key("a", list(KeyScope))
LISTED = "https://app.example.org"
WORDS = {"text": "bought words"}
TEACH = "/v1/autocomplete/users/default/accepted"


def serving(registry, **options):
    return running(Settings(registry=registry.root, models=("mixture",), **options))


@pytest.fixture(scope="module")
def url(registry):
    """Run a service as the command does: no keys, on 127.0.0.1."""
    with serving(registry, cors_origins=(LISTED,)) as server:
        yield server.url


def taught(url, **headers):
    """Return the status of a request that a page may send without a preflight: a form's method and type."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{url}{TEACH}", json=WORDS, headers={"content-type": "text/plain", **names}
    ).status_code


@pytest.mark.parametrize(
    "sent",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://app.example.org.evil.example"},
        {"origin": "http://[broken"},
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(url, sent):
    assert taught(url, **sent) == 403
    assert httpx.get(f"{url}/v1/autocomplete/users/default").status_code == 404


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"sec_fetch_site": "same-origin", "origin": "https://behind-a-proxy.example"},
        {"sec_fetch_site": "none"},
        {"origin": LISTED, "sec_fetch_site": "cross-site"},
    ],
)
def test_programs_the_own_page_and_named_sites_do(url, sent):
    assert taught(url, **sent) == 200
    assert httpx.delete(f"{url}/v1/autocomplete/users/default").status_code == 200


def test_the_own_page_is_known_by_its_origin_alone(url):
    """Browsers omit `Sec-Fetch-Site` if a page came without TLS from another machine."""
    assert taught(url, origin=url) == 200
    assert httpx.delete(f"{url}/v1/autocomplete/users/default").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/v1/autocomplete/users/default", "/metrics", "/health/live"]
)
@pytest.mark.parametrize(
    "name", ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "a.b."]
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(url, path, name):
    answer = httpx.get(f"{url}{path}", headers={"host": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")


@pytest.mark.parametrize(
    "name", ["localhost:8000", "127.0.0.1", "[::1]:8000", "box", "a.localhost", "LOCALHOST."]
)
def test_names_that_nobody_can_register_are_answered(url, name):
    assert httpx.get(f"{url}/v1/models", headers={"host": name}).status_code == 200


def test_keys_and_other_addresses_leave_names_open(registry):
    """With keys any host name is allowed; except on loopback the service cannot know its names."""
    for options in ({"api_keys": (KEY.key.line,)}, {"host": "0.0.0.0"}):  # noqa: S104 - as in a container
        with serving(registry, **options) as server:
            headers = {"host": "lm.example.org", "authorization": f"Bearer {KEY.secret}"}
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200


def test_with_keys_a_page_of_another_site_needs_one(registry):
    with serving(registry, api_keys=(KEY.key.line,)) as server:
        assert taught(server.url, origin="https://evil.example") == 401
        with_key = {"authorization": f"Bearer {KEY.secret}", "origin": "https://evil.example"}
        assert taught(server.url, **with_key) == 200


def test_names_that_are_set_are_the_only_ones(registry):
    with serving(registry, host="0.0.0.0", allowed_hosts=("LM.example.org",)) as server:  # noqa: S104
        statuses = {
            name: httpx.get(f"{server.url}/v1/models", headers={"host": name}).status_code
            for name in ("lm.example.org:80", "10.0.0.1", "other.example.org", "localhost")
        }
        refused = httpx.get(f"{server.url}/metrics", headers={"host": "127.0.0.1"}).text
    assert statuses == {"lm.example.org:80": 200, "10.0.0.1": 200, "other.example.org": 421, "localhost": 421}
    assert 'auth_failures_total{reason="unknown_host"} 2.0' in refused


@pytest.mark.parametrize("options", [{}, {"cors_origins": (LISTED,)}, {"api_keys": (KEY.key.line,)}])
def test_a_preflight_of_another_page_is_told_the_setting_and_its_origin(registry, options):
    with serving(registry, **options) as server:
        for origin in ("https://evil.example", "null", LISTED + ".evil.example", "x" * 1000):
            asking = {
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-private-network": "true",
            }
            answer = httpx.options(f"{server.url}/v1/score", headers=asking)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (403, "foreign_page")
            assert f"'{origin[:100]}'" in error["message"]
            assert "GRAMOPHONE_CORS_ORIGINS" in error["message"]
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/v1/autocomplete", "/v1/score", "/v2/check", "/v1/models"])
def test_a_listed_page_may_ask_for_a_service_in_a_private_network(url, path):
    asking = {"origin": LISTED, "access-control-request-method": "POST"}
    private = {"access-control-request-private-network": "true"}
    plain, answer = (httpx.options(url + path, headers=asking | more) for more in ({}, private))
    assert (answer.status_code, answer.headers["access-control-allow-private-network"]) == (200, "true")
    assert "access-control-allow-private-network" not in plain.headers


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/score/", "/admin/profiles/"])
def test_a_path_with_an_empty_part_is_named(url, path):
    answer = httpx.get(url + path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert path in answer.json()["error"]["message"]


def test_a_preflight_of_a_listed_page_is_allowed_and_options_of_no_page_are_as_ever(url):
    asking = {"origin": LISTED, "access-control-request-method": "POST"}
    answer = httpx.options(f"{url}/v1/score", headers=asking)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, LISTED)
    for incomplete in ({}, {"origin": "https://evil.example"}, {"access-control-request-method": "POST"}):
        assert httpx.options(f"{url}/v1/score", headers=incomplete).status_code == 405


ADDRESSES = (
    "http://{}",
    "http://{}/x@1",
    "s3://{}/x",
    "//{}/x",
    "file:///etc/passwd",
    "memory://x/y",
    "{}",
    "x@http://{}",
)
PLACES = [
    ("POST", "/admin/models/load", lambda address: {"model": address, "wait": True}),
    ("POST", "/admin/models/unload", lambda address: {"model": address}),
    ("POST", "/v1/score", lambda address: {"model": address, "texts": ["the"]}),
    ("POST", "/v1/rerank", lambda address: {"profile": address, "candidates": ["the"]}),
    ("POST", "/v1/check", lambda address: {"model": address, "text": "the"}),
    ("POST", "/v1/lattices", lambda address: {"profile": address, "lattices": [{"arcs": []}]}),
    ("POST", "/v1/restore", lambda address: {"model": address, "texts": ["the"]}),
    ("PUT", "/admin/profiles/a", lambda address: {"weights": {"lm": 1.0}, "models": [{"address": address}]}),
]


@pytest.fixture
def connections(monkeypatch):
    """Record the addresses that this process connects to."""
    made, connect = [], socket.socket.connect

    def watching(self, address):
        made.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watching)
    return made


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_no_address_in_a_request_is_connected_to(client, locked, connections, place):
    method, path, body = place
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        port = listening.getsockname()[1]
        for address in ADDRESSES:
            answer = client.request(method, path, json=body(address.format(f"127.0.0.1:{port}")))
            assert answer.status_code < 500
            assert "passwd: " not in answer.text
        with pytest.raises(TimeoutError):
            listening.accept()
    assert {made[1] for made in connections} <= {urlsplit(locked.url).port}
    client.delete("/admin/profiles/a")


def test_settings_that_may_hold_a_password_are_not_repeated(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_OTLP_ENDPOINT", "https://user:hunter2@collector:4318")
    with pytest.raises(InputError) as refused:
        read_settings()
    assert "hunter2" not in str(refused.value)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(refused.value)


def test_the_document_of_the_interface_names_no_other_host(client):
    document = client.get("/openapi.json").json()
    assert "servers" not in document
    assert "http://" not in json.dumps(document["components"]["securitySchemes"])
