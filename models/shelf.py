"""Arrays that are computed from a model's weights, once: in each process, or by the first of several that share them.

What is shared lies in files that are mapped, so its pages are in memory once, whoever comes second reads
instead of computing, and nobody can change them for another. A file is never trusted for its name: its size
and every byte are checked (`tensor_file.map_hashed_tensors`). One that nobody has mapped any more is removed when the
next is laid, so that models which are replaced by newer ones leave nothing behind.
"""

import fcntl
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import IntegrityError
from models.tensor_file import Arrays, map_hashed_tensors, write_hashed_tensors

_log = logging.getLogger(__name__)

_LOCK_FILE = ".lock"
_UNFINISHED_FILE = ".unfinished"  # there is one at a time, as the lock is held


class PackedWeightCache(ABC):
    """Where computed arrays lie, by name."""

    @abstractmethod
    def get_or_make(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of a name, which must be what `make` returns; it is called if they are not there yet."""

    def section(self, name: str) -> "PackedWeightCache":
        """A part of the shelf, whose names are its own."""
        return _WeightCacheSection(self, name)


class _WeightCacheSection(PackedWeightCache):
    def __init__(self, shelf: PackedWeightCache, name: str) -> None:
        self._shelf = shelf
        self._name = name

    def get_or_make(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        return self._shelf.get_or_make(f"{self._name}.{name}", make)


class PrivateWeightCache(PackedWeightCache):
    """This process's own memory: nothing is kept, nothing shared."""

    def get_or_make(self, name: str, make: Callable[[], Arrays]) -> Arrays:  # noqa: ARG002 - nothing is looked up
        """What `make` returns."""
        return make()


class SharedWeightCache(PackedWeightCache):
    """Files in a folder that processes of one host share.

    A process that is the first to need some arrays computes them while others wait. Where the folder cannot
    be used, each computes its own: with a line in the log, and without an error.

    Args:
        folder: on a file system with `flock`, best one in memory; nobody else may be able to write to it.
        key: what the arrays are computed from: equal if and only if they are.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._key = key

    def get_or_make(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of a name, mapped; writing to them changes this process's copy only."""
        path = self._folder / f"{self._key}.{name}"
        try:
            found = _map_existing(path)
            if found is not None:
                return found
            with _lock_folder(self._folder):
                return _map_existing(path) or _write_and_map(path, make())
        except OSError as error:
            _log.warning("weights are not shared between processes: %s", error)
            return make()


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Wait until no other process lays anything; the lock goes with a process that dies."""
    with (folder / _LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _map_existing(path: Path) -> Arrays | None:
    """What lies there; None if nothing does, or what does is damaged.

    The lock that says that somebody has mapped the file belongs to its descriptor, of which the map keeps a duplicate.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            if not os.fstat(file.fileno()).st_nlink:
                return None  # it was removed before the lock was had
            return map_hashed_tensors(file)
    except FileNotFoundError:
        return None
    except IntegrityError as error:
        _log.warning("%s is damaged and laid anew: %s", path, error)
        return None


def _write_and_map(path: Path, made: Arrays) -> Arrays:
    """Write a file whole, or not at all, and map it; what was made if there is no room for it."""
    unfinished = path.with_name(_UNFINISHED_FILE)
    try:
        _remove_unused(path.parent)
        with unfinished.open("w+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            write_hashed_tensors(file, made)
            mapped = map_hashed_tensors(file)
            unfinished.replace(path)
            return mapped
    except (OSError, IntegrityError) as error:
        _log.warning("%s cannot be shared between processes: %s", path, error)
        unfinished.unlink(missing_ok=True)
        return made


def _remove_unused(folder: Path) -> None:
    """Remove every file that no process has mapped."""
    for path in folder.iterdir():
        if path.name == _LOCK_FILE:
            continue
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            path.unlink()
