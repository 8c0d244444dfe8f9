"""POST /tokenize, POST /detokenize and GET /tokenizer_info, at the root for lm-evaluation-harness."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request
from starlette.responses import Response

from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.routes.endpoints import EndpointRouter
from service.routes.request import request_options, resolve_model, run_request, services_of, to_json
from service.schemas.wire import parse_json
from service.use_cases.inputs import Limits
from service.use_cases.tokenize import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
    TokenizerInfo,
    detokenize,
    tokenize,
    tokenizer_info,
)

router = EndpointRouter()
W = TypeVar("W", TokenizeRequest, DetokenizeRequest)
_OptionalAddress = Annotated[
    str | None,
    Query(
        description="`name`, `name@7` or `name@champion`; the default if it is left out.",
        examples=["mixture"],
    ),
]


@router.endpoint("POST", "/tokenize", tag="Tokenise", body=TokenizeRequest, reply=TokenizeReply)
async def tokenize_text(request: Request) -> Response:
    """The tokens of a text."""
    return await _answer(request, TokenizeRequest, tokenize)


@router.endpoint("POST", "/detokenize", tag="Tokenise", body=DetokenizeRequest, reply=DetokenizeReply)
async def detokenize_ids(request: Request) -> Response:
    """The text that tokens spell."""
    return await _answer(request, DetokenizeRequest, detokenize)


async def _answer(
    request: Request, kind: type[W], use_case: Callable[[LoadedModel, W, Limits], Work[Any, Any]]
) -> Response:
    body = await request.body()
    wire = parse_json(kind, body)
    work = use_case(resolve_model(request, wire.model), wire, services_of(request).limits)
    return await run_request(request, work, to_json, request_options(request, None, body))


@router.endpoint("GET", "/tokenizer_info", tag="Tokenise", reply=TokenizerInfo)
async def get_tokenizer_info(request: Request, model: _OptionalAddress = None) -> Response:
    """The kind of a model's tokenizer, its control tokens and its size."""
    work = tokenizer_info(resolve_model(request, model), services_of(request).limits)
    return await run_request(request, work, to_json, request_options(request, None, b""))
