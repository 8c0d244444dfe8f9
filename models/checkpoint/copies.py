"""Private copies of versions whose folder other processes write to.

    <folder>/<64 hex digits>.copy/    a complete version, keyed by its path and the hashes of its files

The operating system kills a process with SIGBUS when a file that it has mapped is truncated,
and `cp` over a file truncates it first. No process writes to a copy. Processes that load the
same version share one copy, and so its memory pages. Each holds a `flock` on it, which ends
with the process: the last to release a copy removes it, and copies of killed processes are
reused or removed by the next that acquires one. Loaded models keep working without a copy,
because a mapping keeps its file.
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

from models.checkpoint.folders import locked_folder, remove_stale_folders
from models.checkpoint.manifest import Manifest, verify_files
from models.errors import IntegrityError
from models.files import TEMPORARY_PREFIX

_log = logging.getLogger(__name__)
_SUFFIX = ".copy"
_CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409
"""ioctl of linux/fs.h that makes two files share blocks until one is written."""


class Copy:
    """Copy in a folder that this process holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def discard(self) -> None:
        """Release it, and remove it unless another process replaced it."""
        try:
            with locked_folder(self.path.parent):
                if self.path.is_dir() and os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                    shutil.rmtree(self.path)
        finally:
            self.release()

    def release(self) -> None:
        """Release it, and remove it if no other process holds it; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            with contextlib.suppress(OSError), locked_folder(self.path.parent, wait=False):
                _remove_unused(self.path.parent)


class Copies:
    """Copies in a folder that all processes of a user share.

    Args:
        folder: existing or not, on a file system with `flock`. Copies cost neither space nor time if the
            registry is on the same one and files can share blocks (Btrfs, XFS).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: weakref.WeakSet[Copy] = weakref.WeakSet()

    def take(self, directory: Path, manifest: Manifest) -> Copy | None:
        """Copy a version and verify all files of the copy.

        Args:
            directory: the version's folder, which others may write to at any time.
            manifest: the version's manifest.

        Returns:
            None, with a warning, if no copy can be written (full disk).

        Raises:
            IntegrityError: a file differs from the published one.
        """
        hashes = {name: entry.sha256 for name, entry in manifest.files.items()}
        what = json.dumps([str(directory.absolute()), hashes], sort_keys=True)
        key = hashlib.sha256(what.encode()).hexdigest()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy = self._acquire(self._folder / f"{key}{_SUFFIX}", directory, manifest)
        except OSError as error:
            _log.warning(
                "%s is served without a copy, because %s cannot be written to (%s): overwriting its files would kill "
                "this process; free disk space, or set GRAMOPHONE_REGISTRY_CACHE to another folder",
                directory,
                self._folder,
                error.strerror or error,
            )
            return None
        self._held.add(copy)
        return copy

    def release(self) -> None:
        """Release all copies, at the end of the process."""
        for copy in list(self._held):
            copy.release()

    def _acquire(self, path: Path, directory: Path, manifest: Manifest) -> Copy:
        while True:
            with locked_folder(self._folder):  # only one of several processes copies
                copy = Copy(path) if path.is_dir() else None
                _remove_unused(self._folder)
                if copy is None:
                    new = self._folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
                    try:
                        new.mkdir()
                        copy_and_verify(directory, manifest, new)
                        new.rename(path)
                    finally:
                        shutil.rmtree(new, ignore_errors=True)
                    return Copy(path)
            try:
                verify_files(path, manifest)
            except IntegrityError as error:
                _log.warning("%s; copying again", error)
                copy.discard()
            else:
                return copy


def copy_and_verify(
    directory: Path, manifest: Manifest, new: Path, copied: Callable[[int], object] = int
) -> None:
    """Copy a version's files, and verify the copies by its manifest.

    Args:
        directory: the version's folder.
        manifest: the version's manifest, which is not copied.
        new: an empty folder.
        copied: callback for the bytes copied since the last call.

    Raises:
        IntegrityError: a file differs from the published one.
        OSError: writing failed.
    """
    try:
        for name, entry in manifest.files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            _copy(directory / name, new / name, entry.bytes, copied)
        verify_files(new, manifest)
    except IntegrityError as error:
        raise IntegrityError(str(error).replace(str(new), str(directory))) from None


def _copy(source: Path, target: Path, size: int, copied: Callable[[int], object]) -> None:
    try:  # without blocking, even for a pipe without a writer; closed below
        read = open(source, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))  # noqa: SIM115
    except OSError as error:
        raise IntegrityError(f"{source} cannot be read: {error.strerror}") from None
    with read, target.open("xb") as written:
        found = os.fstat(read.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise IntegrityError(f"{source} has {found.st_size} bytes, but {size} were published")
        try:
            fcntl.ioctl(written, _FICLONE, read.fileno())
        except OSError:  # another file system, or one without shared blocks
            while chunk := read.read(_CHUNK_BYTES):
                written.write(chunk)
                copied(len(chunk))
        else:
            copied(target.stat().st_size)


def _remove_unused(folder: Path) -> None:
    """Remove copies that no process holds; the caller holds the folder's lock."""
    for pattern in (f"{TEMPORARY_PREFIX}*", f"*{_SUFFIX}"):
        remove_stale_folders(folder, pattern)
