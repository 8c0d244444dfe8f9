"""Folders shared by processes: locks, temporary folders, flushing, atomic renames.

Also the folders of the download cache and users' data, process-wide settings.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from models.errors import RegistryAccessError, RegistryError
from models.files import TEMPORARY_PREFIX

_DEFAULT_CACHE_FOLDER = Path("~/.cache/gramophone")
_chosen_cache_folder: list[Path] = []

_data_home = [Path("~/.local/share")]

_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def set_cache_folder(folder: Path) -> None:
    """Set the process's cache folder, as the command line does once, from the environment."""
    _chosen_cache_folder[:] = [folder]


def cache_folder(given: Path | None = None) -> Path:
    """Return the given folder, else the configured one, else `~/.cache/gramophone`.

    Raises:
        RegistryError: the home folder is unknown, as in some containers, or there is no such user.
    """
    folder = given or (_chosen_cache_folder or [_DEFAULT_CACHE_FOLDER])[0]
    try:
        return folder.expanduser()
    except RuntimeError:
        raise RegistryError(
            f"the cache of remote registries is in a home folder that does not exist: {folder}; set "
            "GRAMOPHONE_REGISTRY_CACHE to a folder"
        ) from None


def set_data_home(folder: Path) -> None:
    """Set the folder of users' data, as the command line does once, from the environment."""
    _data_home[:] = [folder]


def data_folder() -> Path:
    """Return the folder of users' data, not expanded; by default `~/.local/share/gramophone`."""
    return _data_home[0] / "gramophone"


@contextlib.contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Convert file system errors to one that names the folder.

    Raises:
        RegistryAccessError: the folder may only be read.
        RegistryError: writing failed otherwise.
    """
    try:
        yield
    except shutil.Error as error:
        # for a copied tree: source, target and reason of each file
        raise RegistryError(f"cannot write to {folder}: {error.args[0][0][2]}") from error
    except OSError as error:
        problem = f"cannot write to {folder}: {error.strerror or error}"
        if error.errno in _FORBIDDEN:
            problem += "; write to it where that is allowed, or allow this process to write"
            raise RegistryAccessError(problem) from error
        raise RegistryError(problem) from error


@contextlib.contextmanager
def locked_folder(folder: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold a folder's lock, which the system releases if the process dies; yield its descriptor.

    Raises:
        BlockingIOError: `wait` is false, and another process holds the lock.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Create a folder that this process locks; remove it at the end unless renamed.

    Temporary folders of dead processes in the same parent are removed first.
    """
    folder = parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    with contextlib.ExitStack() as locks:
        locks.callback(shutil.rmtree, folder, ignore_errors=True)
        parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(parent):  # other processes must not remove the folder before it is locked
            remove_stale_folders(parent)
            folder.mkdir()
            locks.enter_context(locked_folder(folder))
        yield folder


def make_read_only(directory: Path) -> None:
    """Remove write permission from a folder's files; it can still be removed."""
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode & 0o444)


def fsync_tree(directory: Path) -> None:
    """Flush a folder and its content to disk."""
    for path in [*directory.rglob("*"), directory]:
        fsync_path(path)


def fsync_path(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_stale_folders(parent: Path, pattern: str = f"{TEMPORARY_PREFIX}*") -> int:
    """Remove folders that no process locks; default: temporary ones of dead processes.

    Returns:
        Number of removed folders.
    """
    removed = 0
    for path in parent.glob(pattern):
        with contextlib.suppress(OSError), locked_folder(path, wait=False):
            shutil.rmtree(path)
            removed += 1
    return removed
