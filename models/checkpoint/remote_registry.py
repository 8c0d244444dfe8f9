"""Registry in an object store, with a cache on disk.

    <root>/.blobs/<sha256>                      content of files, of any version; always whole
    <root>/<model>/versions/<7>/manifest.json   the version; an empty file: it was deleted
    <root>/<model>/aliases.json                 {"champion": 7}
    <root>/.default                             name of the model for requests that name none

A version exists once its manifest does, which is written last and create-only: of concurrent
publishers one gets the number, the others the next ones. Their files never mix, as a file's key is
the hash of its content; equal files of versions, models and mixtures are stored once. A manifest is
never removed, only emptied, so no number is used twice. Aliases change by compare-and-swap. A sweep
removes contents that are old and that no manifest names.
"""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from typing_extensions import override

from models.checkpoint import folders
from models.checkpoint.download_cache import BLOBS_FOLDER, CachedStore, DownloadCache
from models.checkpoint.manifest import MANIFEST_FILE, Manifest, Version, check_unaliased, parse_manifest
from models.checkpoint.registry_interface import Catalogue, Registry
from models.checkpoint.stores import (
    ConditionalStore,
    ModelEntries,
    ObjectStore,
    list_models,
    manifest_key,
    require_writable,
)
from models.errors import InvalidInputError, ManifestError, ModelNotFoundError, RegistryError

_CLOCK_KEY = f"{BLOBS_FOLDER}/.clock"
"""An empty object, which is there while somebody sweeps."""


def _blobs_older_than(store: ConditionalStore, before_s: float) -> set[str]:
    """The keys of contents that were stored before a time."""
    old = {entry.key for entry in store.entries(BLOBS_FOLDER) if entry.modified_s < before_s}
    return old - {_CLOCK_KEY}  # somebody else's


def _referenced_blobs(store: ConditionalStore) -> set[str]:
    """The keys of all contents that a manifest names."""
    named: set[str] = set()
    for entry in store.entries():
        if entry.num_bytes and entry.key.endswith(f"/{MANIFEST_FILE}"):
            found = store.read(entry.key)
            if found is not None and found.content:
                manifest = parse_manifest(found.content, f"{store.location}/{entry.key}")
                named |= {f"{BLOBS_FOLDER}/{file.sha256}" for file in manifest.files.values()}
    return named


_MAX_NUMBER_ATTEMPTS = 1000
"""At numbers of a new version: more others than ever publish one model at the same time."""


class RemoteRegistry(Registry):
    """A registry in an object store, with a cache on disk.

    Where the store is out of reach, questions are answered by what is last known, with a warning in the log, and
    versions that were fetched before are found. Changes, and `change_stamps`, always ask.

    Args:
        store: where it lies.
        cache: the folder for what is fetched; None means the process's own choice.
        clock: seconds, monotonic.
    """

    def __init__(
        self, store: ObjectStore, *, cache: Path | None = None, clock: Callable[[], float] = time.monotonic
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
        return parse_manifest(
            self._manifest_bytes(version), self._path_of(manifest_key(version.name, version.number))
        )

    @override
    def read_file(self, version: Version, name: str) -> bytes:
        entry = self.manifest(version).files.get(name)
        if entry is None:
            raise ManifestError(f"{version.address} has no file {name}")
        return self._cache.blob(version, name, entry).read_bytes()

    @override
    def _publish_folder(self, name: str, folder: Path, manifest: Manifest) -> Version:
        store = require_writable(self._store)
        # what is there already is stored anew: so it is young, and nobody sweeps it away before the manifest names it
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
            raise ModelNotFoundError(f"{version.address} was deleted by somebody else just now")
        try:  # an alias that came meanwhile is seen here, or whoever set it sees that the version is gone
            check_unaliased(version, self._stored.aliases(name))
        except InvalidInputError:
            tombstone = store.read(key)
            if tombstone is not None:
                store.put_if_match(key, manifest.content, tombstone.tag)
            raise

    @override
    def sweep(self, *, older_than_s: float) -> int:
        """Contents are removed that are old, by the store's own clock, and that no manifest names.

        Whoever publishes stores all contents of a version anew, so those that will be named soon are young; ages are
        looked at once more when it is known which are named. A manifest that cannot be read stops the sweep.
        """
        store = require_writable(self._store)
        store.put(_CLOCK_KEY, b"")
        ages = {entry.key: entry.modified_s for entry in store.entries(BLOBS_FOLDER)}
        store.delete(_CLOCK_KEY)
        now_s = ages.get(_CLOCK_KEY, math.inf)
        if not math.isfinite(now_s):  # the store does not tell when: nothing is known to be old
            return 0
        before_s = now_s - older_than_s
        doomed = _blobs_older_than(store, before_s)
        if doomed:
            doomed -= _referenced_blobs(store)
        if doomed:
            doomed &= _blobs_older_than(store, before_s)
        for key in sorted(doomed):
            store.delete(key)
        return len(doomed)

    @override
    def _stored_models(self, names: Iterable[str] | None) -> dict[str, ModelEntries]:
        return list_models(self._cached.refresh())  # one request, for however many

    def _take_number(self, store: ConditionalStore, name: str, raw: bytes) -> Version:
        """Store a manifest under the first number that nobody else was faster to take."""
        first = 1 + max(self._stored.entries(name).get(name, ModelEntries()).numbers, default=0)
        for number in range(first, first + _MAX_NUMBER_ATTEMPTS):
            if store.put_if_match(manifest_key(name, number), raw, None):
                return self.version(name, number)
        raise RegistryError(
            f"{self.location} refused {_MAX_NUMBER_ATTEMPTS} new versions of {name} in a row, {number} the "
            "last, as if each were there already"
        )

    def _manifest_bytes(self, version: Version) -> bytes:
        key = manifest_key(version.name, version.number)

        def read() -> bytes:
            found = self._store.read(key)
            if found is None or not found.content:
                raise ManifestError(f"{self._path_of(key)} is missing: never finished, or deleted")
            return found.content

        return self._cached.ask(read, lambda: self._cache.manifest(version))
