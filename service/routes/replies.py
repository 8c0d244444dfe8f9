"""Answers to operations: JSON, JSON lines, server-sent events or raw numbers.

Short requests to an n-gram model run at once: handing them to the model thread takes longer. Requests with much work
are bulk and yield to others.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import structlog
from starlette.datastructures import QueryParams
from starlette.responses import Response
from typing_extensions import override

from models.calls import run_to_completion
from models.errors import InputError, LanguageModelError
from models.reranking.formats.reader import format_name_of_media_type
from models.text_model import TextModel
from service.engine.job import RequestOptions
from service.hosting.loaded_model import LoadedModel
from service.middleware.guarded_request import GuardedRequest
from service.operations.operation import (
    Call,
    Cost,
    EventsOperation,
    LinesOperation,
    Operation,
    RowsOperation,
    request_options,
    write_reply,
)
from service.routes.endpoints import BINARY_TYPE, LINES_TYPE, Endpoint, Lines
from service.routes.request import Services, parse_body, start_stream, while_connected
from service.routes.streaming import HEARTBEAT_S, EventStream, float32_response, lines_response

_log = structlog.get_logger(__name__)

_JSON_LINES = "jsonl"


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
    def report_unusable(self, event: str, error: LanguageModelError, **fields: str) -> None:
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
        await request.reply(await _result(request, services, operation, cost, terms))
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
    if lines.list_types:
        return format_name_of_media_type(content_type)
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
