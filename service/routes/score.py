"""POST /v1/score, as JSON or JSON lines."""

from collections.abc import Iterator, Sequence

from fastapi import Request
from starlette.responses import Response

from models.errors import InvalidInputError
from service.engine.loaded_model import LoadedModel
from service.middleware.request_context import add_counts
from service.routes.endpoints import LINES_TYPE, EndpointRouter, Lines
from service.routes.request import (
    BYTES_PER_TOKEN,
    ClosingStream,
    Services,
    WorkEstimate,
    has_json_lines,
    json_pieces,
    refuse_query_options,
    request_options,
    resolve_model,
    run_request,
    runs_inline,
    services_of,
    start_stream,
    to_json,
)
from service.routes.streaming import error_line, json_lines, with_error_line
from service.schemas.replies import ScoreReply, SequenceScoreResult
from service.schemas.score import (
    ScoreLine,
    ScoreRequest,
    ScoreSettings,
    score_items,
    score_result,
    score_totals,
)
from service.schemas.wire import parse_json, parse_query
from service.use_cases.score import Detail, SequenceScore, score, score_lines

router = EndpointRouter()


@router.endpoint(
    "POST",
    "/v1/score",
    tag="Score",
    body=ScoreRequest,
    reply=ScoreReply,
    lines=Lines(ScoreLine, SequenceScoreResult, ScoreSettings),
)
async def score_texts(request: Request) -> Response:
    """Log-probabilities and perplexities of texts.

    With `Content-Type: application/x-ndjson` every line of the body is an object with `text`
    or `token_ids` and, if need be, `context`; `model`, `bos`, `eos` and `detail` stand in the
    query string. The answer has one line for each, in order: a result, or `{"error": …}`;
    should the service fail on the way, an error is the last line.
    """
    services = services_of(request)
    if has_json_lines(request):
        return await _score_lines(request, services)
    refuse_query_options(request, ScoreSettings)
    body = await request.body()
    wire = parse_json(ScoreRequest, body)
    items, options = wire.items(services.limits), wire.options()
    loaded = resolve_model(request, options.model)

    def write(scores: list[SequenceScore]) -> Iterator[bytes]:
        _count(request, loaded, scores)
        entries = len(scores) if options.detail is Detail.NONE else sum(len(score.ids) for score in scores)
        return json_pieces(
            score_totals(loaded, scores),
            "results",
            scores,
            lambda score: score_result(loaded, score, options.detail),
            entries=entries,
        )

    work = score(loaded, items, options, services.limits)
    context_tokens = (
        len(items[0].context) // BYTES_PER_TOKEN
    )  # read with each text, as both are tokenised together
    terms = request_options(request, wire, body, WorkEstimate(len(items), work_each=context_tokens))
    return await run_request(request, work, write, terms, inline=runs_inline(loaded, body) and not terms.bulk)


async def _score_lines(request: Request, services: Services) -> Response:
    options = parse_query(ScoreSettings, request.query_params).options()
    loaded = resolve_model(request, options.model)
    body = await request.body()
    work = score_lines(loaded, score_items(body), options, services.limits)
    stream = services.engine.stream(work, request_options(request, None, body, bulk=True))

    def write(outcomes: Sequence[SequenceScore | InvalidInputError]) -> Iterator[bytes]:
        _count(request, loaded, [outcome for outcome in outcomes if isinstance(outcome, SequenceScore)])
        return (_line(loaded, outcome, options.detail) for outcome in outcomes)

    lines = with_error_line(json_lines(await start_stream(request, stream), write))
    return ClosingStream(lines, media_type=LINES_TYPE, headers={"x-model": loaded.address})


def _line(loaded: LoadedModel, outcome: SequenceScore | InvalidInputError, detail: Detail) -> bytes:
    if isinstance(outcome, InvalidInputError):
        return error_line(outcome)
    return to_json(score_result(loaded, outcome, detail)) + b"\n"


def _count(request: Request, loaded: LoadedModel, scores: Sequence[SequenceScore]) -> None:
    tokens = sum(len(score.ids) for score in scores)
    services_of(request).metrics.scored_tokens.labels(loaded.address).inc(tokens)
    add_counts(request, scored_tokens=tokens)
