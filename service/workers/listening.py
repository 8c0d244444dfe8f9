"""Taking connections from the socket that all workers share, each as many as the others.

Clients keep their connections, so whoever takes a burst of them keeps its work for good. Left to the system, all of a
burst of eight went to one of two workers now and then; with a socket each (`SO_REUSEPORT`) six did, and the queue of a
socket of one's own is lost with the worker that dies. So there is one queue, and a worker that has more connections
than another leaves the next one to that for some milliseconds.
"""

import socket
from collections.abc import Callable

from service.listening import SocketListener
from service.workers.crew import WorkerPool

_DEFER_S = 0.001
_MAX_DEFERRALS = 100
"""After so many turns in which a less busy worker has taken nothing, it is not waited for until it takes something."""


class FairListener(SocketListener):
    """Takes connections when it is this worker's turn. Belongs to the event loop.

    Args:
        listening: the shared socket.
        crew: the workers, which see each other's number of connections.
        connect: makes a connection of an accepted socket.
    """

    def __init__(
        self,
        listening: socket.socket,
        crew: WorkerPool,
        connect: Callable[[socket.socket], None],
    ) -> None:
        self._number = crew.number
        self._status = crew.status
        self._is_closed = False
        self._deferrals = 0
        self._unresponsive: dict[int, int] = {}  # workers that were waited for, and their connections then
        self._connections = 0
        self._publish_count()

        def counted(accepted: socket.socket) -> None:
            self._connections += 1
            self._publish_count()
            connect(accepted)

        super().__init__(listening, counted)

    def connection_ended(self) -> None:
        """One of the connections is no more."""
        self._connections -= 1
        self._publish_count()

    def close(self) -> None:
        """Take no more."""
        if not self._is_closed:
            self._status.mark_stopped(self._number)
        super().close()

    def _on_readable(self) -> None:
        """A connection waits for whoever takes it."""
        if self._is_deferred():
            self._pause(_DEFER_S)
            return
        self._deferrals = 0
        super()._on_readable()

    def _is_deferred(self) -> bool:
        """Whether one with fewer connections is to take it, and is not known to take none."""
        fewer = {
            worker: count
            for worker, count in enumerate(self._status.connections)
            if count is not None and count < self._connections and self._unresponsive.get(worker) != count
        }
        if not fewer:
            self._deferrals = 0
            return False
        self._deferrals += 1
        if self._deferrals <= _MAX_DEFERRALS:
            return True
        self._unresponsive.update(fewer)
        self._deferrals = 0
        return False

    def _publish_count(self) -> None:
        if not self._is_closed:
            self._status.set_connections(self._number, self._connections)
