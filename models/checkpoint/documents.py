"""Profiles and calibrations beside the models of a registry: small files, replaced as a whole.

    <root>/<folder>/<name>              visible once its file has this name
    <root>/<folder>/.tmp-…              one being written; ignored by readers
    <root>/.profiles/<name>.json        re-ranking weights
    <root>/.calibrations/name@7.json    precision and recall of error checking for one version

A version is immutable, and a calibration depends on the text that it was measured on: so it stands
beside the version, and may be replaced. Documents of a remote registry are cached for a few
seconds, and for as long as the store cannot be reached.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from models.checking.calibration import Calibration
from models.checkpoint.manifest import check_name
from models.checkpoint.registry import Address, open_store
from models.checkpoint.stores import FolderStore, ObjectStore, require_writable
from models.errors import FormatError, InvalidInputError, RegistryError
from models.reranking.ranking import Profile

_Document = TypeVar("_Document", bound=BaseModel)
MAX_DOCUMENT_BYTES = 1 << 20

_CACHE_TTL_S = 5.0
"""Lifetime of a cached document."""

_MAX_CACHED_DOCUMENTS = 1000


class _CachedRead(NamedTuple):
    content: bytes | None
    failure: RegistryError | None
    at_s: float

    def result(self) -> bytes | None:
        if self.failure is not None:
            raise RegistryError(str(self.failure))
        return self.content


class DocumentStore:
    """Small files in a folder of a registry, which need hold no model. Names are checked by the caller.

    All methods raise RegistryError where the registry cannot be read or written to. What was read of a remote
    registry is remembered for some seconds, as requests ask for it, and for as long as the store cannot be reached.

    Args:
        registry: its address.
        folder: by name; no model's can begin with a dot, as these do.
        store: the registry's store, if it is open already.
        clock: seconds, monotonic.

    Raises:
        RegistryError: a remote registry needs a package that is not installed.
        InvalidInputError: the address cannot be a registry's.
    """

    def __init__(
        self,
        registry: Address,
        folder: str,
        *,
        store: ObjectStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store or open_store(registry)
        self._is_remote = not isinstance(self._store, FolderStore)
        self._folder = folder
        self._clock = clock
        self._read: dict[str, _CachedRead] = {}
        self._lock = threading.Lock()

    def display_path(self, name: str) -> str | Path:
        """Name of a file in messages: its path or URL."""
        path = f"{self._store.location}/{self._key(name)}"
        return path if self._is_remote else Path(path)

    def names(self) -> list[str]:
        """The files there are, in no order."""
        return [entry.key.removeprefix(f"{self._folder}/") for entry in self._store.entries(self._folder)]

    def read(self, name: str) -> bytes | None:
        """The beginning of a file, at most a byte more than MAX_DOCUMENT_BYTES; None if there is none."""
        if not self._is_remote:
            return self._fetch(name, None).result()
        known = self._read.get(name)
        # while somebody else asks, what was true is good enough
        if not self._is_fresh(known) and self._lock.acquire(blocking=known is None):
            try:
                known = self._read.get(name)
                if not self._is_fresh(known):
                    known = self._fetch(name, known)
                    self._remember(name, known)
            finally:
                self._lock.release()
        assert known is not None  # noqa: S101 - else it was waited for
        return known.result()

    def write(self, name: str, content: bytes) -> None:
        """Store a file; one of the same name is replaced, by whoever comes last."""
        require_writable(self._store).put(self._key(name), content)
        self._forget(name)

    def delete(self, name: str) -> bool:
        """Remove a file; return whether there was one."""
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

    def _is_fresh(self, read: _CachedRead | None) -> bool:
        return read is not None and self._clock() - read.at_s < _CACHE_TTL_S

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _parse_document(kind: type[_Document], content: bytes, what: str) -> _Document:
    """Parse JSON; an error names the field, or the whole by `what`, and the value."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or what
        shown = repr(first["input"])[:80]
        raise InvalidInputError(f"{field} is {shown}: {first['msg']}", parameter=field) from None


PROFILES_FOLDER = ".profiles"
_SUFFIX = ".json"


class ProfileStore:
    """The profiles of a registry.

    Args:
        registry: its address; profiles need no model in it.

    Raises:
        RegistryError: it is remote and needs a package that is not installed.
    """

    def __init__(self, registry: Address) -> None:
        self._documents = DocumentStore(registry, PROFILES_FOLDER)

    def names(self) -> list[str]:
        """Names of the profiles, sorted.

        Raises:
            RegistryError: they cannot be listed.
        """
        return sorted(
            name.removesuffix(_SUFFIX)
            for name in self._documents.names()
            if name.endswith(_SUFFIX) and not name.startswith(".")
        )

    def read(self, name: str) -> Profile:
        """A profile.

        Raises:
            InvalidInputError: there is none of that name; the message lists what there is.
            FormatError: its file is damaged.
            RegistryError: it cannot be read.
        """
        check_name(name, parameter="profile")
        content = self._documents.read(name + _SUFFIX)
        if content is None:
            raise self._unknown(name)
        path = self._documents.display_path(name + _SUFFIX)
        if len(content) > MAX_DOCUMENT_BYTES:
            raise FormatError(path, f"has more than {MAX_DOCUMENT_BYTES} bytes: no profile")
        try:
            profile = _parse_document(Profile, content, "the profile")
            profile.weighting()
        except InvalidInputError as error:
            raise FormatError(path, f"is no profile: {error}", hint="tune again and save it") from None
        if profile.name != name:
            raise FormatError(path, f"is the profile {profile.name!r}, not {name!r}")
        return profile

    def write(self, profile: Profile) -> str | Path:
        """Store a profile; one of the same name is replaced.

        Returns:
            Where it lies now.

        Raises:
            InvalidInputError: its name cannot be a file's, or it is too large.
            RegistryError: the registry cannot be written to.
        """
        check_name(profile.name, parameter="profile")
        content = profile.model_dump_json(indent=1).encode() + b"\n"
        if len(content) > MAX_DOCUMENT_BYTES:
            raise InvalidInputError(
                f"the profile has {len(content)} bytes; at most {MAX_DOCUMENT_BYTES} are kept",
                parameter="profile",
            )
        self._documents.write(profile.name + _SUFFIX, content)
        return self._documents.display_path(profile.name + _SUFFIX)

    def delete(self, name: str) -> None:
        """Remove a profile.

        Raises:
            InvalidInputError: there is none of that name.
            RegistryError: the registry cannot be written to.
        """
        check_name(name, parameter="profile")
        if not self._documents.delete(name + _SUFFIX):
            raise self._unknown(name)

    def _unknown(self, name: str) -> InvalidInputError:
        known = ", ".join(self.names()) or "none"
        return InvalidInputError(f"there is no profile {name!r}; there are: {known}", parameter="profile")


CALIBRATIONS_FOLDER = ".calibrations"


class CalibrationStore:
    """The calibrations of a registry.

    Args:
        registry: its address.

    Raises:
        RegistryError: it is remote and needs a package that is not installed.
    """

    def __init__(self, registry: Address) -> None:
        self._documents = DocumentStore(registry, CALIBRATIONS_FOLDER)

    def read(self, address: str) -> Calibration | None:
        """The calibration of a version; None if it has none.

        Args:
            address: `name@number`.

        Raises:
            FormatError: its file is damaged.
            RegistryError: it cannot be read.
        """
        name = _file_name(address)
        content = self._documents.read(name)
        if content is None:
            return None
        path = self._documents.display_path(name)
        hint = "measure again: gramophone evaluate --task check --save-calibration"
        if len(content) > MAX_DOCUMENT_BYTES:
            raise FormatError(path, f"has more than {MAX_DOCUMENT_BYTES} bytes: no calibration", hint=hint)
        try:
            calibration = _parse_document(Calibration, content, "the calibration")
            calibration.check_order()
        except InvalidInputError as error:
            raise FormatError(path, f"is no calibration: {error}", hint=hint) from None
        if calibration.model != address:
            raise FormatError(
                path, f"is the calibration of {calibration.model!r}, not of {address!r}", hint=hint
            )
        return calibration

    def write(self, calibration: Calibration) -> str | Path:
        """Store a calibration; one of the same version is replaced.

        Returns:
            Where it lies now.

        Raises:
            InvalidInputError: the model's address cannot be a file's name.
            RegistryError: the registry cannot be written to.
        """
        name = _file_name(calibration.model)
        self._documents.write(name, calibration.model_dump_json(indent=1).encode() + b"\n")
        return self._documents.display_path(name)


def _file_name(address: str) -> str:
    name, _, number = address.partition("@")
    check_name(name, parameter="model")
    check_name(number, parameter="model")
    return f"{name}@{number}.json"
