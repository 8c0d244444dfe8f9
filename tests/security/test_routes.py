"""Every way in, the scope that it must ask for, and that it does: a new one fails here until it is written down."""

import http.client
import re
from urllib.parse import urlsplit

import pytest
from starlette.routing import Mount, Route

from service.api_keys import KeyScope
from service.app import create_app
from service.settings import Settings
from service.workers import peers
from service.workers.peers import PEER_PREFIX, is_from_peer
from service.workers.supervisor import _socket_folder

INFER, METRICS, ADMIN = KeyScope.INFER, KeyScope.METRICS, KeyScope.ADMIN
WAYS_IN = {
    **dict.fromkeys(("GET /", "GET /docs", "GET /static/{name}", "GET /health/live", "GET /health/ready")),
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
            "POST /v1/generate",
            "POST /v1/completions",
            "POST /v1/autocomplete",
            "GET /v1/autocomplete/users/{user}",
            "PUT /v1/autocomplete/users/{user}",
            "DELETE /v1/autocomplete/users/{user}",
            "POST /v1/autocomplete/users/{user}/accepted",
            "POST /v1/check",
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
"""Method and path as the router has them → scope that a key must have; None is open to all."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
REFUSED = {401, 403}


def ways_into(routes, prefix=""):
    """Each method and path of an application, those of routers and applications within it too.

    Whatever is of a kind that is not known here – a socket, a host – is told as such, and so found to be new.
    """
    for route in routes:
        if hasattr(route, "original_router"):  # a router that was included
            yield from ways_into(route.original_router.routes, prefix)
        elif isinstance(route, Mount):
            yield from ways_into(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            yield from (f"{method} {prefix}{route.path}" for method in route.methods - {"HEAD"})
        else:
            yield f"{type(route).__name__} {prefix}{getattr(route, 'path', '')}"


def asked(url, method, path, secret=None):
    """The status of a request with an empty object; the path goes as it is."""
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
    """A path with something in the place of its parameters."""
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


def test_what_workers_ask_of_one_another_is_behind_no_port(locked):
    """Its paths lead nowhere from outside; `test_workers_remember` asks one of a service of two workers."""
    paths = [
        value for value in vars(peers).values() if isinstance(value, str) and value.startswith(PEER_PREFIX)
    ]
    assert len(paths) > 3  # and PRIVATE itself
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
