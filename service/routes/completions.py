"""POST /v1/generate, and the APIs of OpenAI and vLLM: POST /v1/completions and the tokenizer endpoints.

Continuations are one reply or server-sent events. POST /tokenize, POST /detokenize and GET /tokenizer_info are at the
root, as lm-evaluation-harness requires.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import Query, Request
from starlette.responses import Response

from service.engine.job import RequestOptions, Work
from service.hosting.loaded_model import LoadedModel
from service.routes.endpoints import EVENTS_TYPE, EndpointRouter
from service.routes.request import (
    BYTES_PER_TOKEN,
    TOKENS_PER_PREDICTION,
    read_request,
    request_options,
    resolve_model,
    resolve_request,
    run_request,
    services_of,
    start_stream,
)
from service.routes.streaming import HEARTBEAT_S, EventStream
from service.schemas.replies import GenerateReply, to_json
from service.use_cases.choices import ChoiceChunk, GenerateResult
from service.use_cases.completions import (
    OBJECT_TYPE,
    CompletionReply,
    CompletionRequest,
    complete_prompts,
)
from service.use_cases.generate import GenerateRequest, generate
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


@router.endpoint(
    "POST",
    "/v1/generate",
    tag="Generate",
    body=GenerateRequest,
    reply=GenerateReply,
    media_types=(EVENTS_TYPE,),
)
async def generate_text(request: Request) -> Response:
    """Continue a text.

    With `stream`, the reply has an event per token of each choice, an event with `finish_reason` at the end of each
    choice, `usage` in the last event, then `[DONE]`; comments keep an idle connection alive. Beam search sends all
    events at its end. An error after the first event is an event with `error`.
    """
    services, body, wire = await read_request(request, GenerateRequest)
    parameters = wire.parameters(services.limits)
    loaded = await resolve_request(request, wire)
    work = generate(loaded, wire, parameters, services.limits)
    rows = parameters.beams * parameters.num_samples
    terms = request_options(request, wire, body, count=rows, predicted_each=parameters.max_tokens)
    reply = partial(GenerateReply, loaded.address)
    return await _answer_generation(request, loaded, work, terms, reply, stream=wire.stream)


async def _answer_generation(
    request: Request,
    loaded: LoadedModel,
    work: Work[ChoiceChunk, GenerateResult],
    terms: RequestOptions,
    reply: Callable[[list[Any], Any], Any],
    *,
    stream: bool,
    ends_with_result: bool = True,
) -> Response:
    """Reply with all choices, or with an event per part of a choice; the last may be the result.

    `reply` builds the reply or an event from choices and usage (None before the last, unless each has it).
    """
    metrics = services_of(request).metrics

    def write(result: GenerateResult) -> bytes:
        metrics.prompt_tokens.labels(loaded.address).inc(result.usage.prompt_tokens)
        metrics.generation_tokens.labels(loaded.address).inc(result.usage.completion_tokens)
        for reason in result.finish_reasons:
            metrics.generated.labels(loaded.address, reason).inc()
        return to_json(reply(result.choices, result.usage))

    if not stream:
        return await run_request(request, work, write, terms)
    first_token, inter_token = (h.labels(loaded.address) for h in (metrics.first_token, metrics.inter_token))
    began_s = time.perf_counter()
    sent_s: dict[int, float] = {}  # time of the last token of each choice
    # an early error sets the HTTP status; the client never waits without heartbeats
    items = await start_stream(request, services_of(request).engine.stream(work, terms), HEARTBEAT_S)

    async def payloads() -> AsyncGenerator[bytes, None]:
        async for item in items:
            if isinstance(item, GenerateResult):
                last = write(item)
                if ends_with_result:
                    yield last
                continue
            choice, num_generated, usage = item
            if num_generated:
                now_s = time.perf_counter()
                latency = inter_token if choice.index in sent_s else first_token
                latency.observe(now_s - sent_s.get(choice.index, began_s))
                sent_s[choice.index] = now_s
            yield to_json(reply([choice], usage))

    return EventStream(payloads())


_log = structlog.get_logger(__name__)
_MAX_NAMES_LOGGED, _MAX_NAME_CHARACTERS = 20, 64
_FINGERPRINT_CHARACTERS = 12


@router.endpoint(
    "POST",
    "/v1/completions",
    tag="OpenAI",
    body=CompletionRequest,
    reply=CompletionReply,
    media_types=(EVENTS_TYPE,),
)
async def create_completion(request: Request) -> Response:
    """Continue texts or score them, with OpenAI's completions API.

    With `stream`, the reply has an event per token of each choice, then `[DONE]`; comments keep an idle connection
    alive. An error after the first event is an event with `error`.
    """
    services, body, wire = await read_request(request, CompletionRequest)
    if wire.model_extra:
        ignored = [name[:_MAX_NAME_CHARACTERS] for name in sorted(wire.model_extra)[:_MAX_NAMES_LOGGED]]
        _log.debug("fields ignored", fields=ignored, request_id=request.state.request_id)
    parameters = wire.parameters(services.limits)
    loaded = await resolve_request(request, wire)
    # model version and tokenizer: with the request, they determine the reply
    fingerprint = f"{loaded.address}-{loaded.tokenizer.fingerprint[:_FINGERPRINT_CHARACTERS]}"
    reply = partial(
        CompletionReply,
        f"cmpl-{uuid.uuid4().hex}",
        OBJECT_TYPE,
        int(time.time()),
        loaded.address,
        fingerprint,
    )
    work = complete_prompts(loaded, wire, parameters, services.limits)
    rows, max_tokens = (1, 0) if parameters is None else (parameters.num_samples, parameters.max_tokens)
    count, work_each = len(wire.prompts), 0
    if wire.echo and wire.logprobs:  # a prediction per token
        work_each = TOKENS_PER_PREDICTION * len(body) // BYTES_PER_TOKEN // max(count, 1) // rows
    terms = request_options(
        request, wire, body, count=count * rows, work_each=work_each, predicted_each=max_tokens
    )
    return await _answer_generation(
        request,
        loaded,
        work,
        terms,
        reply,
        stream=bool(wire.stream),
        ends_with_result=wire.stream_options is not None and bool(wire.stream_options.include_usage),
    )


W = TypeVar("W", TokenizeRequest, DetokenizeRequest)
_OptionalAddress = Annotated[
    str | None,
    Query(
        description="`name`, `name@7` or `name@champion`; the default model if omitted.",
        examples=["mixture"],
    ),
]


@router.endpoint("POST", "/tokenize", tag="Tokenise", body=TokenizeRequest, reply=TokenizeReply)
async def tokenize_text(request: Request) -> Response:
    """Tokenise a text."""
    return await _answer(request, TokenizeRequest, tokenize)


@router.endpoint("POST", "/detokenize", tag="Tokenise", body=DetokenizeRequest, reply=DetokenizeReply)
async def detokenize_ids(request: Request) -> Response:
    """Join tokens into text."""
    return await _answer(request, DetokenizeRequest, detokenize)


async def _answer(
    request: Request, kind: type[W], use_case: Callable[[LoadedModel, W, Limits], Work[Any, Any]]
) -> Response:
    services, body, wire = await read_request(request, kind)
    work = use_case(resolve_model(request, wire.model), wire, services.limits)
    return await run_request(request, work, to_json, request_options(request, None, body))


@router.endpoint("GET", "/tokenizer_info", tag="Tokenise", reply=TokenizerInfo)
async def get_tokenizer_info(request: Request, model: _OptionalAddress = None) -> Response:
    """Describe a model's tokenizer: its type, control tokens and vocabulary size."""
    work = tokenizer_info(resolve_model(request, model), services_of(request).limits)
    return await run_request(request, work, to_json, request_options(request, None, b""))
