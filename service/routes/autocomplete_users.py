"""What users of autocomplete have accepted: learnt, told, replaced, forgotten."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.completion.personal_text import split_word_sequences
from service.routes.openapi import body_of, replies_of
from service.routes.serving import json_response, owner_of, services_of, to_json
from service.schemas.autocomplete_replies import ForgottenReply, UserReply, UserWords
from service.schemas.autocomplete_users import (
    AcceptedRequest,
    ImportRequest,
    check_user_name,
    export_reply,
    user_reply,
)
from service.schemas.wire import parse_json

router = APIRouter()


@router.post(
    "/v1/autocomplete/users/{user}/accepted",
    responses=replies_of(UserReply),
    openapi_extra=body_of(AcceptedRequest),
)
async def accept(request: Request, user: str) -> Response:
    """Learn from what a user has accepted: words, and which came after which; older ones fade."""
    wire = parse_json(AcceptedRequest, await request.body())
    learnt = split_word_sequences(wire.text, wire.context)
    model = services_of(request).users.learn(owner_of(request), check_user_name(user), learnt)
    return json_response(to_json(user_reply(user, model)))


@router.get("/v1/autocomplete/users/{user}", responses=replies_of(UserWords))
async def export(request: Request, user: str) -> Response:
    """All that is known of a user."""
    model = services_of(request).users.find(owner_of(request), user)
    return json_response(to_json(export_reply(user, model)))


@router.put(
    "/v1/autocomplete/users/{user}", responses=replies_of(UserReply), openapi_extra=body_of(ImportRequest)
)
async def restore(request: Request, user: str) -> Response:
    """Know this of a user, such as an export, instead of whatever was known."""
    users = services_of(request).users
    model = parse_json(ImportRequest, await request.body()).personal(users.bounds)
    return json_response(
        to_json(user_reply(user, users.put(owner_of(request), check_user_name(user), model)))
    )


@router.delete("/v1/autocomplete/users/{user}", responses=replies_of(ForgottenReply))
async def forget(request: Request, user: str) -> Response:
    """Forget a user."""
    forgotten = services_of(request).users.forget(owner_of(request), check_user_name(user))
    return json_response(to_json(ForgottenReply(user, forgotten)))
