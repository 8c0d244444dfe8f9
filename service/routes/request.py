"""Common steps of all endpoints: resolve the model, run the work on the engine, write the reply.

Work is cancelled when the client disconnects. Short requests to a lookup model run inline, since
handing them to the model thread takes longer. Requests with much work are bulk and give way to
others. Of the autocomplete requests of one session only the newest is answered.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, TypeAdapter
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send

from models.checkpoint.documents import CalibrationStore, ProfileStore
from models.errors import InvalidInputError, SupersededError
from service.engine.engine import Engine, RequestOptions
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.metrics import Metrics
from service.engine.model_host import ModelHost, ModelReloader
from service.engine.state_store import StateStore, UserStore
from service.middleware.request_context import annotate, context_of, track_use
from service.routes.openapi import LINES_TYPE
from service.schemas.wire import TimedRequest
from service.use_cases.inputs import Limits


class AutocompleteSessions:
    """The requests under way that are the newest of their session. Belongs to the event loop."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        """Sessions with a request under way."""
        return len(self._newest)

    def supersede(self, owner: str, session: str) -> None:
        """A newer request has come: the one under way, if there is one, is given up."""
        before = self._newest.pop((owner, session), None)
        if before is not None:
            before.cancel()

    @contextmanager
    def newest(self, owner: str, session: str, answer: "asyncio.Future[Any]") -> Iterator[None]:
        """While the block waits for an answer, it is that of the newest request of its session.

        Args:
            owner: whose session it is.
            session: its name.
            answer: to come; it is cancelled when a newer request comes, which gives up its work.

        Raises:
            SupersededError: a newer one has come before the answer.
        """
        self.supersede(owner, session)
        self._newest[owner, session] = answer
        try:
            yield
        except asyncio.CancelledError:
            if self._is_newest(owner, session, answer):  # whoever cancelled it, it was no newer request
                raise
            raise SupersededError(f"a newer request of the session {session!r} has come") from None
        finally:
            if self._is_newest(owner, session, answer):
                del self._newest[owner, session]

    def _is_newest(self, owner: str, session: str, answer: "asyncio.Future[Any]") -> bool:
        return self._newest.get((owner, session)) is answer


R = TypeVar("R")
T = TypeVar("T")
_WATCH_DELAY_S = 0.02
"""How long a request takes before its client is watched: most are done by then, and watching costs."""

BULK_TOKENS = 1 << 12
"""A request with more work gives way to others, in tokens read."""

TOKENS_PER_PREDICTION = 16
"""A distribution takes as long as reading so many tokens, roughly, with what is chosen by it."""

ENTRIES_PER_TOKEN = 8
"""Of a reply, such as candidates: so many are written in the time that a token is read in, roughly."""

BYTES_PER_TOKEN = 4
"""Of a body, roughly: what admission counts before anything is tokenised."""

_FEW_SEQUENCES = 8
"""So many may generate long texts without giving way: of each a step is short."""

_INLINE_BYTES = 2048
_ENTRIES_PER_PIECE = 512
"""Of a reply written before other requests have their turn."""


@dataclass(frozen=True, slots=True)
class Services:
    """Shared services of an application's routes."""

    host: ModelHost
    reloader: ModelReloader
    engine: Engine
    states: StateStore
    profiles: ProfileStore
    calibrations: CalibrationStore
    users: UserStore
    sessions: AutocompleteSessions
    metrics: Metrics
    limits: Limits


def services_of(request: Request) -> Services:
    """The services of the application that a request came to."""
    services: Services = request.app.state.services
    return services


def resolve_model(request: Request, address: str | None) -> LoadedModel:
    """The loaded model that an address means, None for the default; the request's log line names it.

    Raises:
        ModelNotFoundError: it is not loaded, and was not to be.
        NotReadyError: it is still being loaded, or could not be.
    """
    loaded = services_of(request).host.resolve(address)
    use_model(request, loaded)
    return loaded


def use_model(request: Request, loaded: LoadedModel) -> None:
    """Count a model as used by a request until that is answered; the request's log line names it."""
    track_use(request.scope, loaded)
    annotate(request, model=loaded.address)


def owner_of(request: Request) -> str:
    """Return the owner of a request: the name of its key, or nothing where the service needs none."""
    return str(context_of(request.scope).get("key", ""))


@cache
def _type_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(reply: Any) -> bytes:
    """A reply as JSON in UTF-8."""
    kind: Any = type(reply)
    return _type_adapter(kind).dump_json(reply)


def json_response(content: bytes, status: int = 200) -> Response:
    """An answer that is no error."""
    return Response(content, status, media_type="application/json")


@dataclass(frozen=True, slots=True)
class WorkEstimate:
    """Samples, beams, contexts or candidates that a request works on side by side.

    Attributes:
        count: how many.
        work_each: what each takes beside the tokens of the body, in tokens read, such as those of a context that they
            share. It decides who gives way, not who is admitted.
        predicted_each: distributions that each asks for, such as one for a token to be generated.
    """

    count: int = 0
    work_each: int = 0
    predicted_each: int = 0


_NO_EXTRA_WORK = WorkEstimate()


def request_options(
    request: Request,
    wire: TimedRequest | None,
    body: bytes,
    beside: WorkEstimate = _NO_EXTRA_WORK,
    *,
    bulk: bool = False,
) -> RequestOptions:
    """The terms on which a request's work is done: it is bulk if it takes long, however short its body is.

    Args:
        request: whose id goes to the log.
        wire: its body, parsed, if that can say how much time it has.
        body: as it came; it says about how many tokens there are.
        beside: what is to be done that the body's length does not tell.
        bulk: whether it is anyway.
    """
    timeout_ms = None if wire is None else wire.timeout_ms
    read, predicted = len(body) // BYTES_PER_TOKEN, beside.count * beside.predicted_each
    work = read + beside.count * beside.work_each
    if beside.count > _FEW_SEQUENCES:
        work += TOKENS_PER_PREDICTION * predicted
    return RequestOptions(
        request_id=request.state.request_id,
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        bulk=bulk or work > BULK_TOKENS,
        tokens=read + predicted,
    )


def refuse_query_options(request: Request, options: type[BaseModel]) -> None:
    """Refuse a query string that would count if the body were lines: in JSON its options stand in the body.

    Raises:
        InvalidInputError: an option stands there.
    """
    if not request.scope["query_string"]:
        return
    for name in request.query_params:
        if name in options.model_fields:
            raise InvalidInputError(
                f"{name} is given in the query string, where options of lines stand; those of JSON stand in the body",
                parameter=name,
            )


def runs_inline(loaded: LoadedModel, body: bytes) -> bool:
    """Return whether inline computation beats the model thread: a short request to a table."""
    return loaded.model.family == "ngram" and len(body) <= _INLINE_BYTES


def json_pieces(
    reply: Any, name: str, items: Sequence[T], write: Callable[[T], Any], *, entries: int
) -> Iterator[bytes]:
    """A reply as JSON in UTF-8, in pieces that are each written in a bounded time.

    Args:
        reply: all of it but one list, which is empty in it.
        name: of that list.
        items: what it is made of.
        write: makes an element of the list of an item; all are of one type.
        entries: of all elements together, such as the candidates of all contexts.
    """
    if not items:
        yield to_json(reply)
        return
    before, after = to_json(reply).split(f'"{name}":[]'.encode(), 1)
    batch_size = max(1, _ENTRIES_PER_PIECE * len(items) // max(entries, 1))
    for begin in range(0, len(items), batch_size):
        results = [write(item) for item in items[begin : begin + batch_size]]
        kind: Any = type(results[0])
        piece = _type_adapter(list[kind]).dump_json(results)[1:-1]
        head = b"," if begin else before + f'"{name}":['.encode()
        yield head + piece + (b"" if begin + batch_size < len(items) else b"]" + after)


async def run_request(
    request: Request,
    work: Work[Any, R],
    write: Callable[[R], bytes | Iterator[bytes]],
    terms: RequestOptions,
    *,
    inline: bool = False,
) -> Response:
    """Do the work and write its result; give up when the client is gone.

    Args:
        request: where the client is seen to go.
        work: what to do, on the model thread.
        write: makes JSON of its result, there too, whole or in pieces between which others have their turn.
        terms: of the work.
        inline: whether to do it here instead, at once.
    """

    def written() -> Work[Any, bytes]:
        reply = write((yield from work))
        if isinstance(reply, bytes):
            return reply
        pieces: list[bytes] = []
        for piece in reply:
            if pieces:
                yield None
            pieces.append(piece)
        return b"".join(pieces)

    engine = services_of(request).engine
    if inline:
        return json_response(engine.run_inline(written()))
    return json_response(await while_connected(request.receive, engine.run(written(), terms)))


async def while_connected(receive: Receive, future: "asyncio.Future[R]") -> R:
    """Wait for an outcome as long as there is somebody to tell it.

    Raises:
        ClientDisconnect: the client has gone; the future is cancelled.
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


async def start_stream(request: Request, stream: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
    """The same stream, once its first item is there: so what goes wrong before has a status of its own."""
    first = await while_connected(request.receive, asyncio.ensure_future(anext(stream)))

    async def whole() -> AsyncGenerator[R, None]:
        async with aclosing(stream):
            yield first
            async for item in stream:
                yield item

    return whole()


class ClosingStream(StreamingResponse):
    """A stream whose source is closed with it, and with that its work cancelled, however it ends."""

    def __init__(self, content: AsyncGenerator[bytes, None], **options: Any) -> None:
        super().__init__(content, **options)
        self._source = content

    async def stream_response(self, send: Send) -> None:
        """Send all that the source gives."""
        async with aclosing(self._source):
            await super().stream_response(send)


def has_json_lines(request: Request) -> bool:
    """Check whether a request's body is lines of JSON; names of media types have no case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == LINES_TYPE


def accepts(request: Request, media_type: str) -> bool:
    """Check whether a request names a media type among those it accepts."""
    return media_type in request.headers.get("accept", "")
