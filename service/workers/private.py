"""What workers ask of one another, over sockets that nobody else can reach. Plain ASGI.

GET /workers/metrics                   this worker's metrics
GET /workers/served                    addresses that it serves or is to, and those it no longer does
POST /workers/refresh?address&wait     look at the registry now; what answers for an address after that
"""

import asyncio
import json
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.routes.errors import not_found
from service.routes.serving import Services
from service.workers.relay import PEER_PREFIX

METRICS_PATH = PEER_PREFIX + "metrics"
SERVED_PATH = PEER_PREFIX + "served"
REFRESH_PATH = PEER_PREFIX + "refresh"


def served_addresses(services: Services) -> set[str]:
    """The addresses that a worker serves or is to serve."""
    host = services.host
    here = {address for model in host.models.values() for address in host.followed_addresses(model)}
    return here | set(services.reloader.queued)


class PeerEndpoints:
    """Answers other workers.

    Args:
        services: of this one.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._at_start = served_addresses(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if path == METRICS_PATH:
            reply = Response(self._services.metrics.exposition(), media_type="text/plain")
        elif path == SERVED_PATH:
            now = served_addresses(self._services)
            told = {"served": sorted(now), "unloaded": sorted(self._at_start - now)}
            reply = Response(json.dumps(told), media_type="application/json")
        elif path == REFRESH_PATH:
            reply = await self._refresh(parse_qs(scope["query_string"].decode()))
        else:
            reply = not_found(path)
        await reply(scope, receive, send)

    async def _refresh(self, query: dict[str, list[str]]) -> Response:
        following = self._services.reloader.refresh()
        if "wait" in query:
            await asyncio.shield(following)
        model = self._services.host.address_table.by_address.get(query["address"][0])
        serving = model.address if model is not None and model.loaded is not None else None
        return Response(json.dumps({"serving": serving}), media_type="application/json")
