"""POST /v1/generate, whole or as server-sent events."""

import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import LanguageModelError
from service.engine.host import LoadedModel
from service.engine.metrics import Metrics
from service.routes.errors import error_body, error_json
from service.routes.openapi import body_of, replies_of
from service.routes.serving import ClosingStream, begin, run, server_sent_events, services_of, to_json
from service.schemas.generate import GenerateRequest, generate_event, generate_reply
from service.schemas.replies import GenerateReply
from service.schemas.wire import parse_json
from service.use_cases.generate import Completion, GeneratedToken, generate

router = APIRouter()
_EVENTS = "text/event-stream"
_NO_BUFFERING = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@router.post(
    "/v1/generate", responses=replies_of(GenerateReply, _EVENTS), openapi_extra=body_of(GenerateRequest)
)
async def generate_text(request: Request) -> Response:
    """Continue a text.

    With `stream` the answer is one event a token, a last one with `finish_reason` and
    `usage`, then `[DONE]`. An error after the first event is an event with `error`.
    """
    services = services_of(request)
    wire = parse_json(GenerateRequest, await request.body())
    command = wire.command(services.limits)
    loaded = services.host.resolve(command.model)
    work = generate(loaded, command, services.limits)
    if not wire.stream:

        def write(done: Completion) -> bytes:
            _count(services.metrics, loaded, done)
            return to_json(generate_reply(loaded, done, logprobs=wire.logprobs))

        return await run(request, work, write)
    stream = services.engine.stream(work, request_id=request.state.request_id)
    timed = _timed(services.metrics, loaded, stream)
    payloads = _payloads(loaded, await begin(request, timed), logprobs=wire.logprobs)
    return ClosingStream(server_sent_events(payloads), media_type=_EVENTS, headers=_NO_BUFFERING)


async def _payloads(
    loaded: LoadedModel, stream: AsyncGenerator[GeneratedToken | Completion, None], *, logprobs: bool
) -> AsyncGenerator[bytes, None]:
    try:
        async for item in stream:
            yield to_json(generate_event(loaded, item, logprobs=logprobs))
    except LanguageModelError as error:  # the status has gone out: the event must tell
        yield error_json(error_body(error))
    else:
        yield b"[DONE]"


async def _timed(
    metrics: Metrics, loaded: LoadedModel, stream: AsyncGenerator[GeneratedToken | Completion, None]
) -> AsyncGenerator[GeneratedToken | Completion, None]:
    """The same stream, its tokens' times noted on the way."""
    histogram, before_s = metrics.first_token, time.perf_counter()
    async for item in stream:
        if isinstance(item, Completion):
            _count(metrics, loaded, item)
        else:
            now_s = time.perf_counter()
            histogram.labels(loaded.address).observe(now_s - before_s)
            histogram, before_s = metrics.inter_token, now_s
        yield item


def _count(metrics: Metrics, loaded: LoadedModel, done: Completion) -> None:
    metrics.prompt_tokens.labels(loaded.address).inc(done.num_prompt_tokens)
    metrics.generation_tokens.labels(loaded.address).inc(len(done.token_ids))
    metrics.generated.labels(loaded.address, done.finish_reason).inc()
