"""Versions of remote registries on this machine's disk, by content.

    <cache>/blobs/<sha256>                                content of files, each once
    <cache>/registries/<its URL>/<model>/versions/<7>/    a whole version: hard links to blobs, and its manifest
    <cache>/registries/<its URL>/.runs/…                  trainings that are to be resumed

Nothing appears under its name before its hash was found right; processes share a cache by locks
and renames. It can be removed at any time: what is needed is fetched again.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from models.checkpoint.folders import fsync_tree, locked_folder, report_write_errors, temporary_folder
from models.checkpoint.manifest import (
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    parse_manifest,
    sha256_of,
    verify_files,
)
from models.checkpoint.versions import Version
from models.errors import IntegrityError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]+")
_MAX_NAME_LENGTH = 80

Download = Callable[[str, FileEntry], Iterator[bytes]]
"""The bytes of a version's file, by its name and what the manifest says of it."""


class DownloadCache:
    """What was fetched from one remote registry.

    Args:
        folder: of the cache, which other registries and processes use too; there or not.
        location: the registry's URL.
    """

    def __init__(self, folder: Path, location: str) -> None:
        self._blobs = folder / "blobs"
        readable = _NOT_IN_NAMES.sub("_", location)[-_MAX_NAME_LENGTH:]
        digest = hashlib.sha256(location.encode()).hexdigest()[:12]
        self.root = folder / "registries" / f"{readable}-{digest}"

    def manifest(self, version: Version) -> bytes | None:
        """The manifest of a version that is here; None if it is not."""
        try:
            return (version.path / MANIFEST_FILE).read_bytes()
        except OSError:
            return None

    def materialise(self, version: Version, raw: bytes, download: Download) -> Path:
        """The folder of a version, with all its files.

        Args:
            version: which.
            raw: its manifest, which all must agree with.
            download: where the files come from that are not here.

        Raises:
            CheckpointError: a file is not what the manifest says, or the manifest is none.
            RegistryError: a file cannot be fetched, or there is no room for it.
        """
        manifest = parse_manifest(raw, f"{version.address}: {MANIFEST_FILE}")
        if self._is_complete(version, raw, manifest):
            return version.path
        model = version.path.parents[1]
        with report_write_errors(model):
            model.mkdir(parents=True, exist_ok=True)
            with locked_folder(model):  # of several processes that want it, one fetches it
                if not self._is_complete(version, raw, manifest):
                    self._assemble(version, raw, manifest, download)
        return version.path

    def blob(self, name: str, entry: FileEntry, download: Download) -> Path:
        """One file by its content, fetched if it is not here.

        Raises:
            IntegrityError: what came is not what the manifest says.
            RegistryError: it cannot be fetched, or there is no room for it.
        """
        path = self._blobs / entry.sha256
        if _matches_entry(path, entry):
            return path
        with report_write_errors(self._blobs), temporary_folder(self._blobs) as folder:
            temporary = folder / entry.sha256
            digest = hashlib.sha256()
            num_bytes = 0
            with temporary.open("wb") as file:
                for chunk in download(name, entry):
                    digest.update(chunk)
                    num_bytes += len(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if num_bytes != entry.bytes:
                raise IntegrityError(
                    f"{name} came with {num_bytes} bytes, {entry.bytes} were published; nothing of it is kept"
                )
            if digest.hexdigest() != entry.sha256:
                raise IntegrityError(
                    f"{name} came with other bytes than were published: its SHA-256 does not match; "
                    "nothing of it is kept"
                )
            temporary.replace(path)
        return path

    @contextlib.contextmanager
    def staging_folder(self, model: str) -> Iterator[Path]:
        """An empty folder to write a new version of a model in; removed at the end, if it was not adopted."""
        versions = self.root / model / "versions"
        with report_write_errors(versions), temporary_folder(versions) as folder:
            yield folder

    def adopt(self, folder: Path, version: Version, manifest: Manifest) -> None:
        """Keep what was written in a scratch folder, and has been published since, as that version."""
        with contextlib.suppress(OSError):  # it can be fetched
            self._blobs.mkdir(parents=True, exist_ok=True)
            for name, entry in manifest.files.items():
                with contextlib.suppress(FileExistsError):
                    (self._blobs / entry.sha256).hardlink_to(folder / name)
            folder.rename(version.path)

    def _is_complete(self, version: Version, raw: bytes, manifest: Manifest) -> bool:
        """Whether this very version is here, and its files are as they were."""
        if self.manifest(version) != raw:
            return False
        try:
            verify_files(version.path, manifest)
        except IntegrityError:
            return False
        return True

    def _assemble(self, version: Version, raw: bytes, manifest: Manifest, download: Download) -> None:
        versions = version.path.parent
        with temporary_folder(versions) as folder:
            new, old = folder / "new", folder / "old"
            new.mkdir()
            for name, entry in manifest.files.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).hardlink_to(self.blob(name, entry, download))
            with (new / MANIFEST_FILE).open("xb") as file:
                file.write(raw)
            fsync_tree(new)
            if version.path.exists():  # damaged, or of a registry that was emptied since
                version.path.rename(old)
            new.rename(version.path)


def _matches_entry(path: Path, entry: FileEntry) -> bool:
    try:
        return path.stat().st_size == entry.bytes and sha256_of(path) == entry.sha256
    except OSError:
        return False
