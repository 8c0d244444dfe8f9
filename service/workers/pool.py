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
"""How often a worker says that it is alive."""


class SharedStatus:
    """Made before the workers are forked. Every cell has one writer at a time, so nobody waits for anybody.

    Args:
        size: how many workers there are.
    """

    def __init__(self, size: int) -> None:
        rows = 5
        cells = memoryview(mmap.mmap(-1, rows * size * _CELL_BYTES)).cast("q")
        self._connections, self._composed, self._started, self._restarts, self._beats = (
            cells[row * size : (row + 1) * size] for row in range(rows)
        )
        for worker in range(size):
            self.mark_stopped(worker)

    # --- what a worker tells ------------------------------------------------------------------------

    def mark_composed(self, worker: int) -> None:
        """A worker could be put together as its settings say."""
        self._composed[worker] = 1

    def mark_started(self, worker: int) -> None:
        """A worker has loaded what is to be served, or has failed to."""
        self._started[worker] = 1

    def set_connections(self, worker: int, connections: int) -> None:
        """A worker listens, and has so many connections."""
        self._connections[worker] = connections

    def mark_stopped(self, worker: int) -> None:
        """A worker listens no more; its supervisor says so of one that has died."""
        self._connections[worker] = _NOT_LISTENING
        self._beats[worker] = 0

    def heartbeat(self, worker: int) -> None:
        """A worker is alive and at work, or has none."""
        self._beats[worker] += 1

    # --- what the supervisor tells ------------------------------------------------------------------

    def mark_restarted(self, worker: int) -> None:
        """A worker is started once more."""
        self._restarts[worker] += 1

    # --- what all may ask -----------------------------------------------------------------------------

    def was_composed(self, worker: int) -> bool:
        """Return whether the pool was ever composed."""
        return bool(self._composed[worker])

    @property
    def all_started(self) -> bool:
        """Return whether every worker has ever been ready; a later death changes nothing, as the others serve."""
        return all(self._started)

    @property
    def connections(self) -> list[int | None]:
        """Connections of each worker, None where it does not listen."""
        return [None if count == _NOT_LISTENING else count for count in self._connections]

    @property
    def heartbeats(self) -> list[int]:
        """Count of heartbeats of each worker; 0 before its first."""
        return list(self._beats)

    @property
    def restarts(self) -> list[int]:
        """Count of restarts of each worker."""
        return list(self._restarts)


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """Identity of a worker, and the means to find its peers.

    Attributes:
        number: of this worker, from 0.
        size: how many there are.
        name: of the service in handles of states; a worker's is this and its number.
        status: what all tell all.
        folder: of the workers' own sockets; nobody else's user may enter it.
        weights: where what models compute from their weights lies, for all workers.
        lifeline: descriptor of a pipe that ends when the supervisor does.
        is_restarted: whether it takes the place of one that has died.
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
        """This worker's name in handles of states."""
        return self.process_names[self.number]

    @property
    def process_names(self) -> list[str]:
        """Every worker's name in handles."""
        return [f"{self.name}-{number}" for number in range(self.size)]

    def socket_of(self, number: int) -> Path:
        """Return the socket on which a worker listens for its peers."""
        return self.folder / f"{number}.sock"

    @property
    def peer_numbers(self) -> list[int]:
        """The numbers of all but this one."""
        return [number for number in range(self.size) if number != self.number]

    @property
    def num_threads(self) -> int:
        """A worker's share of the cores."""
        return max(1, len(_cores()) // self.size)

    def pin(self) -> None:
        """Stay on one core: worker i on the i-th, round and round."""
        cores = _cores()
        os.sched_setaffinity(0, {cores[self.number % len(cores)]})


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))
