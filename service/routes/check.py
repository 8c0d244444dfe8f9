"""POST /v1/check."""

import asyncio

import structlog
from fastapi import Request
from starlette.responses import Response

from models.checking.calibration import Calibration
from models.errors import LanguageModelError
from service.routes.endpoints import EndpointRouter
from service.routes.request import (
    Services,
    count_scored,
    request_options,
    resolve_model,
    run_request,
    services_of,
    to_json,
)
from service.schemas.replies import CheckReply
from service.schemas.wire import parse_json
from service.use_cases.check import CheckRequest, check, checker_of, has_checker

router = EndpointRouter()
_log = structlog.get_logger(__name__)


@router.endpoint("POST", "/v1/check", tag="Check", body=CheckRequest, reply=CheckReply)
async def check_text(request: Request) -> Response:
    """Find words that are probably wrong, by the text on both sides of them, and what was meant.

    Words that the model does not know, and words that are the wrong ones here. Each word's alternatives are those near
    it in spelling, spaces too many or too few, and the caller's own; models without word tokens look at strings near
    the words that surprise them most.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(CheckRequest, body)
    loaded = resolve_model(request, wire.model)
    needed = wire.precision is not None
    # on a thread, as the registry may be remote
    calibration = await asyncio.to_thread(_calibration, services, loaded.address, needed=needed)
    # built on another thread the first time, so that the model thread serves other requests
    if not has_checker(loaded):
        await asyncio.to_thread(checker_of, loaded)

    def write(checked: tuple[CheckReply, int]) -> bytes:
        reply, num_tokens = checked
        count_scored(request, loaded, num_tokens)
        return to_json(reply)

    work = check(loaded, wire, calibration, services.limits)
    return await run_request(request, work, write, request_options(request, wire, body))


def _calibration(services: Services, address: str, *, needed: bool) -> Calibration | None:
    """Load a model's calibration; without a requested precision a damaged file is only logged."""
    try:
        return services.calibrations.read(address)
    except LanguageModelError as error:
        if needed:
            raise
        _log.warning("calibration not read", model=address, reason=str(error))
        return None
