"""Small files beside the models of a remote registry: profiles, calibrations."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from models.checkpoint.documents import MAX_DOCUMENT_BYTES
from models.checkpoint.remote.object_store import ObjectStore, require_writable
from models.errors import RegistryError

_CACHE_TTL_S = 5.0
"""For so long what was read is not asked for again."""

_MAX_CACHED_DOCUMENTS = 1000


class _CachedRead(NamedTuple):
    content: bytes | None
    failure: RegistryError | None
    at_s: float

    def result(self) -> bytes | None:
        if self.failure is not None:
            raise RegistryError(str(self.failure))
        return self.content


class RemoteDocumentStore:
    """Documents in a folder of an object store, see `models.checkpoint.documents.DocumentStore`.

    What was read is remembered for some seconds, as requests ask for it, and for as long as the store cannot be
    reached. Each write is atomic, and the last one stays.

    Args:
        store: where the registry lies.
        folder: in it.
        clock: seconds, monotonic.
    """

    def __init__(
        self, store: ObjectStore, folder: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._folder = folder
        self._clock = clock
        self._read: dict[str, _CachedRead] = {}
        self._lock = threading.Lock()

    def display_path(self, name: str) -> str:
        """The file's URL."""
        return f"{self._store.location}/{self._key(name)}"

    def names(self) -> list[str]:
        """See `DocumentStore`."""
        return [entry.key.removeprefix(f"{self._folder}/") for entry in self._store.entries(self._folder)]

    def read(self, name: str) -> bytes | None:
        """See `DocumentStore`."""
        before = self._read.get(name)
        if before is not None and self._is_fresh(before):
            return before.result()
        if not self._lock.acquire(blocking=before is None):  # somebody asks: what was true is good enough
            assert before is not None  # noqa: S101 - else it was waited for
            return before.result()
        try:
            before = self._read.get(name)
            if before is None or not self._is_fresh(before):
                before = self._fetch(name, before)
                self._remember(name, before)
            return before.result()
        finally:
            self._lock.release()

    def write(self, name: str, content: bytes) -> None:
        """See `DocumentStore`."""
        require_writable(self._store).put(self._key(name), content)
        self._forget(name)

    def delete(self, name: str) -> bool:
        """See `DocumentStore`."""
        store = require_writable(self._store)
        there = store.read(self._key(name)) is not None
        store.delete(self._key(name))
        self._forget(name)
        return there

    def _fetch(self, name: str, before: _CachedRead | None) -> _CachedRead:
        try:
            found = self._store.read(self._key(name))
        except RegistryError as error:
            if before is None or before.failure is not None:
                return _CachedRead(None, error, self._clock())
            return _CachedRead(before.content, None, self._clock())
        content = None if found is None else found.content[: MAX_DOCUMENT_BYTES + 1]
        return _CachedRead(content, None, self._clock())

    def _remember(self, name: str, read: _CachedRead) -> None:
        self._read.pop(name, None)
        if len(self._read) >= _MAX_CACHED_DOCUMENTS:  # clients may ask for whatever name they like
            self._read.pop(next(iter(self._read), name), None)  # asked for longest ago
        self._read[name] = read

    def _forget(self, name: str) -> None:
        with self._lock:  # whoever is asking was told what was there before, and takes note of it
            self._read.pop(name, None)

    def _is_fresh(self, read: _CachedRead) -> bool:
        return self._clock() - read.at_s < _CACHE_TTL_S

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"
