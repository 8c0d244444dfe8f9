"""POST /v1/states, and endpoints that advance, query and free states by handle."""

from collections.abc import Sequence

from fastapi import Request
from starlette.responses import Response

from models.language_model import is_lookup
from service.engine.job import RequestOptions
from service.hosting.loaded_model import LoadedModel
from service.hosting.state_store import StoredState
from service.middleware.guarded_request import guarded
from service.routes.endpoints import BINARY_TYPE, EndpointRouter
from service.routes.request import (
    BULK_CONTINUATIONS,
    HANDLE_BYTES,
    INLINE_CONTINUATIONS,
    count_scored,
    json_response,
    owner_of,
    read_request,
    request_options,
    resolve_model,
    run_request,
    runs_inline,
    services_of,
    use_model,
)
from service.routes.streaming import float32_response
from service.schemas.replies import (
    AdvancedState,
    AdvanceReply,
    FreeReply,
    NextReply,
    OpenedState,
    OpenStatesReply,
    to_json,
)
from service.schemas.wire import TimedRequest
from service.use_cases.states import (
    AdvanceRequest,
    FreeRequest,
    NextRequest,
    OpenStatesRequest,
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
    """Store the model state after each context, and return handles to the states.

    A handle is valid for requests with the same API key until it is freed, expires without use, or its model is
    unloaded. It stays bound to the version that read the context, even if the address later points to another version.
    """
    services, body, wire = await read_request(request, OpenStatesRequest)
    services.limits.check_count(len(wire.contexts), parameter="context")
    loaded = resolve_model(request, wire.model)

    def write(opened: list[OpenedState]) -> bytes:
        tokens = sum(state.num_tokens for state in opened)
        services.metrics.prompt_tokens.labels(loaded.address).inc(tokens)
        guarded(request.scope).add_counts(prompt_tokens=tokens)
        return to_json(OpenStatesReply(loaded.address, opened))

    work = open_states(loaded, wire, _store(request), services.limits)
    terms = request_options(request, wire, body)
    return await run_request(request, work, write, terms, inline=runs_inline(loaded, body))


@router.endpoint("POST", "/v1/states/advance", tag="States", body=AdvanceRequest, reply=AdvanceReply)
async def advance(request: Request) -> Response:
    """Score continuations of states, and store the states after them, in one batch.

    A state is immutable: continuing it does not affect other handles, and an empty continuation is a fork. `text`
    must be complete words, tokenised as after a space; parts of words require token ids.
    """
    services, body, wire = await read_request(request, AdvanceRequest)
    count = len(wire.continuations)
    services.limits.check_count(count, parameter="continuations")
    services.limits.check_count(len(wire.free), parameter="free")
    services.states.check_process(wire.free, parameter="free[]")
    handles = [continuation.state for continuation in wire.continuations]
    loaded, before = _find(request, handles, parameter="continuations[].state")

    def write(advanced: list[AdvancedState]) -> bytes:
        count_scored(request, loaded, sum(state.num_tokens for state in advanced))
        return to_json(AdvanceReply(loaded.address, advanced))

    work = advance_states(loaded, wire, before, _store(request), services.limits)
    is_small = (
        count <= INLINE_CONTINUATIONS and not wire.next_token_ids and len(body) <= INLINE_CONTINUATIONS * 256
    )
    inline = is_small and is_lookup(loaded.model)
    return await run_request(request, work, write, _states_options(request, wire, body, count), inline=inline)


@router.endpoint(
    "POST", "/v1/states/next", tag="States", body=NextRequest, reply=NextReply, media_types=(BINARY_TYPE,)
)
async def next_(request: Request) -> Response:
    """Compute the log-probabilities of next tokens after each state.

    With `Accept: application/octet-stream`, the reply is little-endian float32 [B, K], row by row; the header
    `x-shape` is `B,K`, and `x-model` is the model's address.
    """
    services, body, wire = await read_request(request, NextRequest)
    services.limits.check_count(len(wire.states), parameter="states")
    loaded, stored = _find(request, wire.states, parameter="states[]")
    ids = requested_token_ids(loaded, wire.token_ids)
    states = [before.state for before in stored]
    width = loaded.vocab_size if ids is None else len(ids)
    terms = _states_options(request, wire, body, len(states))
    if BINARY_TYPE in request.headers.get("accept", ""):
        rows = services.engine.stream(next_log_prob_blocks(loaded, states, ids), terms)
        return await float32_response(request, loaded, rows, shape=(len(states), width))
    services.limits.check_entries(
        len(states) * width,
        parameter="token_ids",
        description=f"{width} tokens after {len(states)} states",
        instead="accept application/octet-stream for more",
    )
    return await run_request(
        request,
        next_log_prob_matrix(loaded, states, ids),
        lambda log_probs: to_json(NextReply(loaded.address, log_probs.tolist())),
        terms,
    )


@router.endpoint("POST", "/v1/states/free", tag="States", body=FreeRequest, reply=FreeReply)
async def free(request: Request) -> Response:
    """Free states; unknown handles are ignored."""
    services, _, wire = await read_request(request, FreeRequest)
    services.limits.check_count(len(wire.states), parameter="states")
    services.states.check_process(wire.states, parameter="states[]")
    freed = services.states.free(owner_of(request), wire.states)
    return json_response(FreeReply(freed))


def _store(request: Request) -> OwnedStateStore:
    return OwnedStateStore(services_of(request).states, owner_of(request))


def _find(
    request: Request, handles: Sequence[str], *, parameter: str
) -> tuple[LoadedModel, list[StoredState]]:
    """Return handles' states and model version, and add it to the request's log line."""
    stored = services_of(request).states.find(owner_of(request), handles, parameter=parameter)
    loaded = common_version(stored, parameter=parameter)
    use_model(request, loaded)
    return loaded, stored


def _states_options(request: Request, wire: TimedRequest, body: bytes, count: int) -> RequestOptions:
    """Return the options of a request's work on `count` states."""
    is_small = len(body) <= HANDLE_BYTES * count
    return request_options(
        request, wire, body, bulk=count > BULK_CONTINUATIONS or (False if is_small else None)
    )
