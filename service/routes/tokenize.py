"""POST /tokenize, POST /detokenize and GET /tokenizer_info, at the root for lm-evaluation-harness."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.engine.job import Work
from service.routes.openapi import body_of, replies_of
from service.routes.request import request_options, resolve_model, run_request, services_of, to_json
from service.schemas.completions import DetokenizeReply, TokenizeReply, TokenizerInfo
from service.schemas.score import DetokenizeRequest, TokenizeRequest, tokenize_reply, tokenizer_info
from service.schemas.wire import parse_json
from service.use_cases.tokenize import detokenize, tokenize

router = APIRouter()


@router.post("/tokenize", responses=replies_of(TokenizeReply), openapi_extra=body_of(TokenizeRequest))
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


@router.post("/detokenize", responses=replies_of(DetokenizeReply), openapi_extra=body_of(DetokenizeRequest))
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


@router.get("/tokenizer_info", responses=replies_of(TokenizerInfo))
async def get_tokenizer_info(request: Request, model: str | None = None) -> Response:
    """The kind of a model's tokenizer, its control tokens and its size."""
    services = services_of(request)
    loaded = resolve_model(request, model)

    def describe() -> Work[None, TokenizerInfo]:
        yield None
        return tokenizer_info(loaded, services.limits)

    return await run_request(request, describe(), to_json, request_options(request, None, b""))
