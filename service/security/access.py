"""What every route demands, in one table; what is not in it is not served."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from service.security.keys import KeyScope

SCOPES_BY_ROUTE: Mapping[str, KeyScope | None] = {
    "/": None,
    "/docs": None,
    "/static/{name}": None,
    "/health/live": None,
    "/health/ready": None,
    "/metrics": KeyScope.METRICS,
    "/openapi.json": KeyScope.INFER,
    "/v1/models": KeyScope.INFER,
    "/v1/models/{address}/card": KeyScope.INFER,
    "/v1/models/{address}/files": KeyScope.INFER,
    "/v1/models/{address}/files/{name:path}": KeyScope.INFER,
    "/v1/models/{address:path}": KeyScope.INFER,
    "/v1/next-token": KeyScope.INFER,
    "/v1/score": KeyScope.INFER,
    "/v1/rerank": KeyScope.INFER,
    "/v1/rerank/tune": KeyScope.INFER,
    "/v1/generate": KeyScope.INFER,
    "/v1/completions": KeyScope.INFER,
    "/v1/autocomplete": KeyScope.INFER,
    "/v1/autocomplete/users/{user}": KeyScope.INFER,
    "/v1/autocomplete/users/{user}/accepted": KeyScope.INFER,
    "/v1/check": KeyScope.INFER,
    "/v1/quality": KeyScope.INFER,
    "/v1/states": KeyScope.INFER,
    "/v1/states/advance": KeyScope.INFER,
    "/v1/states/next": KeyScope.INFER,
    "/v1/states/free": KeyScope.INFER,
    "/tokenize": KeyScope.INFER,
    "/detokenize": KeyScope.INFER,
    "/tokenizer_info": KeyScope.INFER,
    "/admin/profiles": KeyScope.ADMIN,
    "/admin/profiles/{name}": KeyScope.ADMIN,
    "/admin/models": KeyScope.ADMIN,
    "/admin/models/load": KeyScope.ADMIN,
    "/admin/models/unload": KeyScope.ADMIN,
    "/admin/models/{name}/aliases/{alias}": KeyScope.ADMIN,
}
"""Path as the route has it → scope its caller's key must have; None is open to all."""

_PARAMETER = re.compile(r"\\{\w+(:path)?\\}")


class AccessRule(NamedTuple):
    """What a path demands.

    Attributes:
        route: its place in the table.
        scope: that a key must have; None if the route is open to all.
    """

    route: str
    scope: KeyScope | None


class AccessTable:
    """Finds what a path demands.

    Args:
        routes: as ROUTES.
    """

    def __init__(self, routes: Mapping[str, KeyScope | None] = SCOPES_BY_ROUTE) -> None:
        self._fixed = {route: AccessRule(route, scope) for route, scope in routes.items() if "{" not in route}
        self._patterns = [
            (_pattern(route), AccessRule(route, scope)) for route, scope in routes.items() if "{" in route
        ]

    def rule(self, path: str) -> AccessRule | None:
        """What a path demands; None if nothing is there."""
        found = self._fixed.get(path)
        if found is not None:
            return found
        return next((demand for pattern, demand in self._patterns if pattern.fullmatch(path)), None)


def _pattern(route: str) -> re.Pattern[str]:
    """A route's parameters match what they match in the router: `{name}` one segment, `{name:path}` any."""
    return re.compile(_PARAMETER.sub(lambda found: ".*" if found[1] else "[^/]+", re.escape(route)))
