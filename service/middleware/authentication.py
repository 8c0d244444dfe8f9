"""Authentication: the API key scope that each route requires.

The key is checked before the body is read. Paths outside the access table, which has every registered
endpoint, get 404.
"""

from collections.abc import Mapping

from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Scope as ConnectionScope

from service.api_errors import error_response
from service.api_keys import KeyScope, KeyStore
from service.engine.metrics import Metrics
from service.middleware.guarded_request import GuardedRequest, header
from service.schemas.replies import ErrorBody

_BEARER = b"bearer "
_CHALLENGE = {"www-authenticate": 'Bearer realm="gramophone"'}
_ADMIN_WITHOUT_KEYS = (
    f"this request requires a key with the scope {KeyScope.ADMIN}, but the service has no keys: "
    "see GRAMOPHONE_API_KEYS_FILE"
)


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


class Authentication:
    """Check of API keys: each request needs one with its route's scope.

    With configured keys, every route requires one unless its rule has no scope. Without keys, all routes
    are open except administration, which always requires a key.

    Args:
        keys: valid keys.
        metrics: counters of rejected requests.
        table: access rules of the routes.
    """

    def __init__(self, *, keys: KeyStore, metrics: Metrics, table: AccessTable) -> None:
        self._keys = keys
        self._metrics = metrics
        self._table = table

    def refusal(self, request: GuardedRequest) -> Response | None:
        """Return the reply to a request without the required key; note the route and the key of others."""
        route = self._table.route(request.scope["path"])
        if route is not None:
            request.fields["route"] = route
        refusal = self._reason(request, route)
        if refusal is None:
            return None
        reason, message = refusal
        self._metrics.auth_failures.labels(reason).inc()
        if reason == "scope":
            return error_response(403, ErrorBody(message, "permission_error", None, "missing_scope"))
        body = ErrorBody(message, "authentication_error", None, "invalid_api_key")
        return error_response(401, body, _CHALLENGE)

    def _reason(self, request: GuardedRequest, route: str | None) -> tuple[str, str] | None:
        """Return the reason (a metric label) and the error message; None if allowed."""
        required = None if route is None else self._table.scopes[route]
        if route is not None and required is None:
            return None
        if not self._keys:
            return ("scope", _ADMIN_WITHOUT_KEYS) if required is KeyScope.ADMIN else None
        presented = presented_key(request.scope)
        if not presented:
            return "missing", "a key is required: send `Authorization: Bearer KEY`"
        key = self._keys.find(presented)
        if key is None:
            return "unknown", "the key is unknown to this service"
        request.owner = request.fields["key"] = key.name
        if required is not None and required not in key.scopes:
            return "scope", f"the key lacks the scope {required}, which this request requires"
        return None


def presented_key(scope: ConnectionScope) -> bytes:
    """Return the bearer key of a request; empty without a key."""
    value = header(scope, b"authorization") or b""
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""
