"""POST /v1/completions, OpenAI's contract, whole or as server-sent events."""

import time
import uuid
from collections.abc import AsyncGenerator

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import LanguageModelError
from service.engine.host import LoadedModel
from service.engine.metrics import Metrics
from service.routes.errors import error_body, error_json
from service.routes.event_stream import MEDIA_TYPE, EventStream, begin_events
from service.routes.openapi import body_of, replies_of
from service.routes.serving import resolve, run, services_of, terms_of, to_json
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
    responses=replies_of(CompletionReply, MEDIA_TYPE),
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
    terms = terms_of(request, wire, body, new_tokens=_new_tokens(command))
    if not wire.stream:

        def write(done: Completed) -> bytes:
            _count(services.metrics, loaded, done)
            return to_json(completion_reply(loaded, stamp, done))

        return await run(request, work, write, terms)
    stream = _timed(services.metrics, loaded, services.engine.stream(work, terms))
    with_usage = wire.stream_options is not None and bool(wire.stream_options.include_usage)
    return EventStream(_payloads(loaded, stamp, await begin_events(request, stream), with_usage=with_usage))


def _log_ignored(request: Request, wire: CompletionRequest) -> None:
    if wire.model_extra:
        names = [name[:_NAME_CHARACTERS] for name in sorted(wire.model_extra)[:_NAMES_LOGGED]]
        _log.debug("fields ignored", fields=names, request_id=request.state.request_id)


def _new_tokens(command: CompletionCommand) -> int:
    """Tokens that are generated at most."""
    parameters = command.parameters
    if parameters is None:
        return 0
    return len(command.prompts) * (parameters.best_of or parameters.n) * parameters.max_tokens


async def _payloads(
    loaded: LoadedModel, stamp: Stamp, stream: AsyncGenerator[Part | Completed, None], *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    try:
        async for item in stream:
            if isinstance(item, Part):
                yield to_json(completion_event(loaded, stamp, item))
            elif with_usage:
                yield to_json(usage_event(loaded, stamp, item))
    except LanguageModelError as error:  # the status has gone out: the event must tell
        yield error_json(error_body(error))
    else:
        yield b"[DONE]"


async def _timed(
    metrics: Metrics, loaded: LoadedModel, stream: AsyncGenerator[Part | Completed, None]
) -> AsyncGenerator[Part | Completed, None]:
    """The same stream, the times of each choice's tokens noted on the way."""
    begun_s = time.perf_counter()
    before_s: dict[int, float] = {}
    async for item in stream:
        if isinstance(item, Completed):
            _count(metrics, loaded, item)
        elif item.num_generated:
            now_s = time.perf_counter()
            histogram = metrics.inter_token if item.choice in before_s else metrics.first_token
            histogram.labels(loaded.address).observe(now_s - before_s.get(item.choice, begun_s))
            before_s[item.choice] = now_s
        yield item


def _count(metrics: Metrics, loaded: LoadedModel, done: Completed) -> None:
    metrics.prompt_tokens.labels(loaded.address).inc(done.num_prompt_tokens)
    metrics.generation_tokens.labels(loaded.address).inc(done.num_generated)
    for reason in done.finish_reasons:
        metrics.generated.labels(loaded.address, reason).inc()
