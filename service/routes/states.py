"""POST /v1/states, and the endpoints that advance, query and free states by handle."""

from dataclasses import replace

from fastapi import Request
from starlette.responses import Response

from models.language_model import is_lookup
from service.engine.engine import RequestOptions
from service.middleware.request_context import add_counts
from service.routes.endpoints import BINARY_TYPE, EndpointRouter
from service.routes.request import (
    BULK_CONTINUATIONS,
    HANDLE_BYTES,
    INLINE_CONTINUATIONS,
    accepts,
    json_response,
    owner_of,
    request_options,
    resolve_model,
    run_request,
    runs_inline,
    services_of,
    to_json,
    use_model,
)
from service.routes.streaming import float32_response
from service.schemas.replies import AdvanceReply, FreeReply, NextReply, OpenStatesReply
from service.schemas.states import (
    AdvanceRequest,
    FreeRequest,
    NextRequest,
    OpenStatesRequest,
    advance_reply,
    next_reply,
    open_reply,
)
from service.schemas.wire import TimedRequest, parse_json
from service.use_cases.states import (
    AdvanceResult,
    OpenResult,
    OwnedStateStore,
    advance_states,
    common_version,
    next_log_prob_blocks,
    next_log_prob_matrix,
    open_states,
    requested_token_ids,
)

router = EndpointRouter()


@router.endpoint("POST", "/v1/states", tag="States", body=OpenStatesRequest, reply=OpenStatesReply)
async def open_(request: Request) -> Response:
    """Keep the state of a model after each context, and give handles to them.

    A handle is good for whoever has the same key, until it is freed, not used for a while, or its model is
    unloaded. It stays with the version that read the context, whatever its address means by then.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(OpenStatesRequest, body)
    command = wire.command(services.limits)
    loaded = resolve_model(request, command.model)
    store = OwnedStateStore(services.states, owner_of(request))

    def write(opened: list[OpenResult]) -> bytes:
        tokens = sum(result.num_tokens for result in opened)
        services.metrics.prompt_tokens.labels(loaded.address).inc(tokens)
        add_counts(request, prompt_tokens=tokens)
        return to_json(open_reply(loaded, opened))

    work = open_states(loaded, command, store, services.limits)
    terms = request_options(request, wire, body)
    return await run_request(request, work, write, terms, inline=runs_inline(loaded, body))


@router.endpoint("POST", "/v1/states/advance", tag="States", body=AdvanceRequest, reply=AdvanceReply)
async def advance(request: Request) -> Response:
    """Score continuations of states and keep the states after them, all in one go.

    A state is a value: continuing it changes nothing for its other handles, and a continuation of nothing is
    a fork. `text` is whole words, tokenised as they are after a space; parts of words are given as ids.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(AdvanceRequest, body)
    wire.check(services.limits)
    owner = owner_of(request)
    services.states.check_process(wire.free, parameter="free[]")
    stored_states = services.states.find(owner, wire.handles, parameter="continuations[].state")
    loaded = common_version(stored_states, parameter="continuations[].state")
    use_model(request, loaded)
    command = wire.command(stored_states)

    def write(advanced: list[AdvanceResult]) -> bytes:
        tokens = sum(len(result.ids) for result in advanced)
        services.metrics.scored_tokens.labels(loaded.address).inc(tokens)
        add_counts(request, scored_tokens=tokens)
        return to_json(advance_reply(loaded, advanced))

    work = advance_states(loaded, command, OwnedStateStore(services.states, owner), services.limits)
    count = len(stored_states)
    is_small = (
        count <= INLINE_CONTINUATIONS and not wire.next_token_ids and len(body) <= INLINE_CONTINUATIONS * 256
    )
    inline = is_small and is_lookup(loaded.model)
    return await run_request(request, work, write, _states_options(request, wire, body, count), inline=inline)


@router.endpoint(
    "POST", "/v1/states/next", tag="States", body=NextRequest, reply=NextReply, media_types=(BINARY_TYPE,)
)
async def next_(request: Request) -> Response:
    """Log-probabilities of what may come next after each of some states.

    With `Accept: application/octet-stream` they come as little-endian float32 [B, K], row after row; the
    header `x-shape` says `B,K`, and `x-model` which model it was.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(NextRequest, body)
    wire.check(services.limits)
    stored_states = services.states.find(owner_of(request), wire.states, parameter="states[]")
    loaded = common_version(stored_states, parameter="states[]")
    use_model(request, loaded)
    ids = requested_token_ids(loaded, wire.token_ids)
    states = [stored.state for stored in stored_states]
    terms = _states_options(request, wire, body, len(states))
    if not accepts(request, BINARY_TYPE):
        wire.check_reply(loaded, services.limits)
        work = next_log_prob_matrix(loaded, states, ids)
        return await run_request(
            request, work, lambda log_probs: to_json(next_reply(loaded, log_probs)), terms
        )
    rows = services.engine.stream(next_log_prob_blocks(loaded, states, ids), terms)
    width = loaded.vocab_size if ids is None else len(ids)
    return await float32_response(request, loaded, rows, shape=(len(states), width))


@router.endpoint("POST", "/v1/states/free", tag="States", body=FreeRequest, reply=FreeReply)
async def free(request: Request) -> Response:
    """Forget states; handles that lead nowhere do not matter."""
    services = services_of(request)
    wire = parse_json(FreeRequest, await request.body())
    wire.check(services.limits)
    services.states.check_process(wire.states, parameter="states[]")
    freed = services.states.free(owner_of(request), wire.states)
    return json_response(to_json(FreeReply(freed)))


def _states_options(request: Request, wire: TimedRequest, body: bytes, count: int) -> RequestOptions:
    """Return the options of the work of a request with `count` states."""
    terms = request_options(request, wire, body)
    return replace(
        terms, bulk=count > BULK_CONTINUATIONS or (terms.bulk and len(body) > HANDLE_BYTES * count)
    )
