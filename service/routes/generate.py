"""POST /v1/generate, as one reply or as server-sent events."""

from collections.abc import AsyncGenerator

from fastapi import Request
from starlette.responses import Response

from service.engine.loaded_model import LoadedModel
from service.engine.metrics import Metrics
from service.routes.endpoints import EVENTS_TYPE, EndpointRouter
from service.routes.request import (
    WorkEstimate,
    request_options,
    resolve_model,
    run_request,
    services_of,
    to_json,
)
from service.routes.streaming import EventStream, TokenLatencies, start_event_stream
from service.schemas.generate import GenerateRequest, end_event, generate_reply, piece_event
from service.schemas.replies import GenerateReply
from service.schemas.wire import parse_json
from service.use_cases.choices import Continuation, TokenEvent
from service.use_cases.generate import GenerateCommand, GenerateResult, generate

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

    With `stream` the answer is an event for each token of each choice, one with `finish_reason` where a
    choice ends, `usage` in the last, then `[DONE]`; comments keep the connection alive while there are none.
    With beams, which are certain only at the end, all events come then. An error after the first event is
    an event with `error`.
    """
    services = services_of(request)
    body = await request.body()
    wire = parse_json(GenerateRequest, body)
    command = wire.command(services.limits)
    loaded = resolve_model(request, command.model)
    work = generate(loaded, command, services.limits)
    rows = command.parameters.beams * command.parameters.num_samples
    terms = request_options(request, wire, body, WorkEstimate(rows, predicted_each=wire.max_tokens))
    if not wire.stream:

        def write(result: GenerateResult) -> bytes:
            _count(services.metrics, loaded, result)
            return to_json(generate_reply(loaded, result, alternatives=wire.num_alternatives))

        return await run_request(request, work, write, terms)
    latencies = TokenLatencies(services.metrics, loaded.address)
    stream = await start_event_stream(request, services.engine.stream(work, terms))
    return EventStream(_payloads(services.metrics, loaded, command, stream, latencies))


async def _payloads(
    metrics: Metrics,
    loaded: LoadedModel,
    command: GenerateCommand,
    stream: AsyncGenerator[TokenEvent | Continuation | GenerateResult, None],
    latencies: TokenLatencies,
) -> AsyncGenerator[bytes, None]:
    alternatives, num_ended = command.top, 0
    last_choice: Continuation | None = None  # sent with the usage
    async for item in stream:
        if isinstance(item, TokenEvent):
            latencies.record(item.choice)
            yield to_json(piece_event(loaded, item, alternatives=alternatives))
        elif isinstance(item, GenerateResult):
            _count(metrics, loaded, item)
            yield to_json(end_event(loaded, last_choice, item, alternatives=alternatives))
        else:
            num_ended += 1
            if num_ended == command.parameters.n:
                last_choice = item
            else:
                yield to_json(end_event(loaded, item, None, alternatives=alternatives))


def _count(metrics: Metrics, loaded: LoadedModel, result: GenerateResult) -> None:
    reasons = [choice.finish_reason for choice in result.choices]
    metrics.generation(loaded.address, result.num_prompt_tokens, result.num_tokens, reasons)
