"""Server-sent events: how they are sent, and that something is sent when there are none."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request
from starlette.types import Message, Send

from models.errors import LanguageModelError
from service.routes.errors import error_body, error_json
from service.routes.openapi_lines import EVENTS_TYPE
from service.routes.serving import ClosingStream, R, while_connected

HEARTBEAT_S = 10.0
"""After so long without an event a comment is sent, for proxies that cut silent connections."""

_HEARTBEAT = b": \n\n"
_NO_BUFFERING = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class EventStream(ClosingStream):
    """JSON documents as server-sent events, then `[DONE]`, with a comment now and then while there are none.

    An error on the way is the last event, without `[DONE]`: the status has gone out.

    Args:
        payloads: the documents; closed with the stream, however it ends.
    """

    def __init__(self, payloads: AsyncGenerator[bytes, None]) -> None:
        super().__init__(_events(payloads), media_type=EVENTS_TYPE, headers=_NO_BUFFERING)
        self._payloads = payloads

    async def stream_response(self, send: Send) -> None:
        """Send all events."""
        pulse = _HeartbeatSender(send)
        beating = asyncio.create_task(pulse.beat())
        try:
            async with aclosing(self._payloads):
                await super().stream_response(pulse.send)
        finally:
            beating.cancel()


async def _events(payloads: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for payload in payloads:
            yield b"data: " + payload + b"\n\n"
    except LanguageModelError as error:
        yield b"data: " + error_json(error_body(error)) + b"\n\n"
    else:
        yield b"data: [DONE]\n\n"


class _HeartbeatSender:
    """Sends messages, and heartbeats when there has been none for a while; one at a time."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._last_s = self._clock()
        self._sending = False
        self._more = False

    async def send(self, message: Message) -> None:
        """Send a message."""
        self._sending = True
        self._more = message["type"] == "http.response.start" or message.get("more_body", False)
        await self._send(message)
        self._last_s, self._sending = self._clock(), False

    async def beat(self) -> None:
        """Send heartbeats between the response's start and its end, for ever."""
        while True:
            await asyncio.sleep(max(self._last_s + HEARTBEAT_S - self._clock(), HEARTBEAT_S / 10))
            if self._more and not self._sending and self._clock() - self._last_s >= HEARTBEAT_S:
                await self.send({"type": "http.response.body", "body": _HEARTBEAT, "more_body": True})


async def start_event_stream(request: Request, stream: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
    """The same stream, once its first item is there or a heartbeat is due.

    So what goes wrong soon has a status of its own, and no client waits long for a sign of life.
    """
    first = asyncio.ensure_future(anext(stream))
    begun = False
    try:
        await while_connected(
            request.receive, asyncio.ensure_future(asyncio.wait({first}, timeout=HEARTBEAT_S))
        )
        if first.done():
            first.result()
        begun = True
    finally:
        if not begun:
            first.cancel()

    async def whole() -> AsyncGenerator[R, None]:
        async with aclosing(stream):
            try:
                yield await first
            finally:
                first.cancel()
            async for item in stream:
                yield item

    return whole()
