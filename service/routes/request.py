"""Steps common to requests: services, bodies, results while the client is connected.

Work is cancelled when the client disconnects; a session's newer autocomplete request cancels
older ones.
"""

import asyncio
import gc
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send

from models.errors import SupersededError
from service.engine.engine import Engine
from service.engine.job import RequestOptions, Shares
from service.engine.metrics import Metrics
from service.hosting.loaded_model import LoadedModel
from service.hosting.model_host import ModelHost, ModelReloader
from service.middleware.guarded_request import GuardedRequest, guarded
from service.operations.operation import BYTES_PER_TOKEN, Resources
from service.schemas.replies import to_json
from service.schemas.wire import parse_json

B = TypeVar("B", bound=BaseModel)
R = TypeVar("R")
_WATCH_DELAY_S = 0.02
"""Delay before a request is watched for a disconnect; most end earlier, which saves the task."""

_SHORT_BODY_BYTES = 1 << 16
"""Maximum size of a body parsed on the event loop, in a few milliseconds."""


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
        """Register a session's newest request while it waits for its result.

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
            if self._newest.get((owner, session)) is answer:  # not cancelled
                raise
            raise SupersededError(f"a newer request of session {session!r} has arrived") from None
        finally:
            if self._newest.get((owner, session)) is answer:
                del self._newest[owner, session]


@dataclass(frozen=True, kw_only=True)
class Services(Resources):
    """Shared services of an application's routes.

    Attributes:
        host: loaded models.
        reloader: loader of models.
        engine: model thread.
        metrics: counters and durations.
        sessions: newest requests of autocomplete sessions.
        uploads: word lists being received, by API key.
        parsing: locks by API key, held while a long body is parsed, that of None by the one parsed now;
            so keys take turns.
    """

    host: ModelHost
    reloader: ModelReloader
    engine: Engine
    metrics: Metrics
    sessions: AutocompleteSessions
    uploads: Shares[str]
    parsing: Mapping[str | None, asyncio.Lock]


def services_of(request: Request) -> Services:
    """Return the services of a request's application."""
    services: Services = request.app.state.services
    return services


def resolve_model(request: Request, address: str | None) -> LoadedModel:
    """Return the loaded model at an address (None: the default), in use until the request ends.

    Raises:
        ModelNotFoundError: the service does not serve the model.
        NotReadyError: the model is still loading, or could not be loaded.
    """
    loaded = services_of(request).host.resolve(address)
    guarded(request.scope).use_model(loaded)
    return loaded


def owner_of(request: Request) -> str:
    """Return a request's owner: the name of its API key, empty without keys."""
    return guarded(request.scope).owner


def json_response(reply: Any, status: int = 200) -> Response:
    """Return a successful response with a JSON reply; bytes are JSON."""
    content = reply if isinstance(reply, bytes) else to_json(reply)
    return Response(content, status, media_type="application/json")


async def parse_body(services: Services, owner: str, body: bytes, parse: Callable[[bytes], R]) -> R:
    """Parse an owner's body; a long one on a thread, and one at a time.

    Raises:
        InputError: the body is invalid.
        OverloadedError, DrainingError: a long body's work would not be admitted.
    """
    if len(body) <= _SHORT_BODY_BYTES:
        return parse(body)
    async with services.parsing[owner], services.parsing[None]:
        terms = RequestOptions(bulk=True, tokens=len(body) // BYTES_PER_TOKEN, owner=owner)
        services.engine.scheduler.admission.check_capacity(terms)
        gc.disable()  # its objects form no cycles, and each collection would visit all
        try:
            return await asyncio.to_thread(parse, body)
        finally:
            gc.enable()


async def read_json(request: Request, kind: type[B]) -> B:
    """Parse the JSON body of a request, see `parse_body`."""
    body = await guarded(request.scope).body()
    return await parse_body(services_of(request), owner_of(request), body, partial(parse_json, kind))


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
    request: GuardedRequest, stream: AsyncGenerator[R, None], timeout_s: float | None = None
) -> AsyncGenerator[R, None]:
    """Return a stream after its first item or some time; earlier errors set the HTTP status.

    Args:
        request: watched for a disconnect.
        stream: closed with the returned generator.
        timeout_s: longest wait for the response to start; None: until the first item.
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
    """Streamed response that closes its source at the end, to cancel the work."""

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
