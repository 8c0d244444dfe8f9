"""`memory://`: a store in this process, for trying out and for tests."""

import threading
from pathlib import Path

from typing_extensions import override

from models.checkpoint.remote.file_system_store import FsspecStore
from models.checkpoint.remote.object_store import ConditionalStore, ObjectEntry

_lock = threading.RLock()


class MemoryStore(FsspecStore, ConditionalStore):
    """fsspec's files in memory; a lock of the process makes its conditional writes atomic."""

    @override
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        with _lock:
            return super().entries(folder) if self._invoke("exists", self._path(folder)) else []

    @override
    def put(self, key: str, content: bytes) -> None:
        with _lock, self._translate_errors("write", key):
            self._invoke("pipe_file", self._path(key), content)

    @override
    def upload(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    @override
    def put_if_absent(self, key: str, content: bytes) -> bool:
        with _lock:
            if self.read(key) is not None:
                return False
            self.put(key, content)
        return True

    @override
    def put_if_match(self, key: str, content: bytes, tag: str) -> bool:
        with _lock:
            current = self.read(key)
            if current is None or current.tag != tag:
                return False
            self.put(key, content)
        return True

    @override
    def delete(self, key: str) -> None:
        with _lock, self._translate_errors("delete", key):
            if self._invoke("exists", self._path(key)):
                self._invoke("rm_file", self._path(key))
