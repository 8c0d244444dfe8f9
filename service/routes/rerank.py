"""POST /v1/rerank."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.routes.openapi import body_of, replies_of
from service.routes.serving import resolve, run, services_of, terms_of, to_json
from service.schemas.replies import RerankReply
from service.schemas.rerank import RerankRequest, rerank_reply
from service.schemas.wire import parse_json
from service.use_cases.rerank import rerank

router = APIRouter()


@router.post("/v1/rerank", responses=replies_of(RerankReply), openapi_extra=body_of(RerankRequest))
async def rerank_lists(request: Request) -> Response:
    """Order lists of candidates by Σ weight · feature, the language model's score among the features."""
    services = services_of(request)
    body = await request.body()
    wire = parse_json(RerankRequest, body)
    command = wire.command(services.limits)
    loaded = resolve(request, command.model)
    work = rerank(loaded, command, services.limits)
    return await run(
        request, work, lambda lists: to_json(rerank_reply(loaded, lists)), terms_of(request, wire, body)
    )
