"""POST /v1/quality."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import LanguageModelError
from service.engine.hosted import LoadedModel
from service.routes.errors import error_body, error_json
from service.routes.facts import add
from service.routes.openapi import body_of, replies_of
from service.routes.serving import (
    ClosingStream,
    Services,
    begin,
    has_lines,
    refuse_options_of_lines,
    resolve,
    run,
    services_of,
    take,
    terms_of,
    to_json,
)
from service.schemas.quality import (
    QualityQuery,
    QualityRequest,
    quality_items,
    quality_reply,
    quality_result,
    read_query,
)
from service.schemas.quality_replies import QualityReply
from service.schemas.wire import parse_json
from service.use_cases.quality import Outcome, TextQuality, quality, quality_lines

router = APIRouter()
_LINES = "application/x-ndjson"
_BYTES_AT_ONCE = 1 << 16


@router.post("/v1/quality", responses=replies_of(QualityReply, _LINES), openapi_extra=body_of(QualityRequest))
async def rate_texts(request: Request) -> Response:
    """How probable texts are by word and byte, and which of two models they are more like; to filter corpora by.

    With `Content-Type: application/x-ndjson` every line of the body is an object with `text` and, if need be, `id`;
    `model` and `against` stand in the query string. The answer has one line for each, in order: a result, or
    `{"error": …}`; should the service fail on the way, an error is the last line.
    """
    services = services_of(request)
    if has_lines(request):
        return await _rate_lines(request, services)
    refuse_options_of_lines(request, QualityQuery)
    body = await request.body()
    wire = parse_json(QualityRequest, body)
    items = wire.items(services.limits)
    loaded, against = _models(request, services, wire.model, wire.against)

    def write(found: list[TextQuality]) -> bytes:
        _count(request, loaded, against, found)
        return to_json(quality_reply(loaded, against, found))

    work = quality(loaded, against, items, services.limits)
    return await run(request, work, write, terms_of(request, wire, body))


async def _rate_lines(request: Request, services: Services) -> Response:
    options = read_query(request.query_params)
    loaded, against = _models(request, services, options.model, options.against)
    body = await request.body()
    work = quality_lines(loaded, against, quality_items(body), services.limits)
    stream = services.engine.stream(work, terms_of(request, None, body, bulk=True))
    lines = _written(request, loaded, against, await begin(request, stream))
    return ClosingStream(lines, media_type=_LINES, headers={"x-model": loaded.address})


def _models(
    request: Request, services: Services, model: str | None, against: str | None
) -> tuple[LoadedModel, LoadedModel | None]:
    """The model, which the log line names, and the one that it is compared with."""
    other = None
    if against is not None:
        other = services.host.resolve(against)
        take(request, other)
    return resolve(request, model), other


async def _written(
    request: Request,
    loaded: LoadedModel,
    against: LoadedModel | None,
    outcomes: AsyncGenerator[list[Outcome], None],
) -> AsyncGenerator[bytes, None]:
    try:
        async for some in outcomes:
            _count(request, loaded, against, [one for one in some if isinstance(one, TextQuality)])
            written = bytearray()
            for one in some:
                written += _line(one)
                if len(written) >= _BYTES_AT_ONCE:
                    yield bytes(written)
                    written.clear()
                    await asyncio.sleep(0)
            if written:
                yield bytes(written)
    except LanguageModelError as error:  # the status has gone out: the last line must tell
        yield error_json(error_body(error)) + b"\n"


def _line(outcome: Outcome) -> bytes:
    if isinstance(outcome, TextQuality):
        return to_json(quality_result(outcome)) + b"\n"
    return error_json(error_body(outcome)) + b"\n"


def _count(
    request: Request, loaded: LoadedModel, against: LoadedModel | None, found: Iterable[TextQuality]
) -> None:
    own = others = 0
    for one in found:
        own += len(one.score.ids)
        others += 0 if one.against is None else len(one.against.ids)
    metrics = services_of(request).metrics
    metrics.scored_tokens.labels(loaded.address).inc(own)
    if against is not None:
        metrics.scored_tokens.labels(against.address).inc(others)
    add(request, scored_tokens=own + others)
