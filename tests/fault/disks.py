"""Disks that are temporarily full.

Two kinds, both refusals by the kernel, which libraries in any language see: files that may not grow (RLIMIT_FSIZE),
available to any process; and a small in-memory file system that is filled up (ENOSPC), if this process may mount.
"""

import contextlib
import os
import resource
import subprocess
from pathlib import Path

_SIZE_BYTES = 32 << 20


class GrowthLimit:
    """Folder in which no file can grow past a size while it is full; the limit holds for the whole process."""

    refusal = "File too large"

    def __init__(self, folder):
        self.folder = folder

    @contextlib.contextmanager
    def full(self, room_bytes=0):
        """Let no file grow past `room_bytes` during the block."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


class SmallDisk:
    """Separate file system that a filler file fills up."""

    refusal = "No space left on device"

    def __init__(self, root):
        self._root = root
        self.folder = root / "used"
        self.folder.mkdir()

    @contextlib.contextmanager
    def full(self, room_bytes=0):
        """Leave `room_bytes` free during the block, rounded up to pages."""
        filler = self._root / "filler"
        there = os.statvfs(self._root)
        pages = there.f_bavail - -(-room_bytes // there.f_frsize)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, pages * there.f_frsize)
        try:
            yield
        finally:
            filler.unlink()


def _mount(folder):
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "none", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _unmount(folder):
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def _may_mount():
    place = Path("/tmp") / f"gramophone-mount-{os.getpid()}"  # noqa: S108 - empty, and gone at once
    place.mkdir()
    try:
        mounted = _mount(place)
        if mounted:
            _unmount(place)
    except OSError:  # no mount program
        return False
    else:
        return mounted
    finally:
        place.rmdir()


KINDS = ("growth limit", "small disk") if os.geteuid() == 0 and _may_mount() else ("growth limit",)
"""Kinds of disks available to this process."""


@contextlib.contextmanager
def disk_of_kind(kind, folder):
    """Yield a disk at an empty folder."""
    if kind == "growth limit":
        yield GrowthLimit(folder)
        return
    assert _mount(folder)
    try:
        yield SmallDisk(folder)
    finally:
        _unmount(folder)
