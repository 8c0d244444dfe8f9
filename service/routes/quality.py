"""POST /v1/quality: bits per word and byte of texts, as JSON or JSON lines."""

from collections.abc import Iterable, Iterator, Sequence

from fastapi import Request
from starlette.responses import Response

from service.engine.loaded_model import LoadedModel
from service.middleware.request_context import add_counts
from service.routes.endpoints import LINES_TYPE, EndpointRouter, Lines
from service.routes.request import (
    ClosingStream,
    Services,
    has_json_lines,
    refuse_query_options,
    request_options,
    resolve_model,
    run_request,
    services_of,
    start_stream,
    to_json,
    use_model,
)
from service.routes.streaming import error_line, json_lines, with_error_line
from service.schemas.check import (
    QualityLine,
    QualityRequest,
    QualitySettings,
    quality_items,
    quality_reply,
    quality_result,
)
from service.schemas.replies import QualityReply, TextQualityResult
from service.schemas.wire import parse_json, parse_query
from service.use_cases.score import QualityOutcome, TextQuality, quality, quality_lines

router = EndpointRouter()


@router.endpoint(
    "POST",
    "/v1/quality",
    tag="Check",
    body=QualityRequest,
    reply=QualityReply,
    lines=Lines(QualityLine, TextQualityResult, QualitySettings),
)
async def rate_texts(request: Request) -> Response:
    """Score texts by bits per word and byte, and by the difference between two models; to filter corpora.

    With `Content-Type: application/x-ndjson` every line of the body is an object with `text` and, if need be, `id`;
    `model` and `against` stand in the query string. The answer has one line for each, in order: a result, or
    `{"error": …}`; should the service fail on the way, an error is the last line.
    """
    services = services_of(request)
    if has_json_lines(request):
        return await _rate_lines(request, services)
    refuse_query_options(request, QualitySettings)
    body = await request.body()
    wire = parse_json(QualityRequest, body)
    items = wire.items(services.limits)
    loaded, against = _models(request, services, wire.model, wire.against)

    def write(results: list[TextQuality]) -> bytes:
        _count(request, loaded, against, results)
        return to_json(quality_reply(loaded, against, results))

    work = quality(loaded, against, items, services.limits)
    return await run_request(request, work, write, request_options(request, wire, body))


async def _rate_lines(request: Request, services: Services) -> Response:
    options = parse_query(QualitySettings, request.query_params)
    loaded, against = _models(request, services, options.model, options.against)
    body = await request.body()
    work = quality_lines(loaded, against, quality_items(body), services.limits)
    stream = services.engine.stream(work, request_options(request, None, body, bulk=True))

    def write(outcomes: Sequence[QualityOutcome]) -> Iterator[bytes]:
        _count(
            request, loaded, against, [outcome for outcome in outcomes if isinstance(outcome, TextQuality)]
        )
        return map(_line, outcomes)

    lines = with_error_line(json_lines(await start_stream(request, stream), write))
    return ClosingStream(lines, media_type=LINES_TYPE, headers={"x-model": loaded.address})


def _models(
    request: Request, services: Services, model: str | None, against: str | None
) -> tuple[LoadedModel, LoadedModel | None]:
    """Return the model, named in the log line, and the one it is compared with."""
    against_model = None
    if against is not None:
        against_model = services.host.resolve(against)
        use_model(request, against_model)
    return resolve_model(request, model), against_model


def _line(outcome: QualityOutcome) -> bytes:
    if isinstance(outcome, TextQuality):
        return to_json(quality_result(outcome)) + b"\n"
    return error_line(outcome)


def _count(
    request: Request, loaded: LoadedModel, against: LoadedModel | None, results: Iterable[TextQuality]
) -> None:
    model_tokens = against_tokens = 0
    for result in results:
        model_tokens += len(result.score.ids)
        against_tokens += 0 if result.against is None else len(result.against.ids)
    metrics = services_of(request).metrics
    metrics.scored_tokens.labels(loaded.address).inc(model_tokens)
    if against is not None:
        metrics.scored_tokens.labels(against.address).inc(against_tokens)
    add_counts(request, scored_tokens=model_tokens + against_tokens)
