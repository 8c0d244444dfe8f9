"""Worker pool as seen by one worker, and the status shared by all workers and the supervisor.

`SharedStatus` is anonymous shared memory, made before the workers are forked. Every cell has one
writer at a time, so no locks are needed.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

_CELL_BYTES = 8
_NOT_LISTENING = -1

HEARTBEAT_INTERVAL_S = 0.2
"""Interval of a worker's heartbeats."""


class SharedStatus:
    """Status of all workers in shared memory, made before they are forked; each cell has one writer, so no locks.

    Args:
        size: number of workers.
    """

    def __init__(self, size: int) -> None:
        rows = 5
        cells = memoryview(mmap.mmap(-1, rows * size * _CELL_BYTES)).cast("q")
        self._connections, self._composed, self._started, self._restarts, self._beats = (
            cells[row * size : (row + 1) * size] for row in range(rows)
        )
        for worker in range(size):
            self.mark_stopped(worker)

    # --- written by workers --------------------------------------------------------------------------

    def mark_composed(self, worker: int) -> None:
        """Record that a worker was composed from its settings."""
        self._composed[worker] = 1

    def mark_started(self, worker: int) -> None:
        """Record that a worker has loaded its models, or failed to."""
        self._started[worker] = 1

    def set_connections(self, worker: int, connections: int) -> None:
        """Record the number of connections of a listening worker."""
        self._connections[worker] = connections

    def mark_stopped(self, worker: int) -> None:
        """Record that a worker stopped listening; the supervisor calls this for a dead one."""
        self._connections[worker] = _NOT_LISTENING
        self._beats[worker] = 0

    def heartbeat(self, worker: int) -> None:
        """Record that a worker is alive and makes progress, or is idle."""
        self._beats[worker] += 1

    # --- written by the supervisor --------------------------------------------------------------------

    def mark_restarted(self, worker: int) -> None:
        """Count a restart of a worker."""
        self._restarts[worker] += 1

    # --- read by all ----------------------------------------------------------------------------------

    def was_composed(self, worker: int) -> bool:
        """Return whether a worker was ever composed."""
        return bool(self._composed[worker])

    @property
    def all_started(self) -> bool:
        """Return whether every worker has once been ready; a later death changes nothing, as the others serve."""
        return all(self._started)

    @property
    def connections(self) -> list[int | None]:
        """Number of connections of each worker; None for one that does not listen."""
        return [None if count == _NOT_LISTENING else count for count in self._connections]

    @property
    def heartbeats(self) -> list[int]:
        """Number of heartbeats of each worker; 0 before the first."""
        return list(self._beats)

    @property
    def restarts(self) -> list[int]:
        """Number of restarts of each worker."""
        return list(self._restarts)


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """Identity of a worker, and the means to find its peers.

    Attributes:
        number: number of this worker, from 0.
        size: number of workers.
        name: name of the service in handles of states; a worker's name adds its number.
        status: status shared by all workers.
        folder: folder of the workers' own sockets, closed to other users.
        weights: folder of the arrays that models compute from their weights, shared by all workers.
        lifeline: descriptor of a pipe that ends with the supervisor.
        is_restarted: whether this worker replaces a dead one.
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
    def process_name(self) -> str:
        """Name of this worker in handles of states."""
        return self.process_names[self.number]

    @property
    def process_names(self) -> list[str]:
        """Names of all workers in handles of states."""
        return [f"{self.name}-{number}" for number in range(self.size)]

    def socket_of(self, number: int) -> Path:
        """Return the socket on which a worker listens for its peers."""
        return self.folder / f"{number}.sock"

    @property
    def peer_numbers(self) -> list[int]:
        """Numbers of all other workers."""
        return [number for number in range(self.size) if number != self.number]

    @property
    def num_threads(self) -> int:
        """Threads of a worker, its share of the cores."""
        return max(1, len(_cores()) // self.size)

    def pin(self) -> None:
        """Pin this worker to one core: worker i to core i modulo the number of cores."""
        cores = _cores()
        os.sched_setaffinity(0, {cores[self.number % len(cores)]})


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))
