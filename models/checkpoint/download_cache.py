"""Disk cache of remote registries: contents by hash, versions, and the last known catalogue.

    <cache>/blobs/<sha256>                              content of a file, stored once
    <cache>/registries/<URL>/<model>/versions/<7>/      a version: hard links to blobs, and its manifest
    <cache>/registries/<URL>/.known/…                   last known versions, aliases and default
    <cache>/registries/<URL>/.runs/…                    training runs that can be resumed

A file gets its name only once its hash is verified. Processes share a cache by locks and renames. It
can be deleted at any time: missing files are downloaded again.

`CachedStore` returns cached data for some seconds after the store failed.
"""

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from models.checkpoint.folders import fsync_tree, locked_folder, report_write_errors, temporary_folder
from models.checkpoint.fsspec_store import FsspecStore
from models.checkpoint.manifest import (
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    Version,
    parse_manifest,
    sha256_of,
    verify_files,
)
from models.checkpoint.stores import (
    FolderStore,
    ObjectEntry,
    ObjectStore,
    TaggedContent,
    list_models,
    manifest_key,
)
from models.errors import IntegrityError, RegistryError
from models.files import replace_file

_log = logging.getLogger(__name__)

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]+")
_MAX_NAME_LENGTH = 80

BLOBS_FOLDER = ".blobs"
"""Folder of file contents in a remote registry."""

R = TypeVar("R")

_KNOWN_FOLDER = ".known"
_RETRY_AFTER_S = 10.0
"""Seconds of cached data only, after a failure."""


class DownloadCache:
    """Files downloaded from one remote registry.

    Args:
        folder: cache, shared with other registries and processes; existing or not.
        store: the registry's store.
    """

    def __init__(self, folder: Path, store: FsspecStore) -> None:
        self._store = store
        self._blobs = folder / "blobs"
        readable = _NOT_IN_NAMES.sub("_", store.location)[-_MAX_NAME_LENGTH:]
        digest = hashlib.sha256(store.location.encode()).hexdigest()[:12]
        self.root = folder / "registries" / f"{readable}-{digest}"

    def materialise(self, version: Version, raw: bytes) -> Path:
        """Return a version's folder with all files, downloading missing ones.

        Args:
            version: the version.
            raw: its manifest, which all files must match.

        Raises:
            CheckpointError: a file does not match the manifest, or the manifest is invalid.
            RegistryError: a file cannot be downloaded, or the disk is full.
        """
        manifest = parse_manifest(raw, f"{version.address}: {MANIFEST_FILE}")
        if self._is_complete(version, raw, manifest):
            return version.path
        model = version.path.parents[1]
        with report_write_errors(model):
            model.mkdir(parents=True, exist_ok=True)
            with locked_folder(model):  # only one of several processes downloads
                if not self._is_complete(version, raw, manifest):
                    self._assemble(version, raw, manifest)
        return version.path

    def blob(self, version: Version, name: str, entry: FileEntry) -> Path:
        """Return the path of a file's content, downloading it if missing.

        Raises:
            IntegrityError: the download does not match the manifest.
            RegistryError: it cannot be downloaded, or the disk is full.
        """
        path = self._blobs / entry.sha256
        if _matches_entry(path, entry):
            return path
        with report_write_errors(self._blobs), temporary_folder(self._blobs) as folder:
            temporary = folder / entry.sha256
            digest = hashlib.sha256()
            with temporary.open("wb") as file:
                for chunk in self._download(version, name, entry):
                    digest.update(chunk)
                    file.write(chunk)
                num_bytes = file.tell()
                file.flush()
                os.fsync(file.fileno())
            if num_bytes != entry.bytes:
                raise IntegrityError(
                    f"{name} was received with {num_bytes} bytes, but {entry.bytes} were published; it is discarded"
                )
            if digest.hexdigest() != entry.sha256:
                raise IntegrityError(
                    f"{name} was received with a different content than published: its SHA-256 does not match; "
                    "it is discarded"
                )
            temporary.replace(path)
        return path

    def adopt(self, folder: Path, version: Version, manifest: Manifest) -> None:
        """Add a version published from a scratch folder."""
        with contextlib.suppress(OSError):  # it can be downloaded later
            self._blobs.mkdir(parents=True, exist_ok=True)
            for name, entry in manifest.files.items():
                with contextlib.suppress(FileExistsError):
                    (self._blobs / entry.sha256).hardlink_to(folder / name)
            folder.rename(version.path)

    def _is_complete(self, version: Version, raw: bytes, manifest: Manifest) -> bool:
        """True if cached with this manifest and intact files."""
        with contextlib.suppress(IntegrityError, OSError):
            if (version.path / MANIFEST_FILE).read_bytes() == raw:
                verify_files(version.path, manifest)
                return True
        return False

    def _assemble(self, version: Version, raw: bytes, manifest: Manifest) -> None:
        versions = version.path.parent
        with temporary_folder(versions) as folder:
            new, old = folder / "new", folder / "old"
            new.mkdir()
            for name, entry in manifest.files.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).hardlink_to(self.blob(version, name, entry))
            with (new / MANIFEST_FILE).open("xb") as file:
                file.write(raw)
            fsync_tree(new)
            if version.path.exists():  # damaged, or of a registry emptied since
                version.path.rename(old)
            new.rename(version.path)

    def _download(self, version: Version, name: str, entry: FileEntry) -> Iterator[bytes]:
        # a copy of a local registry has the files next to their manifest
        for key in (f"{BLOBS_FOLDER}/{entry.sha256}", f"{version.name}/versions/{version.number}/{name}"):
            try:
                yield from self._store.chunks(key, entry.bytes)
            except FileNotFoundError:
                continue
            return
        raise IntegrityError(f"{version.address}: {name} is not in {self._store.location}")


def _matches_entry(path: Path, entry: FileEntry) -> bool:
    try:
        return path.stat().st_size == entry.bytes and sha256_of(path) == entry.sha256
    except OSError:
        return False


class CatalogueStore(FolderStore):
    """Last known catalogue of a store: an empty manifest for each version, the aliases and the default.

    Write errors, such as a full disk, are ignored; then less is known later.
    """

    def remember_entries(self, folder: str, entries: Iterable[ObjectEntry]) -> None:
        """Record the entries of a folder, which may be the root."""
        with contextlib.suppress(OSError, RegistryError):
            before, now = _manifest_keys(self.entries(folder)), _manifest_keys(entries)
            for key in before - now:
                (self._root / key).unlink(missing_ok=True)
            for key in now - before:
                (self._root / key).parent.mkdir(parents=True, exist_ok=True)
                (self._root / key).touch()

    def remember(self, key: str, content: bytes | None) -> None:
        """Record a small object; None if it does not exist."""
        path = self._root / key
        with contextlib.suppress(OSError):
            if content is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_bytes() != content:
                replace_file(path, content)

    @override
    def _check_root(self) -> None:
        """Accept a missing folder, which means an empty record."""


def _manifest_keys(entries: Iterable[ObjectEntry]) -> set[str]:
    models = list_models(entries).items()
    return {manifest_key(name, number) for name, model in models for number in model.versions}


class CachedStore(ObjectStore):
    """Read-only store that returns known data while the store cannot be reached.

    Args:
        store: store to read.
        folder: folder for the recorded data, existing or not.
        clock: monotonic clock in seconds.

    Attributes:
        known: the recorded data.
    """

    def __init__(self, store: ObjectStore, folder: Path, clock: Callable[[], float]) -> None:
        self.location = store.location
        self.known = CatalogueStore(folder / _KNOWN_FOLDER)
        self.known.location = store.location
        self._store = store
        self._clock = clock
        self._failure: RegistryError | None = None
        self._failed_s = 0.0

    @property
    def is_reachable(self) -> bool:
        """True if the store answered the last request."""
        return self._failure is None

    @override
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        def recall() -> list[ObjectEntry]:
            known = self.known.entries(folder)
            if not _manifest_keys(known):
                raise LookupError
            return known

        return self.ask(lambda: self.refresh(folder), recall)

    @override
    def read(self, key: str, num_bytes: int | None = None) -> TaggedContent | None:
        def note() -> TaggedContent | None:
            found = self._store.read(key)
            self.known.remember(key, found and found.content)
            return found

        def recall() -> TaggedContent | None:
            known = self.known.read(key)
            if known is None and not _manifest_keys(self.known.entries(key.rpartition("/")[0])):
                raise LookupError  # unknown model: it may have aliases
            return known

        return self.ask(note, recall)

    def refresh(self, folder: str = "") -> list[ObjectEntry]:
        """Read entries from the store.

        Raises:
            RegistryError: the store cannot be reached.
        """
        entries = self._store.entries(folder)
        self.known.remember_entries(folder, entries)
        self._failure = None
        return entries

    def ask(self, read: Callable[[], R], recall: Callable[[], R]) -> R:
        """Read from the store; if it fails, or just did, return the known value.

        Args:
            read: reads from the store.
            recall: returns the last known value; without one, raises LookupError or OSError.

        Raises:
            RegistryError: the store fails, and no value is known.
        """
        failure = self._failure
        if failure is None or self._clock() - self._failed_s >= _RETRY_AFTER_S:
            try:
                answer = read()
            except RegistryError as error:
                failure = self._failure = error
                self._failed_s = self._clock()
                _log.warning("registry unreachable, using cached data: %s", error)
            else:
                self._failure = None
                return answer
        try:
            return recall()
        except (LookupError, OSError):
            raise RegistryError(str(failure)) from None
