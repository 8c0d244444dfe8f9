"""Connections to one target, opened as they are needed, up to a bound."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from service.load.connection import Connection
from service.load.target import Target


class ConnectionPool:
    """Lends connections; the one that came back last goes first, so that few stay idle for long.

    Args:
        target: where they go.
        max_connections: that are open at once; who comes then waits, in order.

    Attributes:
        num_waited: how often somebody had to wait for one.
    """

    def __init__(self, target: Target, max_connections: int) -> None:
        self.num_waited = 0
        self._target = target
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[Connection] = []

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for one request; it is closed if that does not end well.

        Raises:
            OSError: nobody answers there.
        """
        self.num_waited += self._slots.locked()
        async with self._slots:
            connection = self._pop_idle() or await Connection.open(self._target)
            try:
                yield connection
            finally:
                if connection.is_idle:
                    self._idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Hang up."""
        while (connection := self._pop_idle()) is not None:
            connection.close()

    def _pop_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:  # the server has not closed it meanwhile
                return connection
        return None
