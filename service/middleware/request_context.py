"""Per-request context: fields for the log and the trace, and the models in use by the request.

Fields: `route`, `key`, `model`, `prompt_tokens`, `scored_tokens`, `generated_tokens`, `queue_ms`,
`trace_id`.

The models are released when the request is answered or abandoned; an unloaded model is freed only
then.
"""

import time
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from service.hosting.loaded_model import LoadedModel

_CONTEXT = "facts"
_MODELS_IN_USE = "leases"


def begin_context(scope: Scope) -> dict[str, Any]:
    """Create an empty context for a request."""
    fields: dict[str, Any] = {}
    scope["state"][_CONTEXT] = fields
    scope["state"][_MODELS_IN_USE] = []
    return fields


def annotate(request: Request | Scope, **fields: str | float) -> None:
    """Add fields to a request's context; values are names, numbers, or texts that clients cannot choose."""
    context_of(request.scope if isinstance(request, Request) else request).update(fields)


def add_counts(request: Request, **numbers: float) -> None:
    """Increase counter fields, such as a stream's tokens."""
    fields = context_of(request.scope)
    for name, number in numbers.items():
        fields[name] = fields.get(name, 0) + number


def context_of(scope: Scope) -> dict[str, Any]:
    """Return the context of a request."""
    fields: dict[str, Any] = scope["state"][_CONTEXT]
    return fields


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header with a name; None if absent."""
    return next((value for key, value in scope["headers"] if key == name), None)


def track_use(scope: Scope, loaded: LoadedModel) -> None:
    """Count a model as used until the request ends."""
    models_in_use: list[LoadedModel] | None = scope.get("state", {}).get(_MODELS_IN_USE)
    if models_in_use is not None:
        models_in_use.append(loaded)
        loaded.use.in_flight += 1
        loaded.use.last_s = time.time()


def end_uses(scope: Scope) -> None:
    """Release the models of an answered or abandoned request, including streams."""
    models_in_use: list[LoadedModel] = scope["state"][_MODELS_IN_USE]
    while models_in_use:
        models_in_use.pop().use.in_flight -= 1
