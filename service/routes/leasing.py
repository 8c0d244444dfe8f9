"""Which requests have which model, from the moment they are given it until they are answered. Plain ASGI."""

from starlette.types import ASGIApp, Receive, Scope, Send

from service.engine.hosted import LoadedModel

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
