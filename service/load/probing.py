"""One request before a load: whether there is anything to measure."""

import asyncio

from models.errors import EngineError
from service.load.connection import Connection, ExchangeError, Reply
from service.load.events import error_message
from service.load.target import Request, Target

_OVERLOADED = 429


def probe(target: Target, request: Request, timeout_s: float) -> None:
    """Ask once.

    Raises:
        EngineError: there is no answer, or one that says that the request is wrong or the service not ready.
    """
    place = f"{request.method} {target.path_of(request)} at {target.host}:{target.port}"
    try:
        reply = asyncio.run(_send_once(target, request, timeout_s))
    except TimeoutError:
        raise EngineError(f"{place} was not answered within {timeout_s:g} s") from None
    except (ExchangeError, OSError) as error:
        raise EngineError(f"{place} was not answered: {error}") from None
    if reply.error is not None:
        raise EngineError(f"{place} failed in the middle: {reply.error}")
    if not 200 <= reply.status < 300 and reply.status != _OVERLOADED:
        raise EngineError(f"{place} was answered {reply.status}: {error_message(reply.body)}")


async def _send_once(target: Target, request: Request, timeout_s: float) -> Reply:
    async with asyncio.timeout(timeout_s):
        connection = await Connection.open(target)
        try:
            return await connection.send(request)
        finally:
            connection.close()
