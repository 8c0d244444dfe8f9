"""Small files beside the models of a remote registry: profiles, calibrations."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from models.checkpoint.documents import MAX_DOCUMENT_BYTES
from models.checkpoint.remote.object_store import ObjectStore, writable
from models.errors import RegistryError

_FRESH_S = 5.0
"""For so long what was read is not asked for again."""

_MAX_REMEMBERED = 1000


class _Read(NamedTuple):
    content: bytes | None
    failure: RegistryError | None
    at_s: float

    def result(self) -> bytes | None:
        if self.failure is not None:
            raise RegistryError(str(self.failure))
        return self.content


class StoreDocuments:
    """Documents in a folder of an object store, see `models.checkpoint.documents.Documents`.

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
        self._read: dict[str, _Read] = {}
        self._lock = threading.Lock()

    def display_path(self, name: str) -> str:
        """The file's URL."""
        return f"{self._store.location}/{self._key(name)}"

    def names(self) -> list[str]:
        """See `Documents`."""
        return [entry.key.removeprefix(f"{self._folder}/") for entry in self._store.entries(self._folder)]

    def read(self, name: str) -> bytes | None:
        """See `Documents`."""
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
        """See `Documents`."""
        writable(self._store).put(self._key(name), content)
        self._forget(name)

    def delete(self, name: str) -> bool:
        """See `Documents`."""
        store = writable(self._store)
        there = store.read(self._key(name)) is not None
        store.delete(self._key(name))
        self._forget(name)
        return there

    def _fetch(self, name: str, before: _Read | None) -> _Read:
        try:
            found = self._store.read(self._key(name))
        except RegistryError as error:
            if before is None or before.failure is not None:
                return _Read(None, error, self._clock())
            return _Read(before.content, None, self._clock())
        content = None if found is None else found.content[: MAX_DOCUMENT_BYTES + 1]
        return _Read(content, None, self._clock())

    def _remember(self, name: str, read: _Read) -> None:
        self._read.pop(name, None)
        if len(self._read) >= _MAX_REMEMBERED:  # clients may ask for whatever name they like
            self._read.pop(next(iter(self._read), name), None)  # asked for longest ago
        self._read[name] = read

    def _forget(self, name: str) -> None:
        with self._lock:  # whoever is asking was told what was there before, and takes note of it
            self._read.pop(name, None)

    def _is_fresh(self, read: _Read) -> bool:
        return self._clock() - read.at_s < _FRESH_S

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"
