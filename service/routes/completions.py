"""POST /v1/completions, compatible with OpenAI's API, as one reply or as server-sent events."""

import time
import uuid
from collections.abc import AsyncGenerator

import structlog
from fastapi import Request
from starlette.responses import Response

from service.engine.loaded_model import LoadedModel
from service.engine.metrics import Metrics
from service.routes.endpoints import EVENTS_TYPE, EndpointRouter
from service.routes.request import (
    BYTES_PER_TOKEN,
    TOKENS_PER_PREDICTION,
    WorkEstimate,
    request_options,
    resolve_model,
    run_request,
    services_of,
    to_json,
)
from service.routes.streaming import EventStream, TokenLatencies, start_event_stream
from service.schemas.completions import (
    CompletionReply,
    CompletionRequest,
    ReplyHeader,
    completion_event,
    completion_reply,
    usage_event,
)
from service.schemas.wire import parse_json
from service.use_cases.completions import ChoiceChunk, CompletionCommand, CompletionResult, complete_prompts

_log = structlog.get_logger(__name__)
router = EndpointRouter()
_MAX_NAMES_LOGGED, _MAX_NAME_CHARACTERS = 20, 64


@router.endpoint(
    "POST",
    "/v1/completions",
    tag="OpenAI",
    body=CompletionRequest,
    reply=CompletionReply,
    media_types=(EVENTS_TYPE,),
)
async def create_completion(request: Request) -> Response:
    """Continue texts, or score them, as OpenAI's clients ask.

    With `stream` the answer is an event for each token of each choice, then `[DONE]`; comments keep the
    connection alive while there are none. An error after the first event is an event with `error`.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(CompletionRequest, body)
    _log_ignored(request, wire)
    command = wire.command(services.limits)
    loaded = resolve_model(request, command.model)
    header = ReplyHeader(f"cmpl-{uuid.uuid4().hex}", int(time.time()))
    work = complete_prompts(loaded, command, services.limits, stream=bool(wire.stream))
    terms = request_options(request, wire, body, _work_estimate(command, len(body)))
    if not wire.stream:

        def write(result: CompletionResult) -> bytes:
            _count(services.metrics, loaded, result)
            return to_json(completion_reply(loaded, header, result))

        return await run_request(request, work, write, terms)
    latencies = TokenLatencies(services.metrics, loaded.address)
    stream = await start_event_stream(request, services.engine.stream(work, terms))
    with_usage = wire.stream_options is not None and bool(wire.stream_options.include_usage)
    return EventStream(_payloads(services.metrics, loaded, header, stream, latencies, with_usage=with_usage))


def _log_ignored(request: Request, wire: CompletionRequest) -> None:
    if wire.model_extra:
        names = [name[:_MAX_NAME_CHARACTERS] for name in sorted(wire.model_extra)[:_MAX_NAMES_LOGGED]]
        _log.debug("fields ignored", fields=names, request_id=request.state.request_id)


def _work_estimate(command: CompletionCommand, num_bytes: int) -> WorkEstimate:
    """Estimate the work of generation; echoed prompts with alternatives need a prediction at each token."""
    parameters, count = command.parameters, len(command.prompts)
    num_tokens = 0
    if command.echo and command.logprobs:
        num_tokens = TOKENS_PER_PREDICTION * num_bytes // BYTES_PER_TOKEN // max(count, 1)
    if parameters is None:
        return WorkEstimate(count, num_tokens)
    rows = parameters.best_of or parameters.n
    return WorkEstimate(count * rows, num_tokens // rows, predicted_each=parameters.max_tokens)


async def _payloads(
    metrics: Metrics,
    loaded: LoadedModel,
    header: ReplyHeader,
    stream: AsyncGenerator[ChoiceChunk | CompletionResult, None],
    latencies: TokenLatencies,
    *,
    with_usage: bool,
) -> AsyncGenerator[bytes, None]:
    async for item in stream:
        if isinstance(item, CompletionResult):
            _count(metrics, loaded, item)
            if with_usage:
                yield to_json(usage_event(loaded, header, item))
            continue
        if item.num_generated:
            latencies.record(item.choice)
        yield to_json(completion_event(loaded, header, item))


def _count(metrics: Metrics, loaded: LoadedModel, result: CompletionResult) -> None:
    metrics.generation(loaded.address, result.num_prompt_tokens, result.num_generated, result.finish_reasons)
