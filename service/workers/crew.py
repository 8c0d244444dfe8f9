"""The workers of a service, as one of them knows them."""

import os
from dataclasses import dataclass
from pathlib import Path

from service.workers.board import SharedStatus


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """Which worker this is, and how it finds the others.

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
        """Where a worker listens for the others."""
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
