"""Documents in a registry, next to its models: small JSON files, replaced atomically.

    <root>/<folder>/<name>.json         visible once its file has this name
    <root>/<folder>/.tmp-…              file being written; ignored by readers

The kinds are subclasses of `DocumentStore` beside their features: profiles
(`models.reranking.ranking`), calibrations (`models.checking.error_model`) and tables of errors
(`models.checking.error_model`).

Versions are immutable, but a calibration depends on the text that it was measured on, so
calibrations are separate files and can be replaced. Profiles and calibrations remember a version and
serve later ones too: a publication must not make requests fail.
"""

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from models.checkpoint.registry import Address, open_store
from models.checkpoint.stores import FolderStore, require_writable
from models.errors import DocumentError, InputError, RegistryError

MAX_DOCUMENT_BYTES = 1 << 20

_CACHE_TTL_S = 5.0
"""Lifetime of a cached document."""

_MAX_CACHED_DOCUMENTS = 1000
_NAMES = ""
"""Key of the cached list of names."""
_SUFFIX = ".json"

_Document = TypeVar("_Document", bound="StoredDocument")


class StoredDocument(BaseModel):
    """Immutable document or part of one, of exact types, finite numbers and no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _CachedRead(NamedTuple):
    content: bytes | None
    failure: RegistryError | None
    at_s: float

    def result(self) -> bytes | None:
        if self.failure is not None:
            raise RegistryError(str(self.failure))
        return self.content


class DocumentStore(Generic[_Document]):
    """Documents of one kind in a registry, which need not have models. Subclasses check the names.

    All methods raise RegistryError if the registry cannot be read or written. Reads from a remote
    registry, part of requests, are cached for some seconds, and while the store cannot be reached.

    Args:
        registry: its address.
        clock: monotonic clock in seconds.

    Attributes:
        folder: folder name; it starts with a dot, as model names cannot.

    Raises:
        RegistryError: a remote registry needs a package that is not installed.
        InputError: the address is not valid for a registry.
    """

    folder: ClassVar[str]
    _kind: ClassVar[type[BaseModel]]
    _what: ClassVar[str]
    """Name of the kind in messages."""
    _hint: ClassVar[str]
    """Remedy for a damaged document."""
    _name: ClassVar[str] = ""
    """Field that must equal the document's name."""

    def __init__(self, registry: Address, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = open_store(registry)
        self._is_remote = not isinstance(self._store, FolderStore)
        self._clock = clock
        self._read: dict[str, _CachedRead] = {}
        self._lock = threading.Lock()

    def display_path(self, name: str) -> str | Path:
        """Return the path or URL of a document, for messages."""
        path = f"{self._store.location}/{self._key(name)}"
        return path if self._is_remote else Path(path)

    def names(self) -> list[str]:
        """Return the sorted names of the documents; cached like their contents."""
        files = (self.read_bytes(_NAMES) or b"").decode().splitlines()
        # keys in a bucket can have any form
        known = (
            name for name in files if name.endswith(_SUFFIX) and not name.startswith(".") and "/" not in name
        )
        return sorted(name.removesuffix(_SUFFIX) for name in known)

    def read_bytes(self, name: str) -> bytes | None:
        """Return a document's first bytes, up to MAX_DOCUMENT_BYTES + 1; None if it does not exist."""
        if not self._is_remote:
            return self._fetch(name, None).result()
        known = self._read.get(name)
        # while another thread reads the store, old content is fine
        if not self._is_fresh(known) and self._lock.acquire(blocking=known is None):
            try:
                known = self._read.get(name)
                if not self._is_fresh(known):
                    known = self._fetch(name, known)
                    self._read.pop(name, None)
                    # clients choose the names, in any number
                    if len(self._read) >= _MAX_CACHED_DOCUMENTS:
                        self._read.pop(next(iter(self._read), name), None)  # the oldest read
                    self._read[name] = known
            finally:
                self._lock.release()
        assert known is not None  # noqa: S101 - otherwise the lock was awaited
        return known.result()

    def write_bytes(self, name: str, content: bytes) -> None:
        """Store a document, replacing one with the same name."""
        require_writable(self._store).put(self._key(name), content)
        self._forget(name)

    def _find(self, name: str) -> _Document | None:
        """Return a document, or None if there is none.

        Raises:
            DocumentError: its file is damaged, or of another name.
        """
        content = self.read_bytes(name)
        if content is None:
            return None
        try:
            document: _Document = _parse(self._kind, content, f"the {self._what}")
            if self._name and getattr(document, self._name) != name:
                raise InputError(f"it is that of {getattr(document, self._name)!r}, not of {name!r}")  # noqa: TRY301 - same message
        except InputError as error:
            path = self.display_path(name)
            raise DocumentError(path, f"not a {self._what}: {error}", hint=self._hint) from None
        return document

    def _put(self, name: str, document: _Document) -> str | Path:
        """Store a document, replacing an earlier one; return its path or URL.

        Raises:
            InputError: it is too large to be read.
        """
        content = document.model_dump_json(indent=1).encode() + b"\n"
        if len(content) > MAX_DOCUMENT_BYTES:
            raise InputError(
                f"the {self._what} has {len(content)} bytes; the maximum is {MAX_DOCUMENT_BYTES}",
                param=self._what,
            )
        self.write_bytes(name, content)
        return self.display_path(name)

    def _delete(self, name: str) -> bool:
        """Remove a document; return True if it existed."""
        store = require_writable(self._store)
        there = store.read(self._key(name), 1) is not None
        store.delete(self._key(name))
        self._forget(name)
        return there

    def _fetch(self, name: str, before: _CachedRead | None) -> _CachedRead:
        try:
            if name == _NAMES:
                entries = self._store.entries(self.folder)
                keys = "\n".join(entry.key.removeprefix(f"{self.folder}/") for entry in entries)
                return _CachedRead(keys.encode(), None, self._clock())
            found = self._store.read(self._key(name), MAX_DOCUMENT_BYTES + 1)
        except RegistryError as error:
            if before is None or before.failure is not None:
                return _CachedRead(None, error, self._clock())
            return before._replace(at_s=self._clock())
        return _CachedRead(found and found.content, None, self._clock())

    def _forget(self, name: str) -> None:
        with self._lock:  # wait for a read, which would cache the old content
            self._read.pop(name, None)
            self._read.pop(_NAMES, None)

    def _is_fresh(self, read: _CachedRead | None) -> bool:
        return read is not None and self._clock() - read.at_s < _CACHE_TTL_S

    def _key(self, name: str) -> str:
        return f"{self.folder}/{name}{_SUFFIX}"


@lru_cache(maxsize=48)  # requests read them; some have thousands of entries
def _parse(kind: type[_Document], content: bytes, what: str) -> _Document:
    """Parse JSON; errors name the field, or `what` for all of it, and the value."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise InputError(f"it has more than {MAX_DOCUMENT_BYTES} bytes, the maximum")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))[:80] or what
        shown = repr(first["input"])[:80]
        raise InputError.of(field, f"is {shown}: {first['msg']}") from None
