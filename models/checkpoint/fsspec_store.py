"""Object stores on fsspec: any file system that can list and read, and `memory://`."""

import contextlib
import hashlib
import math
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec
from typing_extensions import override

from models.checkpoint.stores import ConditionalStore, ObjectEntry, ObjectStore, StoreTimeouts, TaggedContent
from models.errors import RegistryAccessError, RegistryError

_CHUNK_BYTES = 8 << 20

_memory_lock = threading.RLock()


class FsspecStore(ObjectStore):
    """Files below a URL, read-only: fsspec's file systems have no conditional writes.

    Args:
        url: URL of the root.
        patience: timeouts; only asynchronous file systems support them.

    Raises:
        RegistryError: the file system needs a package that is not installed.
    """

    failures: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError)
    """Errors of the file system for a failed operation."""

    def __init__(self, url: str, patience: StoreTimeouts) -> None:
        self.location = url.rstrip("/")
        self._timeouts = patience
        self._opened: dict[int, Any] = {}
        self._root = str(self._file_system._strip_protocol(self.location)).rstrip("/")  # noqa: SLF001 - as in fsspec

    @override
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        with self._report_errors("list", folder):
            if folder:
                return self._found(folder)
            here = self._invoke("ls", self._root, detail=True)
            names = [str(info["name"]).rstrip("/").rpartition("/")[2] for info in here]
            return [entry for name in names if not name.startswith(".") for entry in self._found(name)]

    @override
    def read(self, key: str, num_bytes: int | None = None) -> TaggedContent | None:
        part = {} if num_bytes is None else {"start": 0, "end": num_bytes}
        try:
            with self._report_errors("read", key):
                content = bytes(self._invoke("cat_file", self._path(key), **part))[:num_bytes]
        except FileNotFoundError:
            return None
        return TaggedContent(content, hashlib.sha256(content).hexdigest())

    def chunks(self, key: str, num_bytes: int) -> Iterator[bytes]:
        """Yield the first bytes of an object in pieces; fewer than asked if it is shorter.

        Raises:
            FileNotFoundError: the object does not exist.
        """
        for start in range(0, num_bytes, _CHUNK_BYTES):
            end = min(start + _CHUNK_BYTES, num_bytes)
            with self._report_errors("read", key):
                chunk = self._invoke("cat_file", self._path(key), start=start, end=end, num_bytes=end - start)
            yield chunk

    def _found(self, folder: str) -> list[ObjectEntry]:
        found: Mapping[str, Mapping[str, Any]] = self._invoke("find", self._path(folder), detail=True)
        entries = []
        for path, info in found.items():
            if path.startswith(f"{self._root}/"):
                size, created = info.get("size"), info.get("created")
                modified_s = created if isinstance(created, float) else math.inf  # a float only in memory
                key = path[len(self._root) + 1 :]
                entries.append(ObjectEntry(key, -1 if size is None else int(size), "", modified_s))
        return entries

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _invoke(self, method: str, *arguments: Any, num_bytes: int = 0, **options: Any) -> Any:
        """Call the file system with a timeout."""
        file_system = self._file_system
        if file_system.async_impl:
            options["timeout"] = self._timeouts.call_s + num_bytes / self._timeouts.bytes_per_s
        return getattr(file_system, method)(*arguments, **options)

    @property
    def _file_system(self) -> Any:
        """File system, recreated in a forked process: connections must not be shared."""
        process = os.getpid()
        if process not in self._opened:
            try:
                self._opened = {process: self._open()}
            except (ImportError, ValueError, OSError) as error:
                raise RegistryError(f"the registry {self.location} cannot be opened: {error}") from None
        return self._opened[process]

    def _open(self) -> Any:
        protocol = self.location.partition("://")[0]
        return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)

    @contextlib.contextmanager
    def _report_errors(self, what: str, key: str) -> Iterator[None]:
        """Convert the file system's errors to a RegistryError that names the operation.

        Raises:
            FileNotFoundError: what is to be read does not exist.
        """
        try:
            yield
        except self.failures as error:
            if what == "read" and isinstance(error, FileNotFoundError):
                raise
            path = f"{self.location}/{key}" if key else self.location
            why = (
                "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            )
            forbidden = isinstance(error, PermissionError) and what in {"write", "delete"}
            kind = RegistryAccessError if forbidden else RegistryError
            raise kind(f"cannot {what} {path}: {why}") from error


class MemoryStore(FsspecStore, ConditionalStore):
    """fsspec's files in memory; a process-wide lock makes conditional writes atomic."""

    @override
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        with _memory_lock:
            return super().entries(folder) if self._invoke("exists", self._path(folder)) else []

    @override
    def put(self, key: str, content: bytes) -> None:
        with _memory_lock, self._report_errors("write", key):
            self._invoke("pipe_file", self._path(key), content)

    @override
    def delete(self, key: str) -> None:
        with _memory_lock, self._report_errors("delete", key):
            if self._invoke("exists", self._path(key)):
                self._invoke("rm_file", self._path(key))

    @override
    def put_if_match(self, key: str, content: bytes, tag: str | None) -> bool:
        with _memory_lock:
            return self._put_if_match(key, content, tag)
