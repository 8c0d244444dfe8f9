"""Authentication middleware: checks the API key scope that each route requires.

The access table has every registered endpoint; other paths get 404. The key is checked before the
body is read. Without configured keys, everything except administration is open.
"""

from collections.abc import Iterable
from typing import NamedTuple

from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ConnectionScope

from service.api_errors import error_response, not_found
from service.api_keys import KeyScope, KeyStore
from service.engine.metrics import Metrics
from service.middleware.request_context import annotate, header
from service.schemas.replies import ErrorBody


class AccessRule(NamedTuple):
    """Access rule of a path.

    Attributes:
        route: template of the route.
        scope: required key scope; None if no key is required.
    """

    route: str
    scope: KeyScope | None


class AccessTable:
    """Access rules of routes, by path.

    Args:
        rules: rules of all routes.
    """

    def __init__(self, rules: Iterable[AccessRule]) -> None:
        by_route = {rule.route: rule for rule in rules}
        self._fixed = {route: rule for route, rule in by_route.items() if "{" not in route}
        # routes with any number of segments come last; among these, longer ones come first
        patterns = sorted(by_route.keys() - self._fixed, key=lambda route: (":path}" in route, -len(route)))
        self._patterns = [(compile_path(route)[0], by_route[route]) for route in patterns]

    def rule(self, path: str) -> AccessRule | None:
        """Return the rule of a path; None for a path without a route."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        return next((rule for pattern, rule in self._patterns if pattern.fullmatch(path)), None)


_BEARER = b"bearer "
_CHALLENGE = {"www-authenticate": 'Bearer realm="gramophone"'}
_ADMIN_WITHOUT_KEYS = (
    f"this request requires a key with the scope {KeyScope.ADMIN}, but the service has no keys: "
    "see GRAMOPHONE_API_KEYS_FILE"
)


class Authentication:
    """Middleware that requires a key with the scope of the route.

    With configured keys, every route requires one unless its rule has no scope. Without keys, all routes are open
    except administration, which always requires a key. Paths outside the table get 404.

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
        rule = self._table.rule(scope["path"])
        if rule is not None:
            annotate(scope, route=rule.route)
        refusal = self._refusal(scope, rule)
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
        elif rule is None:
            await not_found(scope["path"])(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: ConnectionScope, rule: AccessRule | None) -> tuple[str, str] | None:
        """Return the reason (a metric label) and the error message; None if the request is allowed."""
        if rule is not None and rule.scope is None:
            return None
        if not self._keys:
            is_admin = rule is not None and rule.scope is KeyScope.ADMIN
            return ("scope", _ADMIN_WITHOUT_KEYS) if is_admin else None
        presented = presented_key(scope)
        if not presented:
            return "missing", "a key is required: send `Authorization: Bearer KEY`"
        key = self._keys.find(presented)
        if key is None:
            return "unknown", "the key is unknown to this service"
        annotate(scope, key=key.name)
        if rule is not None and rule.scope not in key.scopes:
            return "scope", f"the key lacks the scope {rule.scope}, which this request requires"
        return None


def presented_key(scope: ConnectionScope) -> bytes:
    """Return the bearer key of a request; empty without a key."""
    value = header(scope, b"authorization") or b""
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""
