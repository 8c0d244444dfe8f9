"""POST /v1/next-token."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.routes.openapi import body_of, replies_of
from service.routes.openapi_lines import BINARY_TYPE
from service.routes.raw_numbers import rows_response
from service.routes.serving import (
    ENTRIES_PER_TOKEN,
    Sequences,
    accepts,
    in_pieces,
    is_quick,
    resolve,
    run,
    services_of,
    terms_of,
    to_json,
)
from service.schemas.next_token import NextTokenRequest, next_token_reply, next_token_result, next_word_reply
from service.schemas.replies import NextTokenReply, NextWordReply
from service.schemas.wire import parse_json
from service.use_cases.next_token import distributions, next_tokens
from service.use_cases.next_word import next_words, steps_at_most

router = APIRouter()
_FEW_CANDIDATES = 256


@router.post(
    "/v1/next-token",
    responses=replies_of(NextTokenReply | NextWordReply, BINARY_TYPE),
    openapi_extra=body_of(NextTokenRequest),
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
    loaded = resolve(request, command.model)
    if wire.unit == "word":
        words = next_words(loaded, command, services.limits)
        # half of the steps that it may take at most, as most searches end sooner
        num_rows = len(command.contexts) * steps_at_most(loaded) // 2
        terms = terms_of(request, wire, body, Sequences(num_rows, predicted_each=1))
        return await run(request, words, lambda found: to_json(next_word_reply(loaded, found)), terms)
    written = min(command.top_k, loaded.vocab_size) // ENTRIES_PER_TOKEN
    terms = terms_of(request, wire, body, Sequences(len(command.contexts), written, predicted_each=1))
    if not accepts(request, BINARY_TYPE):
        work = next_tokens(loaded, command, services.limits)
        few = len(command.contexts) * command.top_k <= _FEW_CANDIDATES and not command.entropy
        return await run(
            request,
            work,
            lambda results: in_pieces(
                next_token_reply(loaded, []),
                "results",
                results,
                partial(next_token_result, loaded),
                entries=len(results) * command.top_k,
            ),
            terms,
            inline=few and is_quick(loaded, body),
        )
    rows = services.engine.stream(distributions(loaded, command, services.limits), terms)
    return await rows_response(request, loaded, rows, shape=(len(command.contexts), loaded.vocab_size))
