"""What every route does: find the services, run work on the engine, write the answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from fastapi import Request
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send

from service.engine.engine import Engine
from service.engine.host import ModelHost
from service.engine.job import Work
from service.engine.metrics import Metrics
from service.use_cases.limits import Limits

R = TypeVar("R")
_PATIENCE_S = 0.02
"""How long a request takes before its client is watched: most are done by then, and watching costs."""


@dataclass(frozen=True, slots=True)
class Services:
    """What an application's routes share."""

    host: ModelHost
    engine: Engine
    metrics: Metrics
    limits: Limits


def services_of(request: Request) -> Services:
    """The services of the application that a request came to."""
    services: Services = request.app.state.services
    return services


@cache
def _writer(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(reply: Any) -> bytes:
    """A reply as JSON in UTF-8."""
    kind: Any = type(reply)
    return _writer(kind).dump_json(reply)


def json_response(content: bytes) -> Response:
    """A successful answer."""
    return Response(content, media_type="application/json")


async def run(request: Request, work: Work[Any, R], write: Callable[[R], bytes]) -> Response:
    """Do the work, writing its result on the model thread too; give up when the client is gone."""

    def written() -> Work[Any, bytes]:
        return write((yield from work))

    future = services_of(request).engine.run(written(), request_id=request.state.request_id)
    return json_response(await while_connected(request.receive, future))


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

    timer = asyncio.get_running_loop().call_later(_PATIENCE_S, start_watching)
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


async def begin(request: Request, stream: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
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


async def server_sent_events(payloads: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """JSON documents as server-sent events."""
    async for payload in payloads:
        yield b"data: " + payload + b"\n\n"


def accepts(request: Request, media_type: str) -> bool:
    """Whether a request names a media type among those it accepts."""
    return media_type in request.headers.get("accept", "")
