"""Streamed replies: server-sent events, JSON lines and binary float32 rows.

A heartbeat comment is sent in event streams when no event is due for 10 s, since proxies cut silent
connections. An error after the status has been sent is the last event or the last line. Binary rows
are little-endian float32.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

import numpy as np
from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Send

from models.arrays import FloatArray
from models.errors import LanguageModelError
from service.api_errors import error_body, error_json
from service.engine.loaded_model import LoadedModel
from service.engine.metrics import Metrics
from service.routes.openapi import BINARY_TYPE, EVENTS_TYPE
from service.routes.request import ClosingStream, R, start_stream, while_connected

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


T = TypeVar("T")
_BYTES_PER_PIECE = 1 << 16


async def json_lines(
    outcomes: AsyncGenerator[Sequence[T], None], write: Callable[[Sequence[T]], Iterable[bytes]]
) -> AsyncGenerator[bytes, None]:
    """The lines of outcomes, some of them a piece.

    Args:
        outcomes: of lines, some at a time; closed with what is returned.
        write: makes a line of each.
    """
    async with aclosing(outcomes):
        async for batch in outcomes:
            written = bytearray()
            for line in write(batch):
                written += line
                if len(written) >= _BYTES_PER_PIECE:
                    yield bytes(written)
                    written.clear()
                    await asyncio.sleep(0)  # details are long: let the event loop see to others
            if written:
                yield bytes(written)


async def with_error_line(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same pieces; what goes wrong once the status has gone out is told by the last line."""
    async with aclosing(pieces):
        try:
            async for piece in pieces:
                yield piece
        except LanguageModelError as error:
            yield error_line(error)


def error_line(error: LanguageModelError) -> bytes:
    """`{"error": {…}}` as a line."""
    return error_json(error_body(error)) + b"\n"


async def float32_response(
    request: Request, loaded: LoadedModel, rows: AsyncGenerator[FloatArray, None], *, shape: tuple[int, int]
) -> Response:
    """Rows as they come, once the first are there.

    Args:
        request: where the client is seen to go.
        loaded: whose they are.
        rows: some at a time [·, K].
        shape: of all of them together, (B, K).
    """
    count, width = shape
    headers = {
        "x-shape": f"{count},{width}",
        "x-model": loaded.address,
        "content-length": str(4 * count * width),
    }
    return ClosingStream(
        _little_endian(await start_stream(request, rows)), media_type=BINARY_TYPE, headers=headers
    )


async def _little_endian(rows: AsyncGenerator[FloatArray, None]) -> AsyncGenerator[bytes, None]:
    async for batch in rows:
        yield np.ascontiguousarray(batch, dtype="<f4").tobytes()


class TokenLatencies:
    """Tells the metrics how long each choice's tokens were waited for, from now on.

    Args:
        metrics: are told.
        model: the address they are counted under.
    """

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._first = metrics.first_token.labels(model)
        self._next = metrics.inter_token.labels(model)
        self._begun_s = time.perf_counter()
        self._before_s: dict[int, float] = {}

    def record(self, choice: int) -> None:
        """A token of this choice is sent."""
        now_s = time.perf_counter()
        before_s = self._before_s.get(choice)
        if before_s is None:
            self._first.observe(now_s - self._begun_s)
        else:
            self._next.observe(now_s - before_s)
        self._before_s[choice] = now_s
