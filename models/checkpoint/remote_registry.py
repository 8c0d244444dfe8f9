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

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from typing_extensions import override

from models.checkpoint import folders
from models.checkpoint.download_cache import (
    BLOBS_FOLDER,
    CachedCatalogue,
    CircuitBreaker,
    DownloadCache,
    blob_downloader,
    upload_blobs,
)
from models.checkpoint.manifest import (
    ALIASES_FILE,
    MANIFEST_FILE,
    ChangeStamp,
    Manifest,
    Version,
    check_name,
    check_unaliased,
    parse_aliases,
    parse_default,
    parse_manifest,
    read_manifest,
    verify_files,
)
from models.checkpoint.registry_interface import Registry, resolve_address
from models.checkpoint.stores import ConditionalStore, Listing, ObjectStore, manifest_key, require_writable
from models.errors import InvalidInputError, ManifestError, ModelNotFoundError, RegistryError

_CLOCK_KEY = f"{BLOBS_FOLDER}/.clock"
"""An empty object, which is there while somebody sweeps."""


def sweep_blobs(store: ConditionalStore, *, older_than_s: float) -> int:
    """Remove contents that are old and that no manifest names.

    Whoever publishes stores all contents of a version anew, so those that will be named soon are young; ages are
    looked at once more when it is known which are named. A manifest that cannot be read stops the sweep.

    Args:
        store: where they are.
        older_than_s: how old, by the store's own clock, as this machine's may be wrong; far longer than any
            publishing takes.

    Returns:
        How many were removed.

    Raises:
        CheckpointError: a manifest is damaged: what it names is not known.
        RegistryError: the store cannot be reached.
    """
    before_s = _store_time_s(store) - older_than_s
    unnamed = _blobs_older_than(store, before_s)
    if unnamed:
        unnamed -= _referenced_blobs(store)
    doomed = unnamed & _blobs_older_than(store, before_s) if unnamed else unnamed
    for key in sorted(doomed):
        store.delete(key)
    return len(doomed)


def _store_time_s(store: ConditionalStore) -> float:
    """Current time of the store's clock, in seconds since 1970; long ago if unknown."""
    store.put(_CLOCK_KEY, b"")
    now_s = next(
        (entry.modified_s for entry in store.entries(BLOBS_FOLDER) if entry.key == _CLOCK_KEY), math.inf
    )
    store.delete(_CLOCK_KEY)
    return now_s if math.isfinite(now_s) else -math.inf


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
    versions that were fetched before are found. Changes, and `stamps`, always ask.

    Args:
        store: where it lies.
        cache: the folder for what is fetched; None means the process's own choice.
        clock: seconds, monotonic.
    """

    def __init__(
        self, store: ObjectStore, *, cache: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(store)
        self._cache = DownloadCache(folders.cache_folder(cache), store.location)
        self._known = CachedCatalogue(self._cache.root, store.location)
        self._breaker = CircuitBreaker(clock)

    def check_writable(self) -> None:
        """Refuse to write to a store that cannot be reached, or that can only be read.

        Raises:
            RegistryError: it is so.
        """
        require_writable(self._store).entries()

    @property
    @override
    def work_folder(self) -> Path:
        return self._cache.root

    @property
    @override
    def is_reachable(self) -> bool:
        return self._breaker.is_closed

    @override
    def models(self) -> list[str]:
        return self._breaker.call(lambda: self._list_all().models(), lambda: self._known.models() or None)

    @override
    def versions(self, name: str) -> list[int]:
        return self._breaker.call(
            lambda: self._stored_versions(name), lambda: self._known.versions(name) or None
        )

    @override
    def published(self) -> list[Version]:
        def told(catalogue: Listing | CachedCatalogue) -> list[Version]:
            return [
                self.version(name, number)
                for name in catalogue.models()
                for number in catalogue.versions(name)
            ]

        return self._breaker.call(lambda: told(self._list_all()), lambda: told(self._known) or None)

    @override
    def aliases(self, name: str) -> dict[str, int]:
        return self._breaker.call(
            lambda: self._stored_aliases(name),
            lambda: self._known.aliases(name) if self._known.versions(name) else None,
        )

    @override
    def resolve_cached(self, address: str) -> Version:
        return resolve_address(self._known, address)

    @override
    def version(self, name: str, number: int) -> Version:
        return self._known.version(name, number)

    @override
    def fetch(self, version: Version) -> Path:
        return self._cache.materialise(
            version, self._manifest_bytes(version), blob_downloader(self._store, version)
        )

    @override
    def manifest(self, version: Version) -> Manifest:
        return parse_manifest(self._manifest_bytes(version), self._path_of(manifest_key(version)))

    @override
    def read_file(self, version: Version, name: str) -> bytes:
        entry = self.manifest(version).files.get(name)
        if entry is None:
            raise ManifestError(f"{version.address} has no file {name}")
        return self._cache.blob(name, entry, blob_downloader(self._store, version)).read_bytes()

    @override
    def publish(self, name: str, write: Callable[[Path], None]) -> Version:
        check_name(name)
        store = require_writable(self._store)
        with self._cache.staging_folder(name) as folder:
            write(folder)
            manifest = read_manifest(folder)
            verify_files(folder, manifest)
            upload_blobs(store, folder, manifest)
            raw = (folder / MANIFEST_FILE).read_bytes()
            self.pin_default(name)
            version = self._take_number(store, name, raw)
            self._cache.adopt(folder, version, manifest)
        return version

    @override
    def default(self) -> str | None:
        return parse_default(self._breaker.call(self._stored_default, self._known.default))

    @override
    def delete(self, name: str, number: int) -> None:
        store = require_writable(self._store)
        version = self.resolve(f"{name}@{number}")
        check_unaliased(version, self._stored_aliases(name))
        key = manifest_key(version)
        manifest = store.read(key)
        if manifest is None or not store.put_if_match(key, b"", manifest.tag):
            raise ModelNotFoundError(f"{version.address} was deleted by somebody else just now")
        try:  # an alias that came meanwhile is seen here, or whoever set it sees that the version is gone
            check_unaliased(version, self._stored_aliases(name))
        except InvalidInputError:
            tombstone = store.read(key)
            if tombstone is not None:
                store.put_if_match(key, manifest.content, tombstone.tag)
            raise

    @override
    def sweep(self, *, older_than_s: float) -> int:
        return sweep_blobs(require_writable(self._store), older_than_s=older_than_s)

    @override
    def change_stamps(self, names: Iterable[str] | None = None) -> dict[str, ChangeStamp]:
        listing = self._list_all()
        self._breaker.reset()
        names = listing.names() if names is None else names
        return {name: (listing.tag(name), self._alias_tag(listing, name)) for name in names}

    def _take_number(self, store: ConditionalStore, name: str, raw: bytes) -> Version:
        """Store a manifest under the first number that nobody else was faster to take."""
        first = 1 + max(self._list_model(name).numbers(name), default=0)
        for number in range(first, first + _MAX_NUMBER_ATTEMPTS):
            version = self.version(name, number)
            if store.put_if_absent(manifest_key(version), raw):
                return version
        raise RegistryError(
            f"{self.location} refused {_MAX_NUMBER_ATTEMPTS} new versions of {name} in a row, {version.number} the "
            "last, as if each were there already"
        )

    @override
    def _stored_versions(self, name: str) -> list[int]:
        return self._list_model(name).versions(name)

    @override
    def _stored_aliases(self, name: str) -> dict[str, int]:
        found = self._store.read(f"{name}/{ALIASES_FILE}")
        self._known.remember_aliases(name, found and found.content)
        return {} if found is None else parse_aliases(found.content, self._path_of(name, ALIASES_FILE))

    @override
    def _stored_default(self) -> bytes:
        content = super()._stored_default()
        self._known.remember_default(content)
        return content

    def _alias_tag(self, listing: Listing, name: str) -> str:
        """The tag of a model's aliases; their hash if the store has no tags."""
        tag = listing.alias_tag(name)
        if tag is not None:
            return tag
        found = self._store.read(f"{name}/{ALIASES_FILE}")
        return "" if found is None else hashlib.sha256(found.content).hexdigest()

    def _list_all(self) -> Listing:
        """All of the registry, which is taken note of."""
        listing = Listing(self._store.entries())
        self._known.remember_all({name: listing.versions(name) for name in listing.models()})
        return listing

    def _list_model(self, name: str) -> Listing:
        """One model, which is taken note of."""
        listing = Listing(self._store.entries(name))
        numbers = listing.versions(name)
        if numbers or self._known.versions(name):
            self._known.remember_versions(name, numbers)
        return listing

    def _manifest_bytes(self, version: Version) -> bytes:
        def read() -> bytes:
            found = self._store.read(manifest_key(version))
            if found is None or not found.content:
                raise ManifestError(
                    f"{self._path_of(manifest_key(version))} is missing: never finished, or deleted"
                )
            return found.content

        return self._breaker.call(read, lambda: self._cache.manifest(version))
