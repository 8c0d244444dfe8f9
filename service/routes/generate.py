"""POST /v1/generate, whole or as server-sent events."""

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.engine.host import LoadedModel
from service.engine.metrics import Metrics
from service.routes.event_stream import EventStream, begin_events
from service.routes.openapi import body_of, replies_of
from service.routes.openapi_lines import EVENTS_TYPE
from service.routes.serving import Sequences, resolve, run, services_of, terms_of, to_json
from service.routes.token_times import TokenTimes
from service.schemas.generate import GenerateRequest, end_event, generate_reply, piece_event
from service.schemas.replies import GenerateReply
from service.schemas.wire import parse_json
from service.use_cases.continuation import Continuation, Piece
from service.use_cases.generate import GenerateCommand, Generated, generate

router = APIRouter()


@router.post(
    "/v1/generate", responses=replies_of(GenerateReply, EVENTS_TYPE), openapi_extra=body_of(GenerateRequest)
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
    loaded = resolve(request, command.model)
    work = generate(loaded, command, services.limits)
    rows = command.parameters.beams * command.parameters.num_samples
    terms = terms_of(request, wire, body, Sequences(rows, predicted_each=wire.max_tokens))
    if not wire.stream:

        def write(done: Generated) -> bytes:
            _count(services.metrics, loaded, done)
            return to_json(generate_reply(loaded, done, alternatives=wire.num_alternatives))

        return await run(request, work, write, terms)
    times = TokenTimes(services.metrics, loaded.address)
    stream = await begin_events(request, services.engine.stream(work, terms))
    return EventStream(_payloads(services.metrics, loaded, command, stream, times))


async def _payloads(
    metrics: Metrics,
    loaded: LoadedModel,
    command: GenerateCommand,
    stream: AsyncGenerator[Piece | Continuation | Generated, None],
    times: TokenTimes,
) -> AsyncGenerator[bytes, None]:
    alternatives, num_ended = command.top, 0
    held: Continuation | None = None  # the end of the last choice, which is told with the usage
    async for item in stream:
        if isinstance(item, Piece):
            times.record(item.choice)
            yield to_json(piece_event(loaded, item, alternatives=alternatives))
        elif isinstance(item, Generated):
            _count(metrics, loaded, item)
            yield to_json(end_event(loaded, held, item, alternatives=alternatives))
        else:
            num_ended += 1
            if num_ended == command.parameters.n:
                held = item
            else:
                yield to_json(end_event(loaded, item, None, alternatives=alternatives))


def _count(metrics: Metrics, loaded: LoadedModel, done: Generated) -> None:
    reasons = [choice.finish_reason for choice in done.choices]
    metrics.generation(loaded.address, done.num_prompt_tokens, done.num_tokens, reasons)
