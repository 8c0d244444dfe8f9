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
    """Begin to gather the facts of a request."""
    gathered: dict[str, Any] = {}
    scope["state"][_CONTEXT] = gathered
    return gathered


def annotate(request: Request | Scope, **facts: str | float) -> None:
    """Keep facts about a request; each is a name, a number or a text that no client made up."""
    context_of(request.scope if isinstance(request, Request) else request).update(facts)


def add_counts(request: Request, **numbers: float) -> None:
    """Add to facts that are sums, such as the tokens of a stream."""
    facts = context_of(request.scope)
    for name, number in numbers.items():
        facts[name] = facts.get(name, 0) + number


def context_of(scope: Scope) -> dict[str, Any]:
    """Return the facts of a request so far."""
    facts: dict[str, Any] = scope["state"][_CONTEXT]
    return facts


def header(scope: Scope, name: bytes) -> bytes | None:
    """A request's header, the first of that name."""
    return next((value for key, value in scope["headers"] if key == name), None)


_MODELS_IN_USE = "leases"


def track_use(scope: Scope, loaded: LoadedModel) -> None:
    """Count a model as used by a request until that is answered."""
    leases: list[LoadedModel] | None = scope.get("state", {}).get(_MODELS_IN_USE)
    if leases is not None:
        leases.append(loaded)
        loaded.use.begin()


class ModelUseMiddleware:
    """Ends what a request has of models once it is answered, or given up, streams included.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        leases: list[LoadedModel] = []
        scope.setdefault("state", {})[_MODELS_IN_USE] = leases
        try:
            await self._app(scope, receive, send)
        finally:
            while leases:
                leases.pop().use.end()
