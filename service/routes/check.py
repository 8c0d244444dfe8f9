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
from service.schemas.suggestions import CheckReply
from service.schemas.wire import parse_json
from service.use_cases.check import CheckRequest, check, checker_of, has_checker

router = EndpointRouter()
_log = structlog.get_logger(__name__)


@router.endpoint("POST", "/v1/check", tag="Check", body=CheckRequest, reply=CheckReply)
async def check_text(request: Request) -> Response:
    """Find probable errors from the text on both sides of each word, and suggest corrections.

    The check finds unknown words and known words that are wrong in their context. Alternatives of a word are words of
    similar spelling, missing or extra spaces, and the request's `candidates`; models without word tokens only consider
    strings near the words with the highest surprisal.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(CheckRequest, body)
    loaded = resolve_model(request, wire.model)
    needed = wire.precision is not None
    # on a thread, because the registry may be remote
    calibration = await asyncio.to_thread(_calibration, services, loaded.address, needed=needed)
    # first built on another thread, to keep the model thread free
    if not has_checker(loaded):
        await asyncio.to_thread(checker_of, loaded)

    def write(checked: tuple[CheckReply, int]) -> bytes:
        reply, num_tokens = checked
        count_scored(request, loaded, num_tokens)
        return to_json(reply)

    work = check(loaded, wire, calibration, services.limits)
    return await run_request(request, work, write, request_options(request, wire, body))


def _calibration(services: Services, address: str, *, needed: bool) -> Calibration | None:
    """Load a model's calibration; a damaged file is only logged if no precision is requested."""
    try:
        return services.calibrations.read(address)
    except LanguageModelError as error:
        if needed:
            raise
        _log.warning("calibration not read", model=address, reason=str(error))
        return None
