"""Streamed replies: server-sent events, JSON lines and binary float32 rows.

Event streams send a heartbeat comment after 10 s without an event, as proxies close silent
connections. An error after the status line is the last event or line. Binary rows are
little-endian float32.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
from starlette.responses import Response
from starlette.types import Message, Send

from models.calls import Work
from models.errors import InputError, LanguageModelError
from models.language_model import LOG_ZERO
from service.api_errors import error_body, error_json
from service.engine.engine import Engine
from service.engine.job import RequestOptions
from service.middleware.guarded_request import GuardedRequest
from service.operations.constants import BYTES_PER_PIECE
from service.operations.inputs import answer_each, read_batch
from service.operations.operation import LinesOperation, RowsOperation
from service.routes.endpoints import BINARY_TYPE, EVENTS_TYPE, LINES_TYPE
from service.routes.request import ClosingStream, start_stream

HEARTBEAT_S = 10.0
"""Interval of heartbeat comments, because proxies close silent connections."""

_HEARTBEAT = b": \n\n"
_NO_BUFFERING = {"cache-control": "no-cache", "x-accel-buffering": "no"}

L = TypeVar("L")
T = TypeVar("T")


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
    except LanguageModelError as error:
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
            if isinstance(outcome, LanguageModelError):
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
        except LanguageModelError as error:
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
