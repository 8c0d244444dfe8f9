"""POST /v1/completions, OpenAI's contract, whole or as server-sent events."""

import time
import uuid
from collections.abc import AsyncGenerator

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.engine.host import LoadedModel
from service.engine.metrics import Metrics
from service.routes.event_stream import EventStream, begin_events
from service.routes.openapi import body_of, replies_of
from service.routes.openapi_lines import EVENTS_TYPE
from service.routes.serving import (
    BYTES_PER_TOKEN,
    TOKENS_PER_PREDICTION,
    Sequences,
    resolve,
    run,
    services_of,
    terms_of,
    to_json,
)
from service.routes.token_times import TokenTimes
from service.schemas.completion_replies import CompletionReply
from service.schemas.completions import (
    CompletionRequest,
    Stamp,
    completion_event,
    completion_reply,
    usage_event,
)
from service.schemas.wire import parse_json
from service.use_cases.completion_parts import CompletionCommand, Part
from service.use_cases.completions import Completed, complete

_log = structlog.get_logger(__name__)
router = APIRouter()
_NAMES_LOGGED, _NAME_CHARACTERS = 20, 64


@router.post(
    "/v1/completions",
    responses=replies_of(CompletionReply, EVENTS_TYPE),
    openapi_extra=body_of(CompletionRequest),
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
    loaded = resolve(request, command.model)
    stamp = Stamp(f"cmpl-{uuid.uuid4().hex}", int(time.time()))
    work = complete(loaded, command, services.limits, stream=bool(wire.stream))
    terms = terms_of(request, wire, body, _sequences(command, len(body)))
    if not wire.stream:

        def write(done: Completed) -> bytes:
            _count(services.metrics, loaded, done)
            return to_json(completion_reply(loaded, stamp, done))

        return await run(request, work, write, terms)
    times = TokenTimes(services.metrics, loaded.address)
    stream = await begin_events(request, services.engine.stream(work, terms))
    with_usage = wire.stream_options is not None and bool(wire.stream_options.include_usage)
    return EventStream(_payloads(services.metrics, loaded, stamp, stream, times, with_usage=with_usage))


def _log_ignored(request: Request, wire: CompletionRequest) -> None:
    if wire.model_extra:
        names = [name[:_NAME_CHARACTERS] for name in sorted(wire.model_extra)[:_NAMES_LOGGED]]
        _log.debug("fields ignored", fields=names, request_id=request.state.request_id)


def _sequences(command: CompletionCommand, num_bytes: int) -> Sequences:
    """Sequences generated side by side; of prompts that are told with alternatives, every token is a prediction."""
    parameters, count = command.parameters, len(command.prompts)
    told = 0
    if command.echo and command.logprobs:
        told = TOKENS_PER_PREDICTION * num_bytes // BYTES_PER_TOKEN // max(count, 1)
    if parameters is None:
        return Sequences(count, told)
    rows = parameters.best_of or parameters.n
    return Sequences(count * rows, told // rows, predicted_each=parameters.max_tokens)


async def _payloads(
    metrics: Metrics,
    loaded: LoadedModel,
    stamp: Stamp,
    stream: AsyncGenerator[Part | Completed, None],
    times: TokenTimes,
    *,
    with_usage: bool,
) -> AsyncGenerator[bytes, None]:
    async for item in stream:
        if isinstance(item, Completed):
            _count(metrics, loaded, item)
            if with_usage:
                yield to_json(usage_event(loaded, stamp, item))
            continue
        if item.num_generated:
            times.record(item.choice)
        yield to_json(completion_event(loaded, stamp, item))


def _count(metrics: Metrics, loaded: LoadedModel, done: Completed) -> None:
    metrics.generation(loaded.address, done.num_prompt_tokens, done.num_generated, done.finish_reasons)
