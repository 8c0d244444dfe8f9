"""What is found out about a request while it is answered, for its line in the log and its span.

The names: `route`, `key`, `model`, `prompt_tokens`, `scored_tokens`, `generated_tokens`, `queue_ms`, `trace_id`.
"""

from typing import Any

from starlette.requests import Request
from starlette.types import Scope

_CONTEXT = "facts"


def begin_context(scope: Scope) -> dict[str, Any]:
    """Where the facts of a request are gathered from now on."""
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
    """What is known of a request so far."""
    facts: dict[str, Any] = scope["state"][_CONTEXT]
    return facts


def header(scope: Scope, name: bytes) -> bytes | None:
    """A request's header, the first of that name."""
    return next((value for key, value in scope["headers"] if key == name), None)
