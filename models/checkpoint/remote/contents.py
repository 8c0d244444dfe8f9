"""Contents of files in an object store, each under its SHA-256."""

from collections.abc import Iterator
from pathlib import Path

from models.checkpoint.manifest import MANIFEST_FILE, FileEntry, Manifest
from models.checkpoint.remote.cache import Download
from models.checkpoint.remote.listing import manifest_key
from models.checkpoint.remote.object_store import ConditionalStore, ObjectStore
from models.checkpoint.versions import Version
from models.errors import IntegrityError

BLOBS_FOLDER = ".blobs"
"""The folder of contents."""


def upload_blobs(store: ConditionalStore, folder: Path, manifest: Manifest) -> None:
    """Store the contents of a version's files.

    Those that are there already are stored anew: so they are young, and nobody sweeps them away before the manifest
    names them.

    Raises:
        RegistryError: the store cannot be reached.
    """
    for sha256, file in {entry.sha256: file for file, entry in manifest.files.items()}.items():
        store.upload(f"{BLOBS_FOLDER}/{sha256}", folder / file)


def blob_downloader(store: ObjectStore, version: Version) -> Download:
    """Where the contents of a version's files come from."""
    folder = manifest_key(version).removesuffix(f"/{MANIFEST_FILE}")

    def download(name: str, entry: FileEntry) -> Iterator[bytes]:
        # a local registry that was copied as it is has the files beside their manifest
        for key in (f"{BLOBS_FOLDER}/{entry.sha256}", f"{folder}/{name}"):
            try:
                yield from store.chunks(key, entry.bytes)
            except FileNotFoundError:
                continue
            return
        raise IntegrityError(f"{version.address}: {name} is not in {store.location}")

    return download
