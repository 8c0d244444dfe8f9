"""Registry in an object store, with a cache on disk.

    <root>/.blobs/<sha256>                      content of files, of any version; always complete
    <root>/<model>/versions/<7>/manifest.json   the version; an empty file marks a deleted version
    <root>/<model>/aliases.json                 {"champion": 7}
    <root>/.default                             name of the model for requests that name none

A version exists once its manifest does, which is written last and create-only: of concurrent
publishers, one gets the number, the others the next ones. Their files never mix, because a file's
key is its content's hash; equal files of versions, models and mixtures are stored once. A manifest
is never removed, only emptied, so no number is used twice. Aliases change by compare-and-swap. A
sweep removes old contents that no manifest lists.
"""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from typing_extensions import override

from models.checkpoint import folders
from models.checkpoint.download_cache import BLOBS_FOLDER, CachedStore, DownloadCache
from models.checkpoint.fsspec_store import FsspecStore
from models.checkpoint.manifest import MANIFEST_FILE, Manifest, Version, check_unaliased, parse_manifest
from models.checkpoint.registry_interface import Catalogue, Registry
from models.checkpoint.stores import (
    ConditionalStore,
    ModelEntries,
    list_models,
    manifest_key,
    require_writable,
)
from models.errors import InputError, ManifestError, ModelNotFoundError, RegistryError

_CLOCK_KEY = f"{BLOBS_FOLDER}/.clock"
"""Empty object during a sweep; its timestamp is the store's current time."""

_MAX_NUMBER_ATTEMPTS = 1000
"""Maximum numbers tried for a new version; far more than a model's concurrent publishers."""


def _old_blobs(store: ConditionalStore, before_s: float) -> set[str]:
    old = {entry.key for entry in store.entries(BLOBS_FOLDER) if entry.modified_s < before_s}
    return old - {_CLOCK_KEY}  # of another process's sweep


def _referenced_blobs(store: ConditionalStore) -> set[str]:
    """Return the keys of all contents that a manifest lists."""
    named: set[str] = set()
    for entry in store.entries():
        if entry.num_bytes and entry.key.endswith(f"/{MANIFEST_FILE}"):
            found = store.read(entry.key)
            if found is not None and found.content:
                manifest = parse_manifest(found.content, f"{store.location}/{entry.key}")
                named |= {f"{BLOBS_FOLDER}/{file.sha256}" for file in manifest.files.values()}
    return named


class RemoteRegistry(Registry):
    """Registry in an object store, with a cache on disk.

    If the store is unreachable, reads return the last known data, with a warning in the log, and
    downloaded versions stay available. Changes and `change_stamps` require the store.

    Args:
        store: the object store.
        cache: folder for downloads; None: the process-wide setting.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, store: FsspecStore, *, cache: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = DownloadCache(folders.cache_folder(cache), store)
        self._cached = CachedStore(store, self._cache.root, clock)
        super().__init__(store, self._cache.root, self._cached)

    @property
    @override
    def is_reachable(self) -> bool:
        return self._cached.is_reachable

    @override
    def resolve_cached(self, address: str) -> Version:
        return Catalogue(self._cached.known, self.work_folder).resolve(address)

    @override
    def fetch(self, version: Version) -> Path:
        return self._cache.materialise(version, self._manifest_bytes(version))

    @override
    def manifest(self, version: Version) -> Manifest:
        key = manifest_key(version.name, version.number)
        return parse_manifest(self._manifest_bytes(version), f"{self.location}/{key}")

    @override
    def read_file(self, version: Version, name: str) -> bytes:
        entry = self.manifest(version).files.get(name)
        if entry is None:
            raise ManifestError(f"{version.address} has no file {name}")
        return self._cache.blob(version, name, entry).read_bytes()

    @override
    def _publish_folder(self, name: str, folder: Path, manifest: Manifest) -> Version:
        store = require_writable(self._store)
        # existing contents too, to be young: no sweep may remove them before the manifest exists
        for sha256, file in {entry.sha256: file for file, entry in manifest.files.items()}.items():
            store.upload(f"{BLOBS_FOLDER}/{sha256}", folder / file)
        raw = (folder / MANIFEST_FILE).read_bytes()
        self.pin_default(name)
        version = self._take_number(store, name, raw)
        self._cache.adopt(folder, version, manifest)
        return version

    @override
    def delete(self, name: str, number: int) -> None:
        store = require_writable(self._store)
        version = self.resolve(f"{name}@{number}")
        check_unaliased(version, self._stored.aliases(name))
        key = manifest_key(name, number)
        manifest = store.read(key)
        if manifest is None or not store.put_if_match(key, b"", manifest.tag):
            raise ModelNotFoundError(f"{version.address} was just deleted by another process")
        try:  # an alias set meanwhile is seen here, or `set_alias` sees no version
            check_unaliased(version, self._stored.aliases(name))
        except InputError:
            tombstone = store.read(key)
            if tombstone is not None:
                store.put_if_match(key, manifest.content, tombstone.tag)
            raise

    @override
    def sweep(self, *, older_than_s: float) -> int:
        """Remove contents that are old, by the store's own clock, and that no manifest lists.

        Publishers store all contents of a version again, so contents about to be listed are young. Ages
        are checked again after the manifests are read. An unreadable manifest stops the sweep.
        """
        store = require_writable(self._store)
        store.put(_CLOCK_KEY, b"")
        ages = {entry.key: entry.modified_s for entry in store.entries(BLOBS_FOLDER)}
        store.delete(_CLOCK_KEY)
        now_s = ages.get(_CLOCK_KEY, math.inf)
        if not math.isfinite(now_s):  # without timestamps, nothing is known to be old
            return 0
        before_s = now_s - older_than_s
        doomed = _old_blobs(store, before_s)
        if doomed:
            doomed -= _referenced_blobs(store)
        if doomed:
            doomed &= _old_blobs(store, before_s)
        for key in sorted(doomed):
            store.delete(key)
        return len(doomed)

    @override
    def _stored_models(self, names: Iterable[str] | None) -> dict[str, ModelEntries]:
        return list_models(self._cached.refresh())  # one request, for any number of names

    def _take_number(self, store: ConditionalStore, name: str, raw: bytes) -> Version:
        """Store a manifest under the first free number."""
        first = 1 + max(self._stored.entries(name).get(name, ModelEntries()).numbers, default=0)
        for number in range(first, first + _MAX_NUMBER_ATTEMPTS):
            if store.put_if_match(manifest_key(name, number), raw, None):
                return self.version(name, number)
        raise RegistryError(
            f"{self.location} refused {_MAX_NUMBER_ATTEMPTS} new versions of {name} in a row, up to {number}, as if "
            "each already existed"
        )

    def _manifest_bytes(self, version: Version) -> bytes:
        key = manifest_key(version.name, version.number)

        def read() -> bytes:
            found = self._store.read(key)
            if found is None or not found.content:
                raise ManifestError(f"{self.location}/{key} is missing: the version is unfinished or deleted")
            return found.content

        return self._cached.ask(read, (version.path / MANIFEST_FILE).read_bytes)
