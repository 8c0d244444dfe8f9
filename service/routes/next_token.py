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
from service.schemas.score import NextTokenRequest, next_token_reply, next_token_result, next_word_reply
from service.schemas.wire import parse_json
from service.use_cases.next_token import max_word_steps, next_distributions, rank_next_tokens, rank_next_words

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
    body = await request.body()
    wire = parse_json(NextTokenRequest, body)
    command = wire.command(services.limits)
    loaded = resolve_model(request, command.model)
    if wire.unit == "word":
        words = rank_next_words(loaded, command, services.limits)
        # half of the maximum of steps, as most searches end early
        num_rows = len(command.contexts) * max_word_steps(loaded) // 2
        terms = request_options(request, wire, body, WorkEstimate(num_rows, predicted_each=1))
        return await run_request(
            request, words, lambda results: to_json(next_word_reply(loaded, results)), terms
        )
    reply_work = min(command.top_k, loaded.vocab_size) // ENTRIES_PER_TOKEN
    terms = request_options(
        request, wire, body, WorkEstimate(len(command.contexts), reply_work, predicted_each=1)
    )
    if not accepts(request, BINARY_TYPE):
        work = rank_next_tokens(loaded, command, services.limits)
        is_small = len(command.contexts) * command.top_k <= INLINE_CANDIDATES and not command.entropy
        return await run_request(
            request,
            work,
            lambda results: json_pieces(
                next_token_reply(loaded, []),
                "results",
                results,
                partial(next_token_result, loaded),
                entries=len(results) * command.top_k,
            ),
            terms,
            inline=is_small and runs_inline(loaded, body),
        )
    rows = services.engine.stream(next_distributions(loaded, command, services.limits), terms)
    return await float32_response(request, loaded, rows, shape=(len(command.contexts), loaded.vocab_size))
