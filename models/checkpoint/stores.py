"""Interface of object stores, the store in a local folder, and the listing of a registry in a store.

A `ConditionalStore` has create-only writes and compare-and-swap, which keep concurrent publishers
from overwriting each other.
"""

import hashlib
import math
import os
from abc import ABC, abstractmethod
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from models.checkpoint.folders import fsync_path, locked_folder, replace_file, report_write_errors
from models.checkpoint.manifest import ALIASES_FILE, MANIFEST_FILE, is_name, is_version_number
from models.errors import RegistryError

_CHUNK_BYTES = 1 << 20


class StoreTimeouts(NamedTuple):
    """Timeouts of a store's calls; after that a call has failed.

    Attributes:
        connect_s: for a connection.
        read_s: for the next bytes on a connection.
        call_s: for a whole call, attempts and pauses between them included, beside its bytes.
        bytes_per_s: the slowest that bytes may come or go.
        attempts: at a call that failed in a way that may pass.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    call_s: float = 30.0
    bytes_per_s: float = 256 * 1024
    attempts: int = 3

    def for_bytes(self, num_bytes: int) -> float:
        """Seconds that a call with so many bytes may take."""
        return self.call_s + num_bytes / self.bytes_per_s


class ObjectEntry(NamedTuple):
    """An object in a listing.

    Attributes:
        key: its name below the store's root.
        num_bytes: its size; −1 where the store does not tell.
        tag: what `ObjectStore.read` would tell; empty where the listing does not tell it.
        modified_s: when it was stored, in seconds since 1970; infinite where the store does not tell.
    """

    key: str
    num_bytes: int
    tag: str
    modified_s: float


class TaggedContent(NamedTuple):
    """An object's content, and the tag it had when it was read."""

    content: bytes
    tag: str


class ObjectStore(ABC):
    """Objects by key, below a root. Keys have slashes between their parts, and none at either end.

    All methods raise RegistryError where the store cannot be reached, refuses, or is waited for in vain.

    Attributes:
        location: its URL, for messages.
    """

    location: str

    @abstractmethod
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        """The objects in a folder; of the root, at least those whose first part can be the name of a model."""

    @abstractmethod
    def read(self, key: str) -> TaggedContent | None:
        """A small object; None if there is none."""

    @abstractmethod
    def chunks(self, key: str, num_bytes: int) -> Iterator[bytes]:
        """The first bytes of an object, piece by piece; fewer than requested if it is shorter.

        Raises:
            FileNotFoundError: there is no such object.
        """


class ConditionalStore(ObjectStore):
    """A store that can be written to by several at once, none of whom overwrites what another has written."""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Store a small object, whatever was there."""

    def upload(self, key: str, path: Path) -> None:
        """Store a file's content, whatever was there."""
        self.put(key, path.read_bytes())

    @abstractmethod
    def put_if_match(self, key: str, content: bytes, tag: str | None) -> bool:
        """Store a small object if the one that is there has this tag, or if there is none (compare and swap).

        Args:
            key: of the object.
            content: to be stored.
            tag: of what is there; None if nothing is to be there. Of several who try at once, one succeeds.

        Returns:
            Whether this call stored it.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""


class LockedStore(ConditionalStore):
    """A store whose conditional writes are atomic because all its writers hold a lock."""

    @abstractmethod
    def _lock(self, key: str) -> AbstractContextManager[object]:
        """Lock of an object, for this process and all others that write to the store."""

    @override
    def put_if_match(self, key: str, content: bytes, tag: str | None) -> bool:
        with self._lock(key):
            current = self.read(key)
            if (None if current is None else current.tag) != tag:
                return False
            self.put(key, content)
        return True


class FolderStore(LockedStore):
    """Files below a local folder, each replaced by one rename; conditional writes hold the lock of the file's folder.

    Args:
        root: the folder; reading from a missing one is an error, as it may be a volume that is not mounted.
    """

    def __init__(self, root: Path) -> None:
        self.location = str(root)
        self._root = root

    @override
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        found, pending = [], [folder]
        while pending:
            place = pending.pop()
            try:
                with os.scandir(self._root / place) as scanned:
                    items = [(f"{place}/{item.name}" if place else item.name, item) for item in scanned]
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                continue
            except OSError as error:
                raise RegistryError(f"cannot read {error.filename}: {error.strerror}") from None
            if place.count("/") == 1:  # of each version it matters only whether its manifest is there
                manifests = (f"{key}/{MANIFEST_FILE}" for key, item in items if is_version_number(item.name))
                found += [key for key in manifests if os.path.exists(f"{self._root}/{key}")]  # noqa: PTH110 - often
                continue
            for key, item in items:
                if not item.is_dir():
                    found.append(key)
                elif is_name(item.name) if not place else item.name == "versions":
                    pending.append(key)
        return [ObjectEntry(key, -1, "", math.inf) for key in found]

    @override
    def read(self, key: str) -> TaggedContent | None:
        try:
            content = (self._root / key).read_bytes()
        except FileNotFoundError:
            self._check_root()
            return None
        except OSError as error:
            raise RegistryError(f"cannot read {self._root / key}: {error.strerror}") from None
        return TaggedContent(content, hashlib.sha256(content).hexdigest())

    @override
    def chunks(self, key: str, num_bytes: int) -> Iterator[bytes]:
        with (self._root / key).open("rb") as file:
            while chunk := file.read(min(num_bytes, _CHUNK_BYTES)):
                num_bytes -= len(chunk)
                yield chunk

    @override
    def put(self, key: str, content: bytes) -> None:
        path = self._root / key
        with report_write_errors(path.parent):
            replace_file(path, content)
            fsync_path(path.parent)

    @override
    def delete(self, key: str) -> None:
        try:
            (self._root / key).unlink(missing_ok=True)
        except OSError as error:
            raise RegistryError(f"cannot remove {self._root / key}: {error.strerror}") from None

    @override
    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        folder = (self._root / key).parent
        with report_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with locked_folder(folder):
                yield

    def _check_root(self) -> None:
        """Tell a registry that is gone from one without such a file: the file may come back with it."""
        if not self._root.is_dir():
            raise RegistryError(f"cannot read the registry {self._root}: it is not there")


def require_writable(store: ObjectStore) -> ConditionalStore:
    """The store, for writing.

    Raises:
        RegistryError: it can only be read.
    """
    if not isinstance(store, ConditionalStore):
        raise RegistryError(
            f"the registry {store.location} can only be read: its store has neither create-only writes nor "
            "compare-and-swap, which keep publishers from overwriting each other; publish to a folder or to s3://"
        )
    return store


def manifest_key(name: str, number: int) -> str:
    """Key of a version's manifest."""
    return f"{name}/versions/{number}/{MANIFEST_FILE}"


class ModelStamp(NamedTuple):
    """Fingerprint of a model's versions and aliases.

    Attributes:
        versions: the version numbers.
        alias_tag: changes with the aliases; empty if the model has none.
    """

    versions: tuple[int, ...]
    alias_tag: str


@dataclass
class ModelEntries:
    """A model in a listing.

    Attributes:
        numbers: of its versions, deleted ones included, in no order.
        versions: numbers of its versions, ascending; the manifest of a deleted one is empty.
        alias_tag: tag of its aliases; empty if it has none, None if the listing does not tell it.
    """

    numbers: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    alias_tag: str | None = ""


def list_models(entries: Iterable[ObjectEntry]) -> dict[str, ModelEntries]:
    """Models by name, those without versions included, by the keys, sizes and tags of objects."""
    models: defaultdict[str, ModelEntries] = defaultdict(ModelEntries)
    for entry in entries:
        match entry.key.split("/"):
            case [name, "versions", number, file] if file == MANIFEST_FILE and is_version_number(number):
                models[name].numbers.append(int(number))
                if entry.num_bytes:
                    insort(models[name].versions, int(number))
            case [name, file] if file == ALIASES_FILE:
                models[name].alias_tag = entry.tag or None
    return {name: model for name, model in models.items() if is_name(name)}
