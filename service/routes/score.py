"""POST /v1/score and POST /v1/quality, as JSON or JSON lines."""

from collections.abc import Iterator, Sequence

from fastapi import Request
from starlette.responses import Response

from service.routes.endpoints import EndpointRouter, Lines
from service.routes.request import (
    BYTES_PER_TOKEN,
    WorkEstimate,
    count_scored,
    json_pieces,
    read_settings,
    request_options,
    resolve_model,
    run_request,
    runs_inline,
    services_of,
    to_json,
    use_model,
)
from service.routes.streaming import lines_response, write_line
from service.schemas.replies import QualityReply, ScoreReply, SequenceScoreResult, TextQualityResult
from service.use_cases.score import (
    Detail,
    QualityLine,
    QualityOutcome,
    QualityRequest,
    QualitySettings,
    ScoreLine,
    ScoreOutcome,
    ScoreRequest,
    ScoreSettings,
    SequenceScore,
    TextQuality,
    answer_in_batches,
    quality,
    quality_items,
    score,
    score_items,
    score_result,
    score_totals,
)

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
    limits = services_of(request).limits
    given = await read_settings(request, ScoreRequest, ScoreSettings)
    items = given.items(limits) if isinstance(given, ScoreRequest) else []
    loaded = resolve_model(request, given.model)
    body = await request.body()

    def count(outcomes: Sequence[ScoreOutcome]) -> list[SequenceScore]:
        scores = [outcome for outcome in outcomes if isinstance(outcome, SequenceScore)]
        count_scored(request, loaded, sum(len(score.ids) for score in scores))
        return scores

    if not isinstance(given, ScoreRequest):

        def write_lines(outcomes: Sequence[ScoreOutcome]) -> Iterator[bytes]:
            count(outcomes)
            for outcome in outcomes:
                if isinstance(outcome, SequenceScore):
                    yield write_line(score_result(loaded, outcome, given.detail))
                else:
                    yield write_line(outcome)

        batches = answer_in_batches(
            score_items(body), lambda batch: score(loaded, batch, given, limits, each=True)
        )
        return await lines_response(request, body, batches, write_lines, model=loaded.address)

    def write(outcomes: Sequence[ScoreOutcome]) -> Iterator[bytes]:
        scores = count(outcomes)
        entries = len(scores) if given.detail is Detail.NONE else sum(len(score.ids) for score in scores)
        return json_pieces(
            score_totals(loaded, scores),
            "results",
            scores,
            lambda score: score_result(loaded, score, given.detail),
            entries=entries,
        )

    # read with each text, as both are tokenised together
    context_tokens = len(given.context) // BYTES_PER_TOKEN
    terms = request_options(request, given, body, WorkEstimate(len(items), work_each=context_tokens))
    inline = runs_inline(loaded, body) and not terms.bulk
    return await run_request(request, score(loaded, items, given, limits), write, terms, inline=inline)


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
    limits = services.limits
    given = await read_settings(request, QualityRequest, QualitySettings)
    items = given.items(limits) if isinstance(given, QualityRequest) else []
    against = None
    if given.against is not None:
        against = services.host.resolve(given.against)
        use_model(request, against)
    loaded = resolve_model(request, given.model)  # after the other, as the log line names the last
    body = await request.body()

    def count(outcomes: Sequence[QualityOutcome]) -> list[TextQualityResult]:
        rated = [outcome for outcome in outcomes if isinstance(outcome, TextQuality)]
        count_scored(request, loaded, sum(outcome.num_tokens for outcome in rated))
        if against is not None:
            count_scored(request, against, sum(outcome.num_against_tokens for outcome in rated))
        return [outcome.result for outcome in rated]

    if not isinstance(given, QualityRequest):

        def write_lines(outcomes: Sequence[QualityOutcome]) -> Iterator[bytes]:
            count(outcomes)
            for outcome in outcomes:
                yield write_line(outcome.result if isinstance(outcome, TextQuality) else outcome)

        batches = answer_in_batches(
            quality_items(body), lambda batch: quality(loaded, against, batch, limits, each=True)
        )
        return await lines_response(request, body, batches, write_lines, model=loaded.address)

    def write(outcomes: Sequence[QualityOutcome]) -> bytes:
        against_address = None if against is None else against.address
        return to_json(QualityReply(loaded.address, against_address, count(outcomes)))

    work = quality(loaded, against, items, limits)
    return await run_request(request, work, write, request_options(request, given, body))
