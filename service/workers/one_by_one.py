"""Changes of what is served, made one after the other whichever worker they are asked of."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.workers.crew import WorkerPool

_LOCK = "changes.lock"
_POLL_S = 0.01


class CrossProcessLock:
    """A lock that one request of one worker has at a time; it goes with a worker that dies.

    Args:
        crew: the workers, in whose folder it lies.
    """

    def __init__(self, crew: WorkerPool) -> None:
        self._path = crew.folder / _LOCK

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for the turn, and have it while the block runs.

        Each has a descriptor of its own, so that requests of one worker wait for one another as well.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _try_lock(descriptor):  # noqa: ASYNC110 - another process gives it back
                await asyncio.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
