"""POST /v1/rerank/tune: reranking weights from lists with references."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.engine.job import Work
from service.routes.openapi import body_of, replies_of
from service.routes.request import request_options, resolve_model, run_request, services_of, to_json
from service.schemas.rerank import main_address
from service.schemas.tune import TuneReply, TuneRequest, tune_reply
from service.schemas.wire import parse_json
from service.use_cases.tune import tune

router = APIRouter()


@router.post("/v1/rerank/tune", responses=replies_of(TuneReply), openapi_extra=body_of(TuneRequest))
async def tune_weights(request: Request) -> Response:
    """Find weights for /v1/rerank from lists with references, and tell what they are worth on lists held out.

    Where that is not better than the first pass by more than chance, the answer is to keep the first pass. Such a
    request gives way to all others; it takes seconds to minutes, so mind `timeout_ms` and the service's own limit.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(TuneRequest, body)
    models = wire.choice().resolve(lambda address: resolve_model(request, address))

    def written() -> Work[None, bytes]:
        command = wire.command((yield from wire.given()))
        command.check_searches()
        tuned = yield from tune(models, command, services.limits)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return to_json(tune_reply(tuned, models, main=main_address(models), created=created))

    return await run_request(request, written(), bytes, request_options(request, wire, body, bulk=True))
