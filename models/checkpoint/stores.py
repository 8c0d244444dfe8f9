"""Interface of object stores, the store in a local folder, and the listing of a registry."""

import hashlib
import math
import os
from abc import ABC, abstractmethod
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from models.checkpoint.folders import fsync_path, locked_folder, report_write_errors
from models.checkpoint.manifest import ALIASES_FILE, MANIFEST_FILE, is_name, is_version_number
from models.errors import RegistryAccessError, RegistryError
from models.files import replace_file


class StoreTimeouts(NamedTuple):
    """Timeouts of a store's calls.

    Attributes:
        connect_s: to connect.
        read_s: to receive the next bytes on a connection.
        call_s: for an whole call, with attempts and pauses, without the time for its bytes.
        bytes_per_s: minimum throughput.
        attempts: maximum attempts of a call that fails with a transient error.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    call_s: float = 30.0
    bytes_per_s: float = 256 * 1024
    attempts: int = 3


class ObjectEntry(NamedTuple):
    """Object in a listing.

    Attributes:
        key: its name below the store's root.
        num_bytes: its size; −1 if unknown.
        tag: the tag that `ObjectStore.read` returns; empty if unknown.
        modified_s: time of the last write, in seconds since 1970; infinite if unknown.
    """

    key: str
    num_bytes: int
    tag: str
    modified_s: float


class TaggedContent(NamedTuple):
    """Content of an object, with its tag at the time of the read."""

    content: bytes
    tag: str


class ObjectStore(ABC):
    """Objects by key, below a root. Slashes separate the parts of keys, with none at either end.

    All methods raise RegistryError if the store cannot be reached, refuses the call, or times out.

    Attributes:
        location: its URL, for messages.
    """

    location: str

    @abstractmethod
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        """List a folder's objects; for the root, at least those whose first part can be a model name."""

    @abstractmethod
    def read(self, key: str, num_bytes: int | None = None) -> TaggedContent | None:
        """Read a small object, or its first bytes, with a tag of what was read; None if it does not exist."""


class ConditionalStore(ObjectStore):
    """Store with create-only writes and compare-and-swap: concurrent writers do not overwrite each other."""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Store a small object unconditionally."""

    def upload(self, key: str, path: Path) -> None:
        """Store a file's content unconditionally."""
        self.put(key, path.read_bytes())

    @abstractmethod
    def put_if_match(self, key: str, content: bytes, tag: str | None) -> bool:
        """Store a small object if the current one has this tag or none exists.

        Args:
            key: key of the object.
            content: new content.
            tag: tag of the current object; None if there must be none. Of concurrent calls, one succeeds.

        Returns:
            True if this call stored it.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""

    def _put_if_match(self, key: str, content: bytes, tag: str | None) -> bool:
        """Run `put_if_match` under the caller's lock of all processes that write the object."""
        current = self.read(key)
        if (current and current.tag) != tag:
            return False
        self.put(key, content)
        return True


class FolderStore(ConditionalStore):
    """Files below a local folder, replaced by rename; conditional writes lock the file's folder.

    Args:
        root: the folder; reading a missing one (perhaps an unmounted volume) is an error.
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
            # of a version, only the existence of its manifest matters
            if place.count("/") == 1:
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
    def read(self, key: str, num_bytes: int | None = None) -> TaggedContent | None:
        try:
            with (self._root / key).open("rb") as file:
                content = file.read(num_bytes)
        except FileNotFoundError:
            self._check_root()
            return None
        except OSError as error:
            raise RegistryError(f"cannot read {self._root / key}: {error.strerror}") from None
        return TaggedContent(content, hashlib.sha256(content).hexdigest())

    @override
    def put(self, key: str, content: bytes) -> None:
        path = self._root / key
        with report_write_errors(path.parent):
            replace_file(path, content)
            fsync_path(path.parent)

    @override
    def delete(self, key: str) -> None:
        path = self._root / key
        with report_write_errors(path.parent):
            path.unlink(missing_ok=True)

    @override
    def put_if_match(self, key: str, content: bytes, tag: str | None) -> bool:
        folder = (self._root / key).parent
        with report_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with locked_folder(folder):
                return self._put_if_match(key, content, tag)

    def _check_root(self) -> None:
        """Refuse a missing root: the file may exist once it is back."""
        if not self._root.is_dir():
            raise RegistryError(f"cannot read the registry {self._root}: it does not exist")


def require_writable(store: ObjectStore) -> ConditionalStore:
    """Return the store if it is writable, else raise RegistryAccessError."""
    if not isinstance(store, ConditionalStore):
        raise RegistryAccessError(
            f"the registry {store.location} is read-only: its store has neither create-only writes nor "
            "compare-and-swap, which keep publishers from overwriting each other; publish to a folder or to s3://"
        )
    return store


def manifest_key(name: str, number: int) -> str:
    """Key of a version's manifest."""
    return f"{name}/versions/{number}/{MANIFEST_FILE}"


class ModelStamp(NamedTuple):
    """Fingerprint of a model's versions and aliases.

    Attributes:
        versions: version numbers.
        alias_tag: value that changes with the aliases; empty if the model has none.
    """

    versions: tuple[int, ...]
    alias_tag: str


@dataclass
class ModelEntries:
    """Model in a listing.

    Attributes:
        numbers: numbers of all versions, including deleted ones, in no order.
        versions: numbers of existing versions, ascending; a deleted version's manifest is empty.
        alias_tag: tag of its aliases; empty if it has none, None if the listing has no tags.
    """

    numbers: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    alias_tag: str | None = ""


def list_models(entries: Iterable[ObjectEntry]) -> dict[str, ModelEntries]:
    """Collect models by name, with or without versions, by objects' keys, sizes and tags."""
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
