"""Answers of one line of JSON for each line that was asked, in order, sent as they come."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

from models.errors import LanguageModelError
from service.routes.errors import error_body, error_json

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
        async for some in outcomes:
            written = bytearray()
            for line in write(some):
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
