"""Folders shared by processes: locks, temporary folders, flushing, atomic renames.

Also the folder of the download cache, which is one for the whole process.
"""

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from models.errors import RegistryError

_DEFAULT_CACHE_FOLDER = Path("~/.cache/gramophone")
_chosen_cache_folder: list[Path] = []


def set_cache_folder(folder: Path) -> None:
    """Choose the folder for the whole process; the root of the command line does, which reads the environment."""
    _chosen_cache_folder[:] = [folder]


def cache_folder(given: Path | None = None) -> Path:
    """The folder that is given, else the one that was chosen, else `~/.cache/gramophone`.

    Raises:
        RegistryError: the user has no home folder, as in some containers, or there is no such user.
    """
    folder = given or (_chosen_cache_folder or [_DEFAULT_CACHE_FOLDER])[0]
    try:
        return folder.expanduser()
    except RuntimeError:
        raise RegistryError(
            f"there is no home folder to keep models of remote registries in: {folder}; name a folder by "
            "GRAMOPHONE_REGISTRY_CACHE"
        ) from None


TEMPORARY_PREFIX = ".tmp-"
"""How the names of what is being written begin; readers take no notice of it."""


@contextlib.contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Say which folder cannot be written to.

    Raises:
        RegistryError: the file system refused.
    """
    try:
        yield
    except shutil.Error as error:
        # of a tree that was copied: for each file where from, where to and why
        raise RegistryError(f"cannot write to {folder}: {error.args[0][0][2]}") from error
    except OSError as error:
        raise RegistryError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def locked_folder(folder: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold a folder's lock, which the system drops when the process dies; its descriptor is what is yielded.

    Raises:
        BlockingIOError: it is not waited for, and another holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder, held by this process, and removed at the end if it has not been renamed.

    Those that dead processes left in the same place are removed first.
    """
    folder = parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    with contextlib.ExitStack() as locks:
        locks.callback(shutil.rmtree, folder, ignore_errors=True)
        parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(parent):  # so that nobody takes the new folder for an abandoned one
            remove_stale_folders(parent)
            folder.mkdir()
            locks.enter_context(locked_folder(folder))
        yield folder


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file by one rename; its folder is made if it is missing."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def make_read_only(directory: Path) -> None:
    """Make the files in a folder writable by root only; the folder can be removed as before."""
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode & 0o444)


def fsync_tree(directory: Path) -> None:
    """Have everything in a folder, and the folder, written to the disk."""
    for path in [*directory.rglob("*"), directory]:
        fsync_path(path)


def fsync_path(path: Path) -> None:
    """Have a file or a folder written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_stale_folders(parent: Path, pattern: str = f"{TEMPORARY_PREFIX}*") -> int:
    """Remove folders that nobody holds: temporary ones, whose writer is no more, or those of another pattern.

    Returns:
        How many.
    """
    removed = 0
    for path in parent.glob(pattern):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                removed += 1
            finally:
                os.close(descriptor)
    return removed
