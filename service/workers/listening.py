"""Taking connections from the socket that all workers share, each as many as the others.

Clients keep their connections, so whoever takes a burst of them keeps its work for good. Left to the system, all of a
burst of eight went to one of two workers now and then; with a socket each (`SO_REUSEPORT`) six did, and the queue of a
socket of one's own is lost with the worker that dies. So there is one queue, and a worker that has more connections
than another leaves the next one to that for some milliseconds.
"""

import asyncio
import socket
from collections.abc import Callable

import structlog

from service.workers.crew import Crew

_log = structlog.get_logger(__name__)
_TURN_S = 0.001
_PATIENCE_TURNS = 100
"""After so many turns in which a less busy worker has taken nothing, it is not waited for until it takes something."""

_NO_ROOM_S = 0.1


class FairListener:
    """Takes connections when it is this worker's turn. Belongs to the event loop.

    Args:
        listening: the shared socket.
        crew: the workers, which see each other's number of connections.
        connect: makes a connection of an accepted socket.
    """

    def __init__(
        self,
        listening: socket.socket,
        crew: Crew,
        connect: Callable[[socket.socket], None],
    ) -> None:
        self._socket = listening
        self._socket.settimeout(0)
        self._number = crew.number
        self._board = crew.board
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._turns = 0
        self._in_vain: dict[int, int] = {}  # workers that were waited for, and their connections then
        self._connections = 0
        self._is_closed = False
        self._tell()
        self._listen()

    def ended(self) -> None:
        """One of the connections is no more."""
        self._connections -= 1
        self._tell()

    def close(self) -> None:
        """Take no more."""
        if self._is_closed:
            return
        self._is_closed = True
        self._board.stopped(self._number)
        self._rest(None)
        self._socket.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    def _listen(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._arrived)

    def _rest(self, seconds: float | None) -> None:
        self._loop.remove_reader(self._socket.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._listen)

    def _arrived(self) -> None:
        """A connection waits for whoever takes it."""
        if self._is_for_another():
            self._rest(_TURN_S)
            return
        self._turns = 0
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # another worker was quicker, or the client has gone
        except OSError as error:
            _log.error("a connection could not be taken", reason=str(error))
            self._rest(_NO_ROOM_S)  # no descriptors are left, for instance
            return
        self._connections += 1
        self._tell()
        self._connect(accepted)

    def _is_for_another(self) -> bool:
        """Whether one with fewer connections is to take it, and is not known to take none."""
        fewer = {
            worker: count
            for worker, count in enumerate(self._board.connections)
            if count is not None and count < self._connections and self._in_vain.get(worker) != count
        }
        if not fewer:
            self._turns = 0
            return False
        self._turns += 1
        if self._turns <= _PATIENCE_TURNS:
            return True
        self._in_vain.update(fewer)
        self._turns = 0
        return False

    def _tell(self) -> None:
        if not self._is_closed:
            self._board.connected(self._number, self._connections)
