"""POST /v1/score."""

from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import InvalidInputError
from service.engine.host import LoadedModel
from service.routes.facts import add
from service.routes.line_streams import ending_in_error, error_line, line_pieces
from service.routes.openapi import body_of, replies_of
from service.routes.openapi_lines import LINES_TYPE
from service.routes.serving import (
    BYTES_PER_TOKEN,
    ClosingStream,
    Sequences,
    Services,
    begin,
    has_lines,
    in_pieces,
    is_quick,
    refuse_options_of_lines,
    resolve,
    run,
    services_of,
    terms_of,
    to_json,
)
from service.schemas.replies import ScoreReply
from service.schemas.score import ScoreQuery, ScoreRequest, score_items, score_result, score_totals
from service.schemas.wire import parse_json
from service.use_cases.score import Detail, SequenceScore, score, score_lines

router = APIRouter()


@router.post("/v1/score", responses=replies_of(ScoreReply, LINES_TYPE), openapi_extra=body_of(ScoreRequest))
async def score_texts(request: Request) -> Response:
    """Log-probabilities and perplexities of texts.

    With `Content-Type: application/x-ndjson` every line of the body is an object with `text`
    or `token_ids` and, if need be, `context`; `model`, `bos`, `eos` and `detail` stand in the
    query string. The answer has one line for each, in order: a result, or `{"error": …}`;
    should the service fail on the way, an error is the last line.
    """
    services = services_of(request)
    if has_lines(request):
        return await _score_lines(request, services)
    refuse_options_of_lines(request, ScoreQuery)
    body = await request.body()
    wire = parse_json(ScoreRequest, body)
    items, options = wire.items(services.limits), wire.options()
    loaded = resolve(request, options.model)

    def write(scores: list[SequenceScore]) -> Iterator[bytes]:
        _count(request, loaded, scores)
        entries = len(scores) if options.detail is Detail.NONE else sum(len(score.ids) for score in scores)
        return in_pieces(
            score_totals(loaded, scores),
            "results",
            scores,
            lambda score: score_result(loaded, score, options.detail),
            entries=entries,
        )

    work = score(loaded, items, options, services.limits)
    around = len(items[0].context) // BYTES_PER_TOKEN  # is read with each, since they are tokenised together
    terms = terms_of(request, wire, body, Sequences(len(items), work_each=around))
    return await run(request, work, write, terms, inline=is_quick(loaded, body) and not terms.bulk)


async def _score_lines(request: Request, services: Services) -> Response:
    options = ScoreQuery.options(dict(request.query_params))
    loaded = resolve(request, options.model)
    body = await request.body()
    work = score_lines(loaded, score_items(body), options, services.limits)
    stream = services.engine.stream(work, terms_of(request, None, body, bulk=True))

    def write(outcomes: Sequence[SequenceScore | InvalidInputError]) -> Iterator[bytes]:
        _count(request, loaded, [one for one in outcomes if isinstance(one, SequenceScore)])
        return (_line(loaded, one, options.detail) for one in outcomes)

    lines = ending_in_error(line_pieces(await begin(request, stream), write))
    return ClosingStream(lines, media_type=LINES_TYPE, headers={"x-model": loaded.address})


def _line(loaded: LoadedModel, outcome: SequenceScore | InvalidInputError, detail: Detail) -> bytes:
    if isinstance(outcome, InvalidInputError):
        return error_line(outcome)
    return to_json(score_result(loaded, outcome, detail)) + b"\n"


def _count(request: Request, loaded: LoadedModel, scores: Sequence[SequenceScore]) -> None:
    tokens = sum(len(score.ids) for score in scores)
    services_of(request).metrics.scored_tokens.labels(loaded.address).inc(tokens)
    add(request, scored_tokens=tokens)
