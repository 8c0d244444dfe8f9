"""POST /tokenize, POST /detokenize and GET /tokenizer_info, at the root for lm-evaluation-harness."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from service.engine.job import Work
from service.routes.endpoints import EndpointRouter
from service.routes.request import request_options, resolve_model, run_request, services_of, to_json
from service.schemas.completions import DetokenizeReply, TokenizeReply, TokenizerInfo
from service.schemas.score import DetokenizeRequest, TokenizeRequest, tokenize_reply, tokenizer_info
from service.schemas.wire import parse_json
from service.use_cases.tokenize import detokenize, tokenize

router = EndpointRouter()
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
    services = services_of(request)
    body = await request.body()
    wire = parse_json(TokenizeRequest, body)
    loaded = resolve_model(request, wire.model)
    work = tokenize(loaded, wire.prompt, services.limits, special=wire.add_special_tokens is not False)
    terms = request_options(request, None, body)
    return await run_request(
        request, work, lambda tokens: to_json(tokenize_reply(tokens, services.limits)), terms
    )


@router.endpoint("POST", "/detokenize", tag="Tokenise", body=DetokenizeRequest, reply=DetokenizeReply)
async def detokenize_ids(request: Request) -> Response:
    """The text that tokens spell."""
    services = services_of(request)
    body = await request.body()
    wire = parse_json(DetokenizeRequest, body)
    loaded = resolve_model(request, wire.model)
    work = detokenize(loaded, wire.tokens, services.limits)
    return await run_request(
        request, work, lambda text: to_json(DetokenizeReply(text)), request_options(request, None, body)
    )


@router.endpoint("GET", "/tokenizer_info", tag="Tokenise", reply=TokenizerInfo)
async def get_tokenizer_info(request: Request, model: _OptionalAddress = None) -> Response:
    """The kind of a model's tokenizer, its control tokens and its size."""
    services = services_of(request)
    loaded = resolve_model(request, model)

    def describe() -> Work[None, TokenizerInfo]:
        yield None
        return tokenizer_info(loaded, services.limits)

    return await run_request(request, describe(), to_json, request_options(request, None, b""))
