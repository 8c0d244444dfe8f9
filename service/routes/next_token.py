"""POST /v1/next-token: most probable next tokens or words, or whole distributions."""

from functools import partial

from fastapi import Request
from starlette.responses import Response

from service.routes.endpoints import BINARY_TYPE, EndpointRouter
from service.routes.request import (
    ENTRIES_PER_TOKEN,
    INLINE_CANDIDATES,
    WorkEstimate,
    accepts,
    json_pieces,
    request_options,
    resolve_model,
    run_request,
    runs_inline,
    services_of,
    to_json,
)
from service.routes.streaming import float32_response
from service.schemas.replies import NextTokenReply, NextWordReply
from service.schemas.wire import parse_json
from service.use_cases.next_token import (
    NextTokenRequest,
    max_word_steps,
    next_distributions,
    next_token_result,
    rank_next_tokens,
    rank_next_words,
)

router = EndpointRouter()


@router.endpoint(
    "POST",
    "/v1/next-token",
    tag="Predict",
    body=NextTokenRequest,
    reply=NextTokenReply | NextWordReply,
    media_types=(BINARY_TYPE,),
)
async def next_token(request: Request) -> Response:
    """Rank the most probable next tokens, or words, after each context.

    A word is put together from the tokens that spell it, in every way, and has ended where the text shows that it
    has; for the share `unexplored_mass` of the probability no word was found.

    With `Accept: application/octet-stream` the answer is every log-probability instead: little-endian float32
    [B, V], row after row; the header `x-shape` says `B,V`, and `x-model` which model it was.
    """
    services = services_of(request)
    limits = services.limits
    body = await request.body()
    wire = parse_json(NextTokenRequest, body)
    count, top_k = len(wire.contexts), wire.top_k
    limits.check_count(count, parameter="context")
    loaded = resolve_model(request, wire.model)
    if wire.unit == "word":
        # half of the maximum of steps, as most searches end early
        estimate = WorkEstimate(count * max_word_steps(loaded) // 2, predicted_each=1)
        return await run_request(
            request,
            rank_next_words(loaded, wire, limits),
            lambda results: to_json(NextWordReply(loaded.address, results)),
            request_options(request, wire, body, estimate),
        )
    estimate = WorkEstimate(count, min(top_k, loaded.vocab_size) // ENTRIES_PER_TOKEN, predicted_each=1)
    terms = request_options(request, wire, body, estimate)
    if accepts(request, BINARY_TYPE):
        rows = services.engine.stream(next_distributions(loaded, wire, limits), terms)
        return await float32_response(request, loaded, rows, shape=(count, loaded.vocab_size))
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
