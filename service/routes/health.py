"""GET /health/live, GET /health/ready and GET /metrics."""

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from service.api_keys import KeyScope
from service.engine.model_host import READY, readiness
from service.routes.endpoints import EndpointRouter
from service.routes.request import json_response, services_of, to_json
from service.schemas.replies import Health

router = EndpointRouter()


@router.endpoint(
    "GET",
    "/health/live",
    tag="Health",
    scope=None,
    reply=Health,
    statuses={503: "no more: a model computes without end, and the process should be replaced"},
)
async def live(request: Request) -> Response:
    """Whether the process is alive: 503 once a model has computed without end, which only another process ends."""
    if services_of(request).engine.is_hung:
        return json_response(to_json(Health("hung")), 503)
    return json_response(to_json(Health("ok")))


@router.endpoint(
    "GET",
    "/health/ready",
    tag="Health",
    scope=None,
    reply=Health,
    statuses={503: "not now: the status says why"},
)
async def ready(request: Request) -> Response:
    """Whether requests should be sent here.

    200 once every model named at start is loaded or has failed, and the default is loaded, until shutting down.
    Later versions that are loaded, or fail to, change nothing: the old ones answer.
    """
    services = services_of(request)
    status = readiness(services.host, services.reloader, services.engine.scheduler)
    models = {model.address: model.state.value for model in services.host.models.values()}
    code = 200 if status == READY else 503
    return json_response(to_json(Health(status, models)), code)


@router.endpoint("GET", "/metrics", tag=None, scope=KeyScope.METRICS)
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    return Response(services_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
