"""Authentication middleware: checks the API key scope that each route requires.

The key is checked before the body is read. Paths outside the access table, which has every registered
endpoint, get 404.
"""

from collections.abc import Mapping

from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ConnectionScope

from service.api_errors import error_response, not_found
from service.api_keys import KeyScope, KeyStore
from service.engine.metrics import Metrics
from service.middleware.request_context import annotate, header
from service.schemas.replies import ErrorBody


class AccessTable:
    """Routes by path, and the key scopes that they require.

    Args:
        scopes: required scope by the template of the route; None if no key is required.
    """

    def __init__(self, scopes: Mapping[str, KeyScope | None]) -> None:
        self.scopes = scopes
        self._fixed = {route for route in scopes if "{" not in route}
        # routes with any number of segments come last, longer ones of these first
        patterns = sorted(scopes.keys() - self._fixed, key=lambda route: (":path}" in route, -len(route)))
        self._patterns = [(compile_path(route)[0], route) for route in patterns]

    def route(self, path: str) -> str | None:
        """Return the template of a path's route; None without one, or if a parameter would be empty."""
        if path in self._fixed:
            return path
        found = ((pattern.fullmatch(path), route) for pattern, route in self._patterns)
        return next((route for match, route in found if match and all(match.groups())), None)


_BEARER = b"bearer "
_CHALLENGE = {"www-authenticate": 'Bearer realm="gramophone"'}
_ADMIN_WITHOUT_KEYS = (
    f"this request requires a key with the scope {KeyScope.ADMIN}, but the service has no keys: "
    "see GRAMOPHONE_API_KEYS_FILE"
)


class Authentication:
    """Middleware that requires a key with the route's scope.

    With configured keys, every route requires one unless its rule has no scope. Without keys, all routes
    are open except administration, which always requires a key.

    Args:
        app: application.
        keys: valid keys.
        metrics: counters of rejected requests.
        table: access rules of the routes.
    """

    def __init__(self, app: ASGIApp, *, keys: KeyStore, metrics: Metrics, table: AccessTable) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics
        self._table = table

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = self._table.route(scope["path"])
        if route is not None:
            annotate(scope, route=route)
        refusal = self._refusal(scope, route)
        if refusal is not None:
            reason, message = refusal
            self._metrics.auth_failures.labels(reason).inc()
            if reason == "scope":
                body = ErrorBody(message, "permission_error", None, "missing_scope")
                response = error_response(403, body)
            else:
                body = ErrorBody(message, "authentication_error", None, "invalid_api_key")
                response = error_response(401, body, _CHALLENGE)
            await response(scope, receive, send)
        elif route is None:
            await not_found(scope["path"])(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: ConnectionScope, route: str | None) -> tuple[str, str] | None:
        """Return the reason (a metric label) and the error message; None if allowed."""
        required = None if route is None else self._table.scopes[route]
        if route is not None and required is None:
            return None
        if not self._keys:
            return ("scope", _ADMIN_WITHOUT_KEYS) if required is KeyScope.ADMIN else None
        presented = presented_key(scope)
        if not presented:
            return "missing", "a key is required: send `Authorization: Bearer KEY`"
        key = self._keys.find(presented)
        if key is None:
            return "unknown", "the key is unknown to this service"
        annotate(scope, key=key.name)
        if required is not None and required not in key.scopes:
            return "scope", f"the key lacks the scope {required}, which this request requires"
        return None


def presented_key(scope: ConnectionScope) -> bytes:
    """Return the bearer key of a request; empty without a key."""
    value = header(scope, b"authorization") or b""
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""
