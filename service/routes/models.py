"""GET /v1/models and GET /v1/models/{address}."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.routes.openapi import replies_of
from service.routes.serving import json_response, services_of, to_json
from service.schemas.models import model_card, model_list
from service.schemas.replies import ModelCard, ModelList

router = APIRouter()


@router.get("/v1/models", responses=replies_of(ModelList))
async def list_models(request: Request) -> Response:
    """All models of this service, those that could not be loaded included."""
    return json_response(to_json(model_list(services_of(request).host)))


@router.get("/v1/models/{address:path}", responses=replies_of(ModelCard))
async def get_model(request: Request, address: str) -> Response:
    """One model: `name`, `name@7` or `name@champion`."""
    host = services_of(request).host
    return json_response(to_json(model_card(host, host.find(address))))
