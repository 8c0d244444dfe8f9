"""Private copies of versions whose folder other processes write to.

    <folder>/<64 hex digits>.copy/    a whole version, keyed by its path and the hashes of its files

The operating system ends a process with SIGBUS when a file that it has mapped is truncated, and
`cp` over a file truncates it before writing. Nobody writes to a copy. Processes that load the same
version share one copy, and so its pages. Each holds a `flock` on it, which ends with the process:
the last one to release it removes it, and the copies of killed processes are reused or removed by
the next process that acquires one. Loaded models keep working when their copy is removed, as a map
keeps its file.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path

from models.checkpoint.folders import TEMPORARY_PREFIX, locked_folder, remove_stale_folders
from models.checkpoint.manifest import Manifest, verify_files
from models.errors import IntegrityError

_log = logging.getLogger(__name__)
_SUFFIX = ".copy"
_CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409
"""The request of linux/fs.h that has two files share their blocks until one of them is written to."""


class Copy:
    """A copy that this process holds.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def discard(self) -> None:
        """Remove it unless another process has put a new one in its place, and hold it no longer."""
        try:
            with locked_folder(self.path.parent):
                if self.path.is_dir() and os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                    shutil.rmtree(self.path)
        finally:
            self.release()

    def release(self) -> None:
        """Hold it no longer, and remove it if nobody else holds it. A second time nothing happens."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            with contextlib.suppress(OSError), locked_folder(self.path.parent, wait=False):
                _remove_unused(self.path.parent)


class Copies:
    """Copies in a folder that all processes of a user share.

    Args:
        folder: on a file system with `flock`; there or not. A copy takes neither room nor time where that is the
            registry's, too, and can share blocks between files (Btrfs, XFS).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: weakref.WeakSet[Copy] = weakref.WeakSet()

    def take(self, directory: Path, manifest: Manifest) -> Copy | None:
        """A copy of a version, in which every file was found to be what was published.

        Args:
            directory: the version's, which others may write to at any time.
            manifest: the version's.

        Returns:
            None if no copy can be written, to a full disk say, which is told in the log.

        Raises:
            IntegrityError: a file is not what was published.
        """
        hashes = {name: entry.sha256 for name, entry in manifest.files.items()}
        what = json.dumps([str(directory.absolute()), hashes], sort_keys=True)
        key = hashlib.sha256(what.encode()).hexdigest()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy = self._acquire(self._folder / f"{key}{_SUFFIX}", directory, manifest)
        except OSError as error:
            _log.warning(
                "%s is served without a copy, because %s cannot be written to (%s): copying files over it would kill "
                "this process; make room, or set GRAMOPHONE_REGISTRY_CACHE to another folder",
                directory,
                self._folder,
                error.strerror or error,
            )
            return None
        self._held.add(copy)
        return copy

    def release(self) -> None:
        """Hold none any longer: for a process that ends."""
        for copy in list(self._held):
            copy.release()

    def _acquire(self, path: Path, directory: Path, manifest: Manifest) -> Copy:
        while True:
            with locked_folder(self._folder):  # of several processes that want it, one copies
                copy = Copy(path) if path.is_dir() else None
                _remove_unused(self._folder)
                if copy is None:
                    self._create(path, directory, manifest)
                    return Copy(path)
            try:
                verify_files(path, manifest)
            except IntegrityError as error:
                _log.warning("%s: it is copied anew", error)
                copy.discard()
            else:
                return copy

    def _create(self, path: Path, directory: Path, manifest: Manifest) -> None:
        new = self._folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        try:
            new.mkdir()
            copy_and_verify(directory, manifest, new)
            new.rename(path)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def copy_and_verify(
    directory: Path, manifest: Manifest, new: Path, copied: Callable[[int], object] = int
) -> None:
    """Copy the files of a version, and compare the copies with its manifest.

    Args:
        directory: the version's.
        manifest: the version's, which is not copied.
        new: an empty folder.
        copied: told of bytes as they are copied.

    Raises:
        IntegrityError: a file is not what was published.
        OSError: the file system refused to write.
    """
    try:
        for name, entry in manifest.files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            _copy(directory / name, new / name, entry.bytes, copied)
        verify_files(new, manifest)
    except IntegrityError as error:
        raise IntegrityError(str(error).replace(str(new), str(directory))) from None


def _copy(source: Path, target: Path, size: int, copied: Callable[[int], object]) -> None:
    try:
        read = open(source, "rb", opener=_open_nonblocking)  # noqa: SIM115 - paths take no opener; closed below
    except OSError as error:
        raise IntegrityError(f"{source} cannot be read: {error.strerror}") from None
    with read, target.open("xb") as written:
        found = os.fstat(read.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise IntegrityError(f"{source} has {found.st_size} bytes, {size} were published")
        try:
            fcntl.ioctl(written, _FICLONE, read.fileno())
        except OSError:  # another file system, or one that cannot
            while chunk := read.read(_CHUNK_BYTES):
                written.write(chunk)
                copied(len(chunk))
        else:
            copied(target.stat().st_size)


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file, even if it is a pipe that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


def _remove_unused(folder: Path) -> None:
    """Remove what no process holds; for one that holds the folder."""
    for pattern in (f"{TEMPORARY_PREFIX}*", f"*{_SUFFIX}"):
        remove_stale_folders(folder, pattern)
