"""Per-request context: fields for the log and the trace, and the models in use by the request.

Fields: `route`, `key`, `model`, `prompt_tokens`, `scored_tokens`, `generated_tokens`, `queue_ms`,
`trace_id`.

`ModelUseMiddleware` releases the models of a request once it is answered or abandoned, streams
included, so that an unloaded model is freed only afterwards.
"""

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.engine.loaded_model import LoadedModel

_CONTEXT = "facts"


def begin_context(scope: Scope) -> dict[str, Any]:
    """Create the empty context of a request."""
    fields: dict[str, Any] = {}
    scope["state"][_CONTEXT] = fields
    return fields


def annotate(request: Request | Scope, **fields: str | float) -> None:
    """Add fields to the context of a request; values are names, numbers or texts not chosen by clients."""
    context_of(request.scope if isinstance(request, Request) else request).update(fields)


def add_counts(request: Request, **numbers: float) -> None:
    """Add to fields that are sums, such as the tokens of a stream."""
    fields = context_of(request.scope)
    for name, number in numbers.items():
        fields[name] = fields.get(name, 0) + number


def context_of(scope: Scope) -> dict[str, Any]:
    """Return the context of a request so far."""
    fields: dict[str, Any] = scope["state"][_CONTEXT]
    return fields


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of a name; None without one."""
    return next((value for key, value in scope["headers"] if key == name), None)


_MODELS_IN_USE = "leases"


def track_use(scope: Scope, loaded: LoadedModel) -> None:
    """Count a model as used until the request is answered."""
    models_in_use: list[LoadedModel] | None = scope.get("state", {}).get(_MODELS_IN_USE)
    if models_in_use is not None:
        models_in_use.append(loaded)
        loaded.use.begin()


class ModelUseMiddleware:
    """Middleware that releases the models of a request once it is answered or abandoned, streams included.

    Args:
        app: application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        models_in_use: list[LoadedModel] = []
        scope.setdefault("state", {})[_MODELS_IN_USE] = models_in_use
        try:
            await self._app(scope, receive, send)
        finally:
            while models_in_use:
                models_in_use.pop().use.end()
