"""Common steps of all endpoints: resolve the model, run the work on the engine, write the reply.

Work is cancelled when the client disconnects. Short requests to an n-gram model run inline: handing
them to the model thread takes longer. Requests with much work are bulk and yield to
others. A newer autocomplete request of a session cancels older ones.
"""

import asyncio
import gc
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send

from models.checkpoint.documents import CalibrationStore, ErrorTableStore, ProfileStore
from models.errors import InvalidInputError, SupersededError
from models.language_model import is_lookup
from service.engine.engine import Engine
from service.engine.job import RequestOptions, Work, run_to_completion
from service.engine.metrics import Metrics
from service.hosting.loaded_model import LoadedModel
from service.hosting.model_host import ModelHost, ModelReloader
from service.hosting.state_store import StateStore
from service.hosting.user_store import UserStore
from service.middleware.guarded_request import guarded
from service.routes.endpoints import LINES_TYPE
from service.schemas.replies import to_json
from service.schemas.wire import ModelRequest, TimedRequest, parse_json, parse_query
from service.use_cases.inputs import Dictionaries, Limits
from service.use_cases.model_weights import ModelsRequest, WeightedModel


class AutocompleteSessions:
    """Newest running requests of sessions; used on the event loop only."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], asyncio.Future[Any]] = {}

    def supersede(self, owner: str, session: str) -> None:
        """Cancel the running request of a session, if any, for a newer one."""
        superseded = self._newest.pop((owner, session), None)
        if superseded is not None:
            superseded.cancel()

    @contextmanager
    def newest(self, owner: str, session: str, answer: "asyncio.Future[Any]") -> Iterator[None]:
        """Register a session's newest request while the context waits for its result.

        Args:
            owner: owner of the session.
            session: name of the session.
            answer: future; a newer request cancels it and its work.

        Raises:
            SupersededError: a newer request came before the result.
        """
        self.supersede(owner, session)
        self._newest[owner, session] = answer
        try:
            yield
        except asyncio.CancelledError:
            if self._newest.get((owner, session)) is answer:  # not cancelled by a newer request
                raise
            raise SupersededError(f"a newer request of session {session!r} has arrived") from None
        finally:
            if self._newest.get((owner, session)) is answer:
                del self._newest[owner, session]


B = TypeVar("B", bound=BaseModel)
S = TypeVar("S", bound=BaseModel)
R = TypeVar("R")
T = TypeVar("T")
_WATCH_DELAY_S = 0.02
"""Delay before a request is watched for a disconnect; most requests end earlier, which saves the watcher task."""

# bench_heavy_company, bench_rerank, bench_states: limits of work for bulk and inline requests
BULK_TOKENS = 1 << 12
"""Work in tokens read above which a request is bulk and yields to other requests."""

TOKENS_PER_PREDICTION = 16
"""Approximate cost of a distribution and a choice from it, in tokens read."""

ENTRIES_PER_TOKEN = 8
"""Approximate number of reply entries, such as candidates, written in the time of reading one token."""

BYTES_PER_TOKEN = 4
"""Approximate bytes of a body per token, for admission before the text is tokenised."""

COMPARISONS_PER_TOKEN = 16
"""Approximate number of pairs of candidates compared in the time of reading one token."""

INLINE_CONTINUATIONS = 64
"""Maximum continuations that an n-gram model scores faster inline than on the model thread."""

BULK_CONTINUATIONS = 512
"""Maximum continuations or states of a request that is not bulk."""

HANDLE_BYTES = 128
"""Approximate body bytes per state with a following word; such a body is little work."""

INLINE_CANDIDATES = 256
"""Maximum candidates of a reply that is written faster inline than on the model thread."""

_FEW_SEQUENCES = 8
"""Maximum sequences that may generate long texts without being bulk, because their steps are short."""

_INLINE_BYTES = 2048
_SHORT_BODY_BYTES = 1 << 16
"""Maximum size of a body that is parsed on the event loop, in a few milliseconds."""

_ENTRIES_PER_PIECE = 512
"""Reply entries per chunk; other requests run between chunks."""


@dataclass(frozen=True, slots=True)
class Services:
    """Shared services of an application's routes.

    Attributes:
        parsing: locks by API key, held while a long body is parsed, that of None by the one parsed now;
            so keys take turns.
    """

    host: ModelHost
    reloader: ModelReloader
    engine: Engine
    states: StateStore
    profiles: ProfileStore
    calibrations: CalibrationStore
    errors: ErrorTableStore
    users: UserStore
    sessions: AutocompleteSessions
    metrics: Metrics
    limits: Limits
    languages: Mapping[str, str | None]
    dictionaries: Dictionaries
    parsing: Mapping[str | None, asyncio.Lock]


def services_of(request: Request) -> Services:
    """Return the services of a request's application."""
    services: Services = request.app.state.services
    return services


def resolve_model(request: Request, address: str | None, *, any_version: bool = False) -> LoadedModel:
    """Return the loaded model at an address (None for the default), and add it to the log line.

    With `any_version`, a model's served version replaces one that is not served.

    Raises:
        ModelNotFoundError: the service does not serve the model.
        NotReadyError: the model is still loading, or could not be loaded.
    """
    loaded = services_of(request).host.resolve(address, any_version=any_version)
    use_model(request, loaded)
    return loaded


async def resolve_request(request: Request, wire: ModelRequest) -> LoadedModel:
    """Return the loaded model of a request, with its members of classes.

    Raises:
        InvalidInputError: a class is unknown, or a member is invalid.
        ModelNotFoundError, NotReadyError: see `resolve_model`.
    """
    return await _resolve(request, wire.model, wire)


async def resolve_models(request: Request, wire: ModelsRequest) -> list[WeightedModel]:
    """Return a request's loaded models and their weights, see `resolve_request`."""
    if not wire.models:
        return [WeightedModel(await resolve_request(request, wire))]
    return [WeightedModel(await _resolve(request, one.model, wire), one.weight) for one in wire.models]


async def _resolve(request: Request, address: str | None, wire: ModelRequest) -> LoadedModel:
    loaded = resolve_model(request, address)
    # on a thread: thousands of members take tens of milliseconds
    return await asyncio.to_thread(loaded.with_slots, wire.slots) if wire.slots else loaded


def use_model(request: Request, loaded: LoadedModel) -> None:
    """Count a model as used until the request ends, and add it to the log line."""
    guarded(request.scope).use_model(loaded)


def count_scored(request: Request, loaded: LoadedModel, tokens: int) -> None:
    """Add scored tokens to a model's metrics and to the request's log line."""
    services_of(request).metrics.scored_tokens.labels(loaded.address).inc(tokens)
    guarded(request.scope).add_counts(scored_tokens=tokens)


def owner_of(request: Request) -> str:
    """Return a request's owner: the name of its API key, or an empty string without keys."""
    return guarded(request.scope).owner


def json_response(reply: Any, status: int = 200) -> Response:
    """Return a successful response with a JSON reply; bytes are already JSON."""
    content = reply if isinstance(reply, bytes) else to_json(reply)
    return Response(content, status, media_type="application/json")


def request_options(
    request: Request,
    wire: TimedRequest | None,
    body: bytes,
    *,
    count: int = 0,
    work_each: int = 0,
    predicted_each: int = 0,
    bulk: bool | None = None,
) -> RequestOptions:
    """Return the options of a request's work; long work is bulk, even with a short body.

    Args:
        request: request, whose id is logged.
        wire: parsed body, if it may have a timeout.
        body: raw body; its length estimates the tokens.
        count: number of samples, beams, contexts or candidates, work besides reading the body.
        work_each: extra work per item in tokens read, such as a shared context; for the choice of bulk,
            not admission.
        predicted_each: distributions to predict per item, such as one per generated token.
        bulk: true or false overrides the estimate of work; None uses it.
    """
    timeout_ms = None if wire is None else wire.timeout_ms
    body_tokens, predicted = len(body) // BYTES_PER_TOKEN, count * predicted_each
    work = body_tokens + count * work_each
    if count > _FEW_SEQUENCES:
        work += TOKENS_PER_PREDICTION * predicted
    return RequestOptions(
        request_id=request.state.request_id,
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        bulk=work > BULK_TOKENS if bulk is None else bulk,
        tokens=body_tokens + predicted,
        owner=owner_of(request),
    )


def refuse_query_options(request: Request, options: type[BaseModel]) -> None:
    """Reject query-string options of a JSON request; only JSON lines have them.

    Raises:
        InvalidInputError: the query string has an option.
    """
    if not request.scope["query_string"]:
        return
    for name in request.query_params:
        if name in options.model_fields:
            raise InvalidInputError(
                f"{name} is in the query string, which is for options of JSON lines; put options of JSON into the body",
                parameter=name,
            )


async def read_body(request: Request, parse: Callable[[bytes], R]) -> R:
    """Parse a request's body; a long one on a thread, and one at a time.

    Raises:
        InvalidInputError: the body is invalid.
        OverloadedError, DrainingError: a long body's work would not be admitted.
    """
    body = await request.body()
    if len(body) <= _SHORT_BODY_BYTES:
        return parse(body)
    services = services_of(request)
    async with services.parsing[owner_of(request)], services.parsing[None]:
        terms = RequestOptions(bulk=True, tokens=len(body) // BYTES_PER_TOKEN, owner=owner_of(request))
        services.engine.scheduler.admission.check_capacity(terms)
        gc.disable()  # a body's objects form no cycles, and each collection would visit them all
        try:
            return await asyncio.to_thread(parse, body)
        finally:
            gc.enable()


async def read_json(request: Request, kind: type[B]) -> B:
    """Parse the JSON body of a request, see `read_body`."""
    return await read_body(request, partial(parse_json, kind))


async def read_request(request: Request, body: type[B]) -> tuple[Services, bytes, B]:
    """Return the application's services, the body, and the parsed JSON; see `read_body`."""
    return services_of(request), await request.body(), await read_json(request, body)


async def read_settings(request: Request, body: type[B], options: type[S]) -> B | S:
    """Parse a request's JSON body, or the query-string options of a JSON-lines request.

    Raises:
        InvalidInputError: the body or an option is invalid, or a JSON request has query options.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0]
    if media_type.strip().lower() == LINES_TYPE:  # media types are case-insensitive
        return parse_query(options, request.query_params)
    refuse_query_options(request, options)
    return await read_json(request, body)


def runs_inline(loaded: LoadedModel, body: bytes) -> bool:
    """Return true for short requests to n-gram models, which run inline, not on the model thread."""
    return is_lookup(loaded.model) and len(body) <= _INLINE_BYTES


def json_pieces(
    reply: Any, name: str, items: Sequence[T], write: Callable[[T], Any], *, entries: int
) -> Iterator[bytes]:
    """Yield a reply as JSON in UTF-8, in chunks of bounded time.

    Args:
        reply: reply with one empty list.
        name: name of the list.
        items: items of the list.
        write: converts an item to a list element; all have the same type.
        entries: number of entries in all elements, such as candidates of all contexts.
    """
    return _pieces(to_json(reply), (name, items, write, entries))


def reply_pieces(reply: Any, **entries: int) -> Iterator[bytes]:
    """Yield a reply as JSON in UTF-8, in chunks of bounded time.

    Args:
        reply: reply, a dataclass.
        entries: number of entries in each long list, such as suggestions of all issues, in the order
            of the reply's fields.
    """
    lists = ((name, getattr(reply, name), lambda item: item, number) for name, number in entries.items())
    return _pieces(to_json(replace(reply, **{name: [] for name in entries})), *lists)


def _pieces(rest: bytes, *lists: tuple[str, Sequence[Any], Callable[[Any], Any], int]) -> Iterator[bytes]:
    """Yield JSON with some empty lists, and their items; see `json_pieces`."""
    for name, items, write, entries in lists:
        before, rest = rest.split(f'"{name}":[]'.encode(), 1)
        piece = before + f'"{name}":['.encode()
        batch_size = max(1, _ENTRIES_PER_PIECE * len(items) // max(entries, 1))
        for begin in range(0, len(items), batch_size):
            if begin:
                yield piece + b","
                piece = b""
            results = [write(item) for item in items[begin : begin + batch_size]]
            kind: Any = type(results[0])
            piece += to_json(results, list[kind])[1:-1]
        rest = piece + b"]" + rest
    yield rest


async def run_request(
    request: Request,
    work: Work[Any, R],
    write: Callable[[R], bytes | Iterator[bytes]],
    terms: RequestOptions,
    *,
    inline: bool = False,
) -> Response:
    """Run the work of a request and return its result; cancel it when the client disconnects.

    Args:
        request: watched for a disconnect.
        work: work for the model thread.
        write: converts the result to JSON on the model thread, at once or in chunks, with other requests
            between.
        terms: options of the work.
        inline: true to run the work at once on the event loop instead.
    """

    def written() -> "Work[Any, bytes]":  # quoted: else evaluated for each request
        reply = write((yield from work))
        if isinstance(reply, bytes):
            return reply
        chunks: list[bytes] = []
        for chunk in reply:
            if chunks:
                yield None
            chunks.append(chunk)
        return b"".join(chunks)

    engine = services_of(request).engine
    if inline:  # shorter than a switch to the model thread
        engine.scheduler.admission.check_capacity(terms)
        return json_response(run_to_completion(written()))
    return json_response(await while_connected(request.receive, engine.run(written(), terms)))


async def while_connected(receive: Receive, future: "asyncio.Future[R]") -> R:
    """Wait for a result while the client is connected.

    Raises:
        ClientDisconnect: the client has disconnected; the future is cancelled.
    """
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        future.cancel()

    def start_watching() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(_WATCH_DELAY_S, start_watching)
    try:
        return await future
    except asyncio.CancelledError:
        if watcher is not None and watcher.done():
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


async def start_stream(
    request: Request, stream: AsyncGenerator[R, None], timeout_s: float | None = None
) -> AsyncGenerator[R, None]:
    """Return a stream after its first item or a time; earlier errors set the HTTP status.

    Args:
        request: watched for a disconnect.
        stream: closed with the returned generator.
        timeout_s: longest wait for the response to start; None to wait for the first item.
    """
    first = asyncio.ensure_future(anext(stream))
    firsts = [first]  # removed once taken, since a task holds its result
    with ExitStack() as undo:  # also if the request is cancelled
        undo.callback(first.cancel)
        await while_connected(
            request.receive, asyncio.ensure_future(asyncio.wait({first}, timeout=timeout_s))
        )
        if first.done():
            first.result()
        undo.pop_all()

    async def from_first() -> AsyncGenerator[R, None]:
        async with aclosing(stream):
            try:
                yield await firsts[0]
            finally:
                firsts.pop().cancel()
            async for item in stream:
                yield item

    return from_first()


class ClosingStream(StreamingResponse):
    """Streamed response that always closes its source at the end, to cancel the work."""

    def __init__(self, content: AsyncGenerator[bytes, None], **options: Any) -> None:
        super().__init__(content, **options)
        self._source = content

    async def stream_response(self, send: Send) -> None:
        """Send all chunks of the source."""
        try:
            async with aclosing(self._source):
                await super().stream_response(send)
        except (OSError, ClientDisconnect, asyncio.CancelledError) as error:
            # a disconnect's traceback would keep the last chunk until collected
            traceback.clear_frames(error.__traceback__)
            raise
