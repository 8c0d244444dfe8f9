"""Worker pool as seen by one worker; status shared by workers and supervisor."""

import asyncio
import fcntl
import mmap
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from models.cores import usable_threads

_CELL_BYTES = 8
_LOCK = "changes.lock"
_POLL_S = 0.01

NOT_LISTENING = -1
"""Number of connections of a worker that does not listen."""

HEARTBEAT_INTERVAL_S = 0.2
"""Interval of a worker's heartbeats."""


class SharedStatus:
    """Status of all workers in shared memory, created before the fork.

    Each cell has one writer and needs no lock.

    Attributes:
        connections: connections of each worker, or `NOT_LISTENING`.
        composed: 1 for each worker that has ever built its application.
        started: 1 for each worker that has ever finished its initial loads; kept after its death, because its
            peers serve.
        restarts: restarts of each worker, written by the supervisor.
        heartbeats: heartbeats of each worker, while it makes progress or is idle; 0 before the first.
    """

    def __init__(self, size: int) -> None:
        rows = 5
        cells = memoryview(mmap.mmap(-1, rows * size * _CELL_BYTES)).cast("q")
        self.connections, self.composed, self.started, self.restarts, self.heartbeats = (
            cells[row * size : (row + 1) * size] for row in range(rows)
        )
        for worker in range(size):
            self.mark_stopped(worker)

    def mark_stopped(self, worker: int) -> None:
        """Record that a worker stopped listening; called by the supervisor for a dead one."""
        self.connections[worker] = NOT_LISTENING
        self.heartbeats[worker] = 0


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """Identity of a worker, and access to its peers.

    Attributes:
        number: number of this worker, from 0.
        size: number of workers.
        name: name of the service in state handles; a worker's name adds its number.
        status: status shared by all workers.
        folder: folder of the workers' peer sockets, closed to other users.
        weights: folder of arrays that models compute from weights, shared by all workers.
        lifeline: descriptor of a pipe that closes with the supervisor.
        is_restarted: True if this worker replaces a dead one.
    """

    number: int
    size: int
    name: str
    status: SharedStatus
    folder: Path
    weights: Path
    lifeline: int
    is_restarted: bool = False

    @property
    def process_names(self) -> list[str]:
        """Names of all workers in state handles."""
        return [f"{self.name}-{number}" for number in range(self.size)]

    def socket_of(self, number: int) -> Path:
        """Return the socket on which a worker listens for its peers."""
        return self.folder / f"{number}.sock"

    @asynccontextmanager
    async def lock_changes(self) -> AsyncIterator[None]:
        """Exclude changes by all workers' other requests; the lock ends with this process.

        Each request has its own descriptor, so a worker's requests exclude each other, too.
        """
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # another request has the lock
                    await asyncio.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)

    @property
    def num_threads(self) -> int:
        """Threads of a worker: its share of the cores."""
        return max(1, usable_threads() // self.size)

    def pin(self) -> None:
        """Pin this worker to one core: worker i to core i modulo the number of cores."""
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[self.number % len(cores)]})
