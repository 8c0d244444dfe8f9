"""Interface of object stores, their timeouts, and the listing of a registry in one.

A `ConditionalStore` has create-only writes and compare-and-swap, which keep concurrent publishers
from overwriting each other.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.manifest import ALIASES_FILE, MANIFEST_FILE, Version, is_name, is_version_number
from models.errors import RegistryError


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
        tag: changes with its content; empty where the store tells none.
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
        """The objects in a folder, at any depth; of the root, those whose first part begins with no dot."""

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

    @abstractmethod
    def upload(self, key: str, path: Path) -> None:
        """Store a file's content, whatever was there."""

    @abstractmethod
    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Store a small object if there is none of this key; of several who try at once, one succeeds.

        Returns:
            Whether this call stored it.
        """

    @abstractmethod
    def put_if_match(self, key: str, content: bytes, tag: str) -> bool:
        """Store a small object if the one that is there has this tag (compare and swap).

        Returns:
            Whether this call stored it.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""


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


def manifest_key(version: Version) -> str:
    """Key of a version's manifest."""
    return f"{version.name}/versions/{version.number}/{MANIFEST_FILE}"


class Listing:
    """Models, versions and aliases by the keys, sizes and tags of objects.

    Args:
        entries: of the whole registry, or of some models.
    """

    def __init__(self, entries: Iterable[ObjectEntry]) -> None:
        self._manifests: dict[str, dict[int, ObjectEntry]] = defaultdict(dict)
        self._aliases: dict[str, ObjectEntry] = {}
        for entry in entries:
            match entry.key.split("/"):
                case [name, "versions", number, file] if file == MANIFEST_FILE and is_version_number(number):
                    self._manifests[name][int(number)] = entry
                case [name, file] if file == ALIASES_FILE:
                    self._aliases[name] = entry

    def names(self) -> list[str]:
        """Names that may be models', those without versions included, sorted."""
        return sorted(name for name in {*self._manifests, *self._aliases} if is_name(name))

    def models(self) -> list[str]:
        """Names of the models with at least one version, sorted."""
        return [name for name in self.names() if self.versions(name)]

    def numbers(self, name: str) -> list[int]:
        """Numbers of a model's versions, deleted ones included, ascending."""
        return sorted(self._manifests.get(name, ()))

    def versions(self, name: str) -> list[int]:
        """Numbers of a model's versions, ascending; the manifest of a deleted one is empty."""
        return [number for number in self.numbers(name) if self._manifests[name][number].num_bytes]

    def tag(self, name: str) -> str:
        """Fingerprint of the versions; it changes when one is added or removed."""
        found = [(number, self._manifests[name][number].tag) for number in self.versions(name)]
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def alias_tag(self, name: str) -> str | None:
        """Fingerprint of the aliases; it changes with them. None if the store has none."""
        entry = self._aliases.get(name)
        return "" if entry is None else entry.tag or None
