"""Answers to operations: JSON, JSON lines, server-sent events or raw numbers, whole or streamed.

Short requests to an n-gram model run at once: handing them to the model thread takes longer. Requests with much work
are bulk and yield to others.

Event streams send a heartbeat comment after 10 s without an event, as proxies close silent
connections. An error after the status line is the last event or line. Binary rows are
little-endian float32.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
import structlog
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Message, Send
from typing_extensions import override

from models.calls import Work, run_to_completion
from models.errors import DomainError, InputError
from models.language_model import LOG_ZERO
from models.reranking.formats.reader import format_of_media_type
from models.text_model import TextModel
from service.api_errors import error_body, error_json
from service.engine.engine import Engine
from service.engine.job import RequestOptions
from service.hosting.loaded_model import LoadedModel
from service.middleware.guarded_request import GuardedRequest
from service.operations.operation import (
    BYTES_PER_PIECE,
    Call,
    Cost,
    EventsOperation,
    LinesOperation,
    Operation,
    RowsOperation,
    answer_each,
    read_batch,
    request_options,
    write_reply,
)
from service.routes.endpoints import BINARY_TYPE, EVENTS_TYPE, LINES_TYPE, Endpoint, Lines
from service.routes.request import ClosingStream, Services, parse_body, start_stream, while_connected

HEARTBEAT_S = 10.0
"""Interval of heartbeat comments, because proxies close silent connections."""

_HEARTBEAT = b": \n\n"
_NO_BUFFERING = {"cache-control": "no-cache", "x-accel-buffering": "no"}

L = TypeVar("L")
T = TypeVar("T")

_log = structlog.get_logger(__name__)

_JSON_LINES = "jsonl"


class EventStream(ClosingStream):
    """JSON documents as server-sent events with heartbeat comments, then `[DONE]`.

    An error is the last event, without `[DONE]`: the status was sent before.

    Args:
        payloads: documents; always closed with the stream.
    """

    def __init__(self, payloads: AsyncGenerator[bytes, None]) -> None:
        super().__init__(_events(payloads), media_type=EVENTS_TYPE, headers=_NO_BUFFERING)
        self._payloads = payloads

    async def stream_response(self, send: Send) -> None:
        """Send all events, with heartbeats from the response's start to its end."""
        clock = asyncio.get_running_loop().time
        sent_s, is_silent = clock(), False

        async def send_next(message: Message) -> None:
            nonlocal sent_s, is_silent
            is_silent = False
            await send(message)
            sent_s = clock()
            is_silent = message["type"] == "http.response.start" or message.get("more_body", False)

        async def beat() -> None:
            while True:
                await asyncio.sleep(max(sent_s + HEARTBEAT_S - clock(), HEARTBEAT_S / 10))
                if is_silent and clock() - sent_s >= HEARTBEAT_S:
                    await send_next({"type": "http.response.body", "body": _HEARTBEAT, "more_body": True})

        heartbeats = asyncio.create_task(beat())
        try:
            async with aclosing(self._payloads):
                await super().stream_response(send_next)
        finally:
            heartbeats.cancel()


async def _events(payloads: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for payload in payloads:
            yield b"data: " + payload + b"\n\n"
    except DomainError as error:
        yield b"data: " + error_json(error_body(error)) + b"\n\n"
    else:
        yield b"data: [DONE]\n\n"


async def lines_response(
    request: GuardedRequest,
    engine: Engine,
    lines: Iterator[L | InputError],
    operation: LinesOperation[L, T],
    terms: RequestOptions,
) -> Response:
    """Answer a stream of lines in batches, and reply with lines.

    An error before the first piece sets the HTTP status; a later one is the last line.

    Args:
        request: watched for a disconnect.
        engine: model thread.
        lines: parsed lines, or errors of unparsable lines.
        operation: answers the lines of a batch; if it fails, halves are answered apart.
        terms: options of the work.
    """
    pieces = await start_stream(request, engine.stream(write_lines(lines, operation), terms))
    headers = {"x-model": operation.address}
    return ClosingStream(_lines(pieces), media_type=LINES_TYPE, headers=headers)


def write_lines(lines: Iterator[L | InputError], operation: LinesOperation[L, T]) -> Work[bytes, None]:
    """Process lines in batches.

    Each event has complete lines, so a later error gets its own line.
    """

    def size_of(line: L | InputError) -> int:
        return 1 if isinstance(line, InputError) else operation.size(line)

    while batch := (yield from read_batch(lines, size_of)):
        valid = [line for line in batch if not isinstance(line, InputError)]
        answers = iter((yield from answer_each(operation.answer, valid)) if valid else ())
        written = bytearray()
        for line in batch:
            outcome = line if isinstance(line, InputError) else next(answers)
            if isinstance(outcome, DomainError):
                written += error_json(error_body(outcome))
            else:
                for piece in operation.line(outcome):
                    written += piece
                    if len(written) >= BYTES_PER_PIECE:
                        yield None  # others run during a long line, too
            written += b"\n"
            if len(written) >= BYTES_PER_PIECE:
                yield bytes(written)
                written.clear()
        if written:
            yield bytes(written)


async def _lines(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        try:
            async for piece in pieces:
                yield piece
        except DomainError as error:
            yield error_json(error_body(error)) + b"\n"


async def float32_response(
    request: GuardedRequest, engine: Engine, operation: RowsOperation[Any], terms: RequestOptions
) -> Response:
    """Return a streamed response of float32 rows, once the first are available; see `lines_response`."""
    count, width = operation.shape()
    headers = {
        "x-shape": f"{count},{width}",
        "x-model": operation.models[0].address,
        "content-length": str(4 * count * width),
    }
    stream = await start_stream(request, engine.stream(operation.rows(), terms))
    content = (np.maximum(batch, LOG_ZERO, dtype="<f4").tobytes() async for batch in stream)
    return ClosingStream(content, media_type=BINARY_TYPE, headers=headers)


class HttpCall(Call):
    """Call of a request over HTTP.

    Args:
        services: services of the application.
        request: the request.
        num_bytes: size of its body.
    """

    def __init__(self, services: Services, request: GuardedRequest, num_bytes: int) -> None:
        self.resources, self._request = services, request
        self._host, self._metrics = services.host, services.metrics
        self.owner, self.request_id, self.num_bytes = request.owner, request.request_id, num_bytes

    @override
    def resolve(self, address: str | None, *, any_version: bool = False) -> LoadedModel:
        loaded = self._host.resolve(address, any_version=any_version)
        self._request.use_model(loaded)
        return loaded

    @override
    def use_model(self, loaded: LoadedModel) -> None:
        self._request.use_model(loaded)

    @override
    def count_scored(self, loaded: TextModel, tokens: int) -> None:
        self._metrics.scored(loaded.address, tokens)
        fields = self._request.fields
        fields["scored_tokens"] = fields.get("scored_tokens", 0) + tokens

    @override
    def count_prompt(self, loaded: TextModel, tokens: int) -> None:
        self._metrics.prompt_tokens.labels(loaded.address).inc(tokens)

    @override
    def count_generated(self, loaded: TextModel, tokens: int, finish_reasons: Iterable[str]) -> None:
        self._metrics.generation_tokens.labels(loaded.address).inc(tokens)
        for reason in finish_reasons:
            self._metrics.generated.labels(loaded.address, reason).inc()

    @override
    def annotate(self, **fields: str | float) -> None:
        self._request.annotate(**fields)

    @override
    def report_unusable(self, event: str, error: DomainError, **fields: str) -> None:
        _log.warning(event, reason=str(error), **fields)


async def answer(endpoint: Endpoint, services: Services, request: GuardedRequest) -> None:
    """Answer a request by its endpoint's operation; cancel the work when the client disconnects."""
    kind: Any = endpoint.operation
    query, form, given = request.scope["query_string"], None, None
    if endpoint.lines is not None:
        form = _stream_format(endpoint.lines, request)
        if form is not None:
            given = kind.parse_settings(QueryParams(query))
        elif query and (
            name := next(filter(kind.settings.model_fields.__contains__, QueryParams(query)), "")
        ):
            raise InputError.of(
                name,
                "is in the query string, which is for options of JSON lines; put options of JSON into the body",
            )
    body = query if endpoint.method == "GET" else await request.body()
    if given is None:
        given = await parse_body(services, request.owner, body, kind.parse)
    operation: Operation[Any] = kind.of(HttpCall(services, request, len(body)), given)
    for step in operation.prepare():
        await asyncio.to_thread(step)
    cost, timeout_ms = operation.cost(), getattr(given, "timeout_ms", None)
    if form is not None:
        cost = cost._replace(bulk=True)
    terms = request_options(cost, request_id=request.request_id, owner=request.owner, timeout_ms=timeout_ms)
    if form is not None and isinstance(operation, LinesOperation):
        lines = operation.parse_lines(body, form)
        reply = await lines_response(request, services.engine, lines, operation, terms)
    elif operation.streams and isinstance(operation, EventsOperation):
        reply = await _event_stream(request, services, operation, terms)
    elif BINARY_TYPE in request.header(b"accept") and isinstance(operation, RowsOperation):
        reply = await float32_response(request, services.engine, operation, terms)
    else:
        whole = await _result(request, services, operation, cost, terms)
        operation.keep_shown()  # not if a newer request has cancelled this one
        await request.reply(whole)
        return
    await reply(request.scope, request.receive, request.send)


async def _result(
    request: GuardedRequest, services: Services, operation: Operation[Any], cost: Cost, terms: RequestOptions
) -> bytes:
    """Run an operation: at once, or on the model thread while the client is connected."""
    if operation.session is not None:
        # before admission, to free a place
        services.sessions.supersede(request.owner, operation.session)
    if operation.runs_inline(cost):
        services.engine.scheduler.admission.check_capacity(terms)
        return run_to_completion(write_reply(operation))
    future = services.engine.run(write_reply(operation), terms)
    if operation.session is None:
        return await while_connected(request.receive, future)
    with services.sessions.newest(request.owner, operation.session, future):
        return await while_connected(request.receive, future)


def _stream_format(lines: Lines, request: GuardedRequest) -> str | None:
    """Return the format of a body that is a stream of lines or lists; None for JSON."""
    content_type = request.header(b"content-type")
    if content_type == "application/json":
        return None
    if lines.list_types:
        return format_of_media_type(content_type)
    # media types are case-insensitive
    return _JSON_LINES if content_type.partition(";")[0].strip().lower() == LINES_TYPE else None


async def _event_stream(
    request: GuardedRequest, services: Services, operation: EventsOperation[Any, Any], terms: RequestOptions
) -> Response:
    """Reply with an event per part of a choice; the last may be the result."""
    address, metrics = operation.models[0].address, services.metrics
    first_token, inter_token = metrics.first_token.labels(address), metrics.inter_token.labels(address)
    began_s = time.perf_counter()
    sent_s: dict[int, float] = {}  # time of the last token of each choice
    # an early error sets the HTTP status; the client never waits without heartbeats
    work = services.engine.stream(write_reply(operation), terms)
    items = await start_stream(request, work, HEARTBEAT_S)

    async def payloads() -> AsyncGenerator[bytes, None]:
        async for item in items:
            if isinstance(item, bytes):  # the reply
                if operation.ends_with_result:
                    yield item
                continue
            choice, num_generated, _ = item
            if num_generated:
                now_s = time.perf_counter()
                latency = inter_token if choice.index in sent_s else first_token
                latency.observe(now_s - sent_s.get(choice.index, began_s))
                sent_s[choice.index] = now_s
            yield operation.event(item)

    return EventStream(payloads())
