"""POST /v1/autocomplete."""

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.engine.job import Work
from service.routes.openapi import body_of, replies_of
from service.routes.serving import (
    WorkEstimate,
    json_response,
    owner_of,
    request_options,
    resolve_model,
    run_request,
    runs_inline,
    services_of,
    to_json,
    while_connected,
)
from service.schemas.autocomplete import AutocompleteRequest, autocomplete_reply
from service.schemas.autocomplete_replies import AutocompleteReply
from service.schemas.wire import parse_json
from service.use_cases.autocomplete import autocomplete, cached_next_tokens, max_search_steps

router = APIRouter()
_CACHED_BODY_BYTES = 4096
"""Of a body that may be answered at once."""


@router.post(
    "/v1/autocomplete", responses=replies_of(AutocompleteReply), openapi_extra=body_of(AutocompleteRequest)
)
async def complete(request: Request) -> Response:
    """Complete the word that somebody is typing, or tell the next word or phrase.

    Probabilities are exact: those of all ways to cut a word into tokens are summed, as far as `max_steps` allows. Of
    requests with one `session` the newest alone is answered.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(AutocompleteRequest, body)
    command = wire.command()
    loaded = resolve_model(request, wire.model)
    owner = owner_of(request)
    personal = services.users.get(owner, wire.user) if wire.user is not None else None
    steps = max_search_steps(loaded, command)
    look = cached_next_tokens(loaded, command) if len(body) <= _CACHED_BODY_BYTES else None
    # a key in the middle of a word asks the model nothing
    quick = not steps and not wire.fuzzy and (look is not None or runs_inline(loaded, body))

    def work() -> Work[None, bytes]:
        done = yield from autocomplete(loaded, command, services.limits, user=personal, cached=look)
        return to_json(autocomplete_reply(loaded, done))

    # never bulk, however long the text: somebody is typing it
    terms = replace(request_options(request, wire, body, WorkEstimate(1, predicted_each=steps)), bulk=False)
    if wire.session is not None:
        services.sessions.supersede(owner, wire.session)  # first, since it makes room
    if quick or wire.session is None:
        return await run_request(request, work(), bytes, terms, inline=quick)
    answer = services.engine.run(work(), terms)
    with services.sessions.newest(owner, wire.session, answer):
        return json_response(await while_connected(request.receive, answer))
