"""Taking connections from a socket, with a rest where there is no room for one.

The event loop's own way tries again and again while a process has no descriptor left, and takes a core for it.
"""

import asyncio
import socket
from collections.abc import Callable

import structlog

_log = structlog.get_logger(__name__)
_RETRY_S = 0.1


class SocketListener:
    """Takes connections as they come. Belongs to the event loop; a server may have it among its own.

    Args:
        listening: the socket.
        connect: makes a connection of an accepted socket.
    """

    def __init__(self, listening: socket.socket, connect: Callable[[socket.socket], None]) -> None:
        self._socket = listening
        self._socket.settimeout(0)
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._listen()

    def close(self) -> None:
        """Take no more."""
        if not self._is_closed:
            self._is_closed = True
            self._pause(None)
            self._socket.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    def _listen(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _pause(self, seconds: float | None) -> None:
        self._loop.remove_reader(self._socket.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._listen)

    def _on_readable(self) -> None:
        """A connection waits for whoever takes it."""
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # another worker was quicker, or the client has gone
        except OSError as error:
            _log.error("a connection could not be taken", reason=str(error))
            self._pause(_RETRY_S)  # no descriptors are left, for instance
            return
        self._connect(accepted)
