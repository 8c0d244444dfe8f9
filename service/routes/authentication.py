"""Lets in whom the keys allow, before anything of the request's body is read. Plain ASGI."""

from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ConnectionScope

from service.engine.metrics import Metrics
from service.routes.errors import error_response, not_found
from service.routes.facts import annotate, header
from service.schemas.replies import ErrorBody
from service.security.access import AccessRule, AccessTable
from service.security.key_store import KeyStore
from service.security.keys import KeyScope

_BEARER = b"bearer "
_CHALLENGE = {"www-authenticate": 'Bearer realm="gramophone"'}


class Authentication:
    """Asks for a key with the scope that the route demands.

    Once there are keys, everything but what the table leaves open demands one. Without any, all is open
    but administration, which always demands a key. Paths outside the table lead nowhere.

    Args:
        app: what answers.
        keys: those that are good.
        metrics: where refusals are counted.
        table: what each route demands.
    """

    def __init__(
        self, app: ASGIApp, *, keys: KeyStore, metrics: Metrics, table: AccessTable | None = None
    ) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics
        self._table = table or AccessTable()

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        demand = self._table.rule(scope["path"])
        if demand is not None:
            annotate(scope, route=demand.route)
        refusal = self._refusal(scope, demand)
        if refusal is not None:
            status, reason, body = refusal
            self._metrics.auth_failures.labels(reason).inc()
            headers = _CHALLENGE if status == 401 else {}
            await error_response(status, body, headers)(scope, receive, send)
        elif demand is None:
            await not_found(scope["path"])(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(
        self, scope: ConnectionScope, demand: AccessRule | None
    ) -> tuple[int, str, ErrorBody] | None:
        """The status, the reason for the metrics and the message; None if the request may pass."""
        if demand is not None and demand.scope is None:
            return None
        if not self._keys:
            closed = demand is not None and demand.scope is KeyScope.ADMIN
            return (403, "scope", _FORBIDDEN_WITHOUT_KEYS) if closed else None
        presented = presented_key(scope)
        if not presented:
            return 401, "missing", _invalid_key_body("a key is needed, as `Authorization: Bearer KEY`")
        key = self._keys.find(presented)
        if key is None:
            return 401, "unknown", _invalid_key_body("the key is not one of this service's")
        annotate(scope, key=key.name)
        if demand is not None and demand.scope is not None and demand.scope not in key.scopes:
            return (
                403,
                "scope",
                _missing_scope_body(f"the key lacks the scope {demand.scope}, which this asks for"),
            )
        return None


def presented_key(scope: ConnectionScope) -> bytes:
    """What a request gives as its key, after `Bearer`; empty if there is nothing of the kind."""
    given = header(scope, b"authorization") or b""
    return given[len(_BEARER) :].strip() if given[: len(_BEARER)].lower() == _BEARER else b""


def _invalid_key_body(message: str) -> ErrorBody:
    return ErrorBody(message, "authentication_error", None, "invalid_api_key")


def _missing_scope_body(message: str) -> ErrorBody:
    return ErrorBody(message, "permission_error", None, "missing_scope")


_FORBIDDEN_WITHOUT_KEYS = _missing_scope_body(
    f"this needs a key with the scope {KeyScope.ADMIN}, and the service has no keys: "
    "see GRAMOPHONE_API_KEYS_FILE"
)
