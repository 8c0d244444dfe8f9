"""Folders that a service's processes share for as long as any of them lives.

Who makes one holds `flock` on it, and so do all that are forked later. The lock goes with the last of them, however
they die, so a folder that nobody holds is left over, and the next service sweeps it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)
_PREFIX = "gramophone-"


class LockedFolder:
    """A new folder that nobody else's user may enter. The folders of its kind that were left over are removed first.

    Args:
        kind: what its name ends with, `gramophone-….kind`, so that nobody's own folder is taken for one.
        parent: where it is to be; None for the folder of temporary files.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_leftovers(parent, kind)
        while True:  # until nobody has swept it before it was held
            self.path = Path(tempfile.mkdtemp(f".{kind}", _PREFIX, parent))  # of mode 0700
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._descriptor)

    def remove(self) -> None:
        """Remove it, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _remove_leftovers(parent: Path, kind: str) -> None:
    """Remove the folders of a kind that are ours and that nobody holds."""
    for path in parent.glob(f"{_PREFIX}*.{kind}"):
        with contextlib.suppress(OSError):  # held, or another user's, or gone by now
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                    _log.info("removed what a service that was killed had left", folder=str(path))
            finally:
                os.close(descriptor)
