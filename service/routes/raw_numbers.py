"""Answers of numbers that are no JSON: little-endian float32, row after row."""

from collections.abc import AsyncGenerator

import numpy as np
from fastapi import Request
from starlette.responses import Response

from models.arrays import FloatArray
from service.engine.hosted import LoadedModel
from service.routes.openapi_lines import BINARY_TYPE
from service.routes.serving import ClosingStream, start_stream


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
    async for some in rows:
        yield np.ascontiguousarray(some, dtype="<f4").tobytes()
