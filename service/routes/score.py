"""POST /v1/score and POST /v1/quality with JSON or JSON lines, and POST /v1/next-token."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fastapi import Request
from starlette.responses import Response

from service.routes.endpoints import BINARY_TYPE, EndpointRouter, Lines
from service.routes.request import (
    BYTES_PER_TOKEN,
    ENTRIES_PER_TOKEN,
    INLINE_CANDIDATES,
    INLINE_CONTINUATIONS,
    count_scored,
    json_pieces,
    read_request,
    read_settings,
    request_options,
    resolve_model,
    resolve_request,
    run_request,
    runs_inline,
    services_of,
)
from service.routes.streaming import float32_response, lines_response
from service.schemas.replies import (
    NextTextReply,
    NextTokenReply,
    NextWordReply,
    QualityReply,
    ScoreReply,
    SequenceScoreResult,
    TextQualityResult,
    to_json,
)
from service.schemas.wire import parse_json, parse_lines
from service.use_cases.constants import MAX_SEARCH_STEPS
from service.use_cases.next_token import (
    NextTokenRequest,
    next_distributions,
    next_token_result,
    rank_next_tokens,
    rank_next_words,
    score_next_texts,
)
from service.use_cases.score import (
    QualityLine,
    QualityOutcome,
    QualityRequest,
    QualitySettings,
    ScoreLine,
    ScoreRequest,
    ScoreSettings,
    SequenceScore,
    quality,
    score,
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
    """Compute log-probabilities and perplexities of texts.

    With `Content-Type: application/x-ndjson`, each line of the body is an object with `text` or
    `token_ids` and optionally `context`; `model`, `bos`, `eos` and `detail` are in the query
    string. The reply has one line per body line, in order: a result, or `{"error": …}`. If the
    service fails midway, the last line is an error.
    """
    limits = services_of(request).limits
    given = await read_settings(request, ScoreRequest, ScoreSettings)
    items = given.items(limits) if isinstance(given, ScoreRequest) else []
    loaded = await resolve_request(request, given)
    body = await request.body()

    def counted(scores: Sequence[SequenceScore]) -> Sequence[SequenceScore]:
        count_scored(request, loaded, sum(len(score.ids) for score in scores))
        return scores

    if not isinstance(given, ScoreRequest):
        limits = replace(limits, max_reply_entries=sys.maxsize)
        return await lines_response(
            request,
            body,
            parse_lines(body, lambda line: parse_json(ScoreLine, line).item()),
            lambda batch: score(loaded, batch, given, limits),
            lambda one: [to_json(score_result(loaded, counted([one])[0], given.detail))],
            model=loaded.address,
            wire=given,
        )

    def write(scores: Sequence[SequenceScore]) -> Iterator[bytes]:
        counted(scores)
        entries = sum(len(score.ids) for score in scores) if given.reports_tokens else len(scores)
        return json_pieces(
            score_totals(loaded, scores),
            "results",
            scores,
            lambda score: score_result(loaded, score, given.detail),
            entries=entries,
        )

    # read with each text: both are tokenised together
    context_tokens = len(given.context) // BYTES_PER_TOKEN
    terms = request_options(request, given, body, count=len(items), work_each=context_tokens)
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
    """Rate texts for corpus filtering: bits per word and per byte, and the difference between two models.

    With `Content-Type: application/x-ndjson`, each line of the body is an object with `text` and optionally `id`;
    `model` and `against` are in the query string. The reply has one line per body line, in order: a result, or
    `{"error": …}`. If the service fails midway, the last line is an error.
    """
    limits = services_of(request).limits
    given = await read_settings(request, QualityRequest, QualitySettings)
    items = given.items(limits) if isinstance(given, QualityRequest) else []
    against = None if given.against is None else resolve_model(request, given.against)
    loaded = resolve_model(request, given.model)  # last: the log line names the last one
    body = await request.body()

    def counted(rated: Sequence[QualityOutcome]) -> list[TextQualityResult]:
        count_scored(request, loaded, sum(num_tokens for _, num_tokens, _ in rated))
        if against is not None:
            count_scored(request, against, sum(num_tokens for _, _, num_tokens in rated))
        return [result for result, _, _ in rated]

    if not isinstance(given, QualityRequest):
        return await lines_response(
            request,
            body,
            parse_lines(body, lambda line: parse_json(QualityLine, line).item()),
            lambda batch: quality(loaded, against, batch, limits),
            lambda one: [to_json(counted([one])[0])],
            model=loaded.address,
        )

    def write(rated: Sequence[QualityOutcome]) -> bytes:
        against_address = None if against is None else against.address
        return to_json(QualityReply(loaded.address, against_address, counted(rated)))

    work = quality(loaded, against, items, limits)
    return await run_request(request, work, write, request_options(request, given, body))


@router.endpoint(
    "POST",
    "/v1/next-token",
    tag="Predict",
    body=NextTokenRequest,
    reply=NextTokenReply | NextTextReply | NextWordReply,
    media_types=(BINARY_TYPE,),
)
async def next_token(request: Request) -> Response:
    """Rank the most probable next tokens, or words, after each context, or score the requested tokens or texts.

    A word's probability sums over all its tokenisations, up to a token that ends the word; `unexplored_mass` is the
    probability for which no word was found.

    A text's log-probability is the sum over its tokens: that of `/v1/score` with the context, without `</s>`.

    With `Accept: application/octet-stream`, the reply has every log-probability instead: little-endian float32
    [B, V], row by row, or [B, K] for K `token_ids`; the header `x-shape` is `B,V`, and `x-model` is the model's
    address.
    """
    services, body, wire = await read_request(request, NextTokenRequest)
    limits = services.limits
    count, top_k = len(wire.contexts), len(wire.token_ids or ()) or wire.top_k
    limits.check_count(count, parameter="context")
    loaded = await resolve_request(request, wire)
    if wire.candidates is not None:
        pairs = count * len(wire.candidates)
        work_each = max(len(context) for _, context in wire.contexts) // BYTES_PER_TOKEN
        return await run_request(
            request,
            score_next_texts(loaded, wire, limits),
            lambda results: to_json(NextTextReply(loaded.address, results)),
            request_options(request, wire, body, count=pairs, work_each=work_each, predicted_each=1),
            inline=pairs <= INLINE_CONTINUATIONS and runs_inline(loaded, body),
        )
    if wire.unit == "word":
        # none if tokens are words; else half of the maximum, because most searches end early
        steps = 0 if loaded.token_trie.whole_words else count * MAX_SEARCH_STEPS // 2
        return await run_request(
            request,
            rank_next_words(loaded, wire, limits),
            lambda results: to_json(NextWordReply(loaded.address, results)),
            request_options(request, wire, body, count=steps, predicted_each=1),
        )
    work_each = min(top_k, loaded.vocab_size) // ENTRIES_PER_TOKEN
    terms = request_options(request, wire, body, count=count, work_each=work_each, predicted_each=1)
    if BINARY_TYPE in request.headers.get("accept", ""):
        rows = services.engine.stream(next_distributions(loaded, wire, limits), terms)
        width = len(wire.token_ids or ()) or loaded.vocab_size
        return await float32_response(request, loaded, rows, shape=(count, width))
    is_small = count * top_k <= INLINE_CANDIDATES and not wire.entropy
    return await run_request(
        request,
        rank_next_tokens(loaded, wire, limits),
        lambda results: json_pieces(
            NextTokenReply(loaded.address, []),
            "results",
            results,
            partial(next_token_result, loaded),
            entries=len(results) * top_k,
        ),
        terms,
        inline=is_small and runs_inline(loaded, body),
    )
