"""Folders that one process works in at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from models.checkpoint.folders import report_write_errors
from models.errors import InvalidInputError


@contextlib.contextmanager
def locked_folder(folder: Path, *, busy: InvalidInputError) -> Iterator[None]:
    """Make a folder if need be, and hold its lock, which the system drops when the process dies, however it dies.

    Args:
        folder: may be removed by whoever holds it.
        busy: what to raise where another process holds it.

    Raises:
        InvalidInputError: `busy`.
        RegistryError: the file system refused.
    """
    with report_write_errors(folder):
        descriptor = _lock(folder, busy)
        while not _is_current(folder, descriptor):  # who held it has removed it since it was opened
            os.close(descriptor)
            descriptor = _lock(folder, busy)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, busy: InvalidInputError) -> int:
    """An open folder that nobody else has locked."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise busy from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_current(folder: Path, descriptor: int) -> bool:
    """Whether an open folder is still the one of that name."""
    return folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())
