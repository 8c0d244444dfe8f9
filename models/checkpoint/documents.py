"""Profiles, calibrations and tables of errors in a registry, next to its models: small files, replaced atomically.

    <root>/<folder>/<name>              visible once its file has this name
    <root>/<folder>/.tmp-…              file being written; ignored by readers
    <root>/.profiles/<name>.json        re-ranking weights, and the versions that they were tuned on
    <root>/.calibrations/name@7.json    precision and recall of error checking, and the version measured
    <root>/.errors/<model>.json         edits in misspellings, for all versions of a model

Versions are immutable, but a calibration depends on the text that it was measured on, so
calibrations are separate files and can be replaced. Profiles and calibrations remember a version and
serve later ones too: a publication must not make requests fail. Documents of a remote registry are
cached for a few seconds, and while the store cannot be reached.
"""

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from models.checking.calibration import Calibration
from models.checking.error_model import ErrorTable
from models.checkpoint.manifest import check_name, is_version_number
from models.checkpoint.registry import Address, open_store
from models.checkpoint.stores import FolderStore, TaggedContent, require_writable
from models.errors import DocumentError, InvalidInputError, RegistryError
from models.reranking.ranking import Profile

_Document = TypeVar("_Document", bound=BaseModel)
MAX_DOCUMENT_BYTES = 1 << 20

_CACHE_TTL_S = 5.0
"""Lifetime of a cached document."""

_MAX_CACHED_DOCUMENTS = 1000
_NAMES = ""
"""Key of the cached list of names."""


class _CachedRead(NamedTuple):
    content: bytes | None
    failure: RegistryError | None
    at_s: float

    def result(self) -> bytes | None:
        if self.failure is not None:
            raise RegistryError(str(self.failure))
        return self.content


class DocumentStore:
    """Small files in a folder of a registry, which need not have models. Callers check the names.

    All methods raise RegistryError if the registry cannot be read or written. Reads from a remote
    registry, part of requests, are cached for some seconds, and while the store cannot be reached.

    Args:
        registry: its address.
        folder: folder name; it starts with a dot, as model names cannot.
        clock: monotonic clock in seconds.

    Raises:
        RegistryError: a remote registry needs a package that is not installed.
        InvalidInputError: the address is not valid for a registry.
    """

    def __init__(
        self, registry: Address, folder: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = open_store(registry)
        self._is_remote = not isinstance(self._store, FolderStore)
        self._folder = folder
        self._clock = clock
        self._read: dict[str, _CachedRead] = {}
        self._lock = threading.Lock()

    def display_path(self, name: str) -> str | Path:
        """Return the path or URL of a file, for messages."""
        path = f"{self._store.location}/{self._key(name)}"
        return path if self._is_remote else Path(path)

    def names(self) -> list[str]:
        """Return the names of all files, unordered; cached like their contents."""
        return (self.read(_NAMES) or b"").decode().splitlines()

    def read(self, name: str) -> bytes | None:
        """Return a file's first bytes, up to MAX_DOCUMENT_BYTES + 1; None if it does not exist."""
        if not self._is_remote:
            return self._fetch(name, None).result()
        known = self._read.get(name)
        # while another thread reads the store, the previous content is fine
        if not self._is_fresh(known) and self._lock.acquire(blocking=known is None):
            try:
                known = self._read.get(name)
                if not self._is_fresh(known):
                    known = self._fetch(name, known)
                    self._remember(name, known)
            finally:
                self._lock.release()
        assert known is not None  # noqa: S101 - otherwise the lock was awaited
        return known.result()

    def write(self, name: str, content: bytes) -> None:
        """Store a file, replacing one with the same name."""
        require_writable(self._store).put(self._key(name), content)
        self._forget(name)

    def delete(self, name: str) -> bool:
        """Remove a file; return True if it existed."""
        store = require_writable(self._store)
        there = store.read(self._key(name), 1) is not None
        store.delete(self._key(name))
        self._forget(name)
        return there

    def _fetch(self, name: str, before: _CachedRead | None) -> _CachedRead:
        try:
            found = (
                self._names() if name == _NAMES else self._store.read(self._key(name), MAX_DOCUMENT_BYTES + 1)
            )
        except RegistryError as error:
            if before is None or before.failure is not None:
                return _CachedRead(None, error, self._clock())
            return _CachedRead(before.content, None, self._clock())
        return _CachedRead(found and found.content, None, self._clock())

    def _names(self) -> TaggedContent:
        keys = (entry.key.removeprefix(f"{self._folder}/") for entry in self._store.entries(self._folder))
        return TaggedContent("\n".join(keys).encode(), "")

    def _remember(self, name: str, read: _CachedRead) -> None:
        self._read.pop(name, None)
        if len(self._read) >= _MAX_CACHED_DOCUMENTS:  # clients choose the names, in any number
            self._read.pop(next(iter(self._read), name), None)  # the oldest read
        self._read[name] = read

    def _forget(self, name: str) -> None:
        with self._lock:  # wait for a read, which would cache the old content
            self._read.pop(name, None)
            self._read.pop(_NAMES, None)

    def _is_fresh(self, read: _CachedRead | None) -> bool:
        return read is not None and self._clock() - read.at_s < _CACHE_TTL_S

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"


@lru_cache(maxsize=48)  # requests read them; some have thousands of entries
def _parse(kind: type[_Document], content: bytes, what: str) -> _Document:
    """Parse JSON; an error names the field, or `what` for all of it, and the value."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise InvalidInputError(f"it has more than {MAX_DOCUMENT_BYTES} bytes, the maximum")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))[:80] or what
        shown = repr(first["input"])[:80]
        raise InvalidInputError(f"{field} is {shown}: {first['msg']}", parameter=field) from None


PROFILES_FOLDER = ".profiles"
CALIBRATIONS_FOLDER = ".calibrations"
ERRORS_FOLDER = ".errors"
_SUFFIX = ".json"


class _TypedStore(Generic[_Document]):
    """Documents of one kind of a registry; all methods raise RegistryError if it cannot be read or written.

    Args:
        registry: its address; it need not have models.

    Raises:
        RegistryError: it is remote and needs a package that is not installed.
    """

    _folder: ClassVar[str]
    _kind: ClassVar[type[BaseModel]]
    _what: ClassVar[str]
    _hint: ClassVar[str]
    _name: ClassVar[str] = ""
    """Field that must equal the document's name."""

    def __init__(self, registry: Address) -> None:
        self._documents = DocumentStore(registry, self._folder)

    def names(self) -> list[str]:
        """Return the sorted names of the documents."""
        return sorted(
            name.removesuffix(_SUFFIX)
            for name in self._documents.names()
            if name.endswith(_SUFFIX) and not name.startswith(".")
        )

    def _find(self, name: str) -> _Document | None:
        """Return a document, or None if there is none.

        Raises:
            DocumentError: its file is damaged, or of another name.
        """
        content = self._documents.read(name + _SUFFIX)
        if content is None:
            return None
        try:
            document: _Document = _parse(self._kind, content, f"the {self._what}")
            if self._name and getattr(document, self._name) != name:
                raise InvalidInputError(f"it is that of {getattr(document, self._name)!r}, not of {name!r}")  # noqa: TRY301 - same message
        except InvalidInputError as error:
            path = self._documents.display_path(name + _SUFFIX)
            raise DocumentError(path, f"not a {self._what}: {error}", hint=self._hint) from None
        return document

    def _put(self, name: str, document: _Document) -> str | Path:
        """Store a document, replacing an earlier one; return its path or URL.

        Raises:
            InvalidInputError: it is too large to be read.
        """
        content = document.model_dump_json(indent=1).encode() + b"\n"
        if len(content) > MAX_DOCUMENT_BYTES:
            raise InvalidInputError(
                f"the {self._what} has {len(content)} bytes; the maximum is {MAX_DOCUMENT_BYTES}",
                parameter=self._what,
            )
        self._documents.write(name + _SUFFIX, content)
        return self._documents.display_path(name + _SUFFIX)


class ProfileStore(_TypedStore[Profile]):
    """Profiles of a registry; see `_TypedStore` for errors."""

    _folder, _kind, _what = PROFILES_FOLDER, Profile, "profile"
    _hint, _name = "tune and save it again", "name"

    def read(self, name: str) -> Profile:
        """Read a profile.

        Raises:
            InvalidInputError: it does not exist; the message lists the existing profiles.
        """
        check_name(name, parameter="profile")
        profile = self._find(name)
        if profile is None:
            raise self._unknown(name)
        return profile

    def write(self, profile: Profile) -> str | Path:
        """Store a profile, replacing one with the same name; return its path or URL.

        Raises:
            InvalidInputError: its name cannot be a file name, or it is too large.
        """
        check_name(profile.name, parameter="profile")
        return self._put(profile.name, profile)

    def delete(self, name: str) -> None:
        """Remove a profile.

        Raises:
            InvalidInputError: it does not exist.
        """
        check_name(name, parameter="profile")
        if not self._documents.delete(name + _SUFFIX):
            raise self._unknown(name)

    def _unknown(self, name: str) -> InvalidInputError:
        known = ", ".join(self.names()) or "none"
        return InvalidInputError(f"there is no profile {name!r}; profiles: {known}", parameter="profile")


class CalibrationStore(_TypedStore[Calibration]):
    """Calibrations of a registry; see `_TypedStore` for errors."""

    _folder, _kind, _what = CALIBRATIONS_FOLDER, Calibration, "calibration"
    _hint, _name = "measure again: gramophone evaluate --task check --save-calibration", "model"

    def read(self, address: str, *, any_version: bool = False) -> Calibration | None:
        """Return the calibration of a version, `name@number`, or None.

        Args:
            address: the version.
            any_version: if it has none, return that of another version of the model: the newest older
                one, else the oldest.
        """
        model, number = _split_address(address)
        calibration = self._find(address)
        if calibration is not None or not any_version:
            return calibration
        others = (name.rpartition("@") for name in self.names())
        numbers = [int(which) for name, _, which in others if name == model and which.isdecimal()]
        best = max(numbers, key=lambda one: (one < number, -abs(one - number)), default=None)
        return None if best is None else self._find(f"{model}@{best}")

    def write(self, calibration: Calibration) -> str | Path:
        """Store a calibration, replacing that of the same version; return its path or URL."""
        _split_address(calibration.model)
        return self._put(calibration.model, calibration)


class ErrorTableStore(_TypedStore[ErrorTable]):
    """Tables of edits in misspellings, by model; see `_TypedStore` for errors."""

    _folder, _kind, _what = ERRORS_FOLDER, ErrorTable, "table of errors"
    _hint = "fit again: gramophone fit-errors"

    def read(self, address: str) -> ErrorTable | None:
        """Return the table of a model, given its name or a version's address, or None."""
        return self._find(address.partition("@")[0])

    def write(self, model: str, table: ErrorTable) -> str | Path:
        """Store the table of a model, replacing an earlier one; return its path or URL."""
        check_name(model, parameter="model")
        return self._put(model, table)


def _split_address(address: str) -> tuple[str, int]:
    """Return the name and the number of a version.

    Raises:
        InvalidInputError: it is no version's address, and so cannot be a file name.
    """
    name, _, number = address.partition("@")
    check_name(name, parameter="model")
    if not is_version_number(number):
        raise InvalidInputError(f"model is {address[:200]!r}; it must be NAME@NUMBER", parameter="model")
    return name, int(number)
