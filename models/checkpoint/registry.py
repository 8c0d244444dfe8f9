"""Registry in a local folder, and the factory of registries and object stores by address.

    <root>/<model>/versions/<7>/        a checkpoint; visible once its folder has this name
    <root>/<model>/versions/.tmp-…/     unfinished version; ignored by readers
    <root>/<model>/versions/.deleted-7/ an empty tombstone: the number is never used again
    <root>/<model>/aliases.json         {"champion": 7}
    <root>/.default                     name of the model for requests that name none

A version appears by one `rename` once files are written, flushed and verified: readers see all
of it or nothing, whenever the writer dies.
"""

import errno
import re
import shutil
from pathlib import Path
from typing import Any, TypeAlias, cast

from typing_extensions import override

from models.checkpoint.folders import (
    fsync_path,
    fsync_tree,
    locked_folder,
    make_read_only,
    remove_stale_folders,
    report_write_errors,
)
from models.checkpoint.manifest import (
    ALIASES_FILE,
    Manifest,
    Version,
    check_unaliased,
    format_json,
    is_name,
    is_version_number,
    read_manifest,
)
from models.checkpoint.registry_interface import Registry
from models.checkpoint.stores import FolderStore, ObjectStore, StoreTimeouts, require_writable
from models.errors import InputError, ManifestError, RegistryError, require_package

Address: TypeAlias = str | Path
"""Address of a registry: a folder, or a URL such as `s3://bucket/prefix`."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_FILE_URL = "file://"
_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)", re.IGNORECASE)

_DELETED = ".deleted-"

STORE_TIMEOUTS = StoreTimeouts()
"""Timeouts of every store."""

_FORBIDDEN = re.compile(r"[@?#\s]|::")


def open_registry(address: Address, *, create: bool = False, cache: Path | None = None) -> Registry:
    """Open a registry by its address.

    Args:
        address: a folder, or a URL: `file:///folder`, `s3://bucket/prefix`, or any URL that fsspec can list and read.
        create: open for writing: create a missing folder, else an error; check early that a remote registry
            exists and is writable.
        cache: folder for versions of remote registries; None: the process-wide setting in
            `models.checkpoint.folders`.

    Raises:
        RegistryError: the registry is missing, needs a missing package, or is not writable.
        InputError: the URL has credentials or is not valid for a registry.
    """
    store = open_store(address)
    if isinstance(store, FolderStore):
        return LocalRegistry(Path(store.location), create=create)
    # imports fsspec, as the store does
    from models.checkpoint.remote_registry import RemoteRegistry

    if create:
        require_writable(store).entries()
    # a URL's store is one of fsspec
    return RemoteRegistry(cast("Any", store), cache=cache)


def registry_folder(address: Address) -> Path | None:
    """Return the folder of an address; None if it is a remote URL.

    Raises:
        InputError: it is empty, a `file:` URL without an absolute path, or a URL with only one slash.
    """
    text = str(address)
    if not text:
        raise InputError("the registry is empty: give a folder or a URL", param="registry")
    if isinstance(address, str) and _ONE_SLASH.match(text):
        raise InputError(f"the registry is {text!r}; a URL has two slashes after the colon", param="registry")
    if isinstance(address, Path) or not _URL.match(text):
        return Path(address)
    if not text.lower().startswith(_FILE_URL):
        return None
    path = text[len(_FILE_URL) :]
    if not path.startswith("/"):
        raise InputError(f"the registry is {text!r}; a file URL is file:///absolute/path", param="registry")
    return Path(path)


class LocalRegistry(Registry):
    """Registry in a local folder.

    Args:
        root: the folder.
        create: create a missing folder, else an error.

    Raises:
        RegistryError: it is missing or not a folder.
    """

    def __init__(self, root: Path, *, create: bool = False) -> None:
        super().__init__(FolderStore(root), root)
        self.root = root
        if create:
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RegistryError(f"cannot create the registry {root}: {error.strerror}") from None
        if not root.is_dir():
            raise RegistryError(
                f"there is no registry at {root}: train or import a model first, or name another folder with --registry"
            )

    @override
    def fetch(self, version: Version) -> Path:
        return version.path

    @override
    def manifest(self, version: Version) -> Manifest:
        return read_manifest(version.path)

    @override
    def read_file(self, version: Version, name: str) -> bytes:
        path = version.path / name
        try:
            return path.read_bytes()
        except OSError as error:
            if not self.models():  # deleted, or a volume that is not mounted
                raise RegistryError(f"cannot read {path}: the registry does not exist") from None
            raise ManifestError(f"{path}: {error}") from None

    @override
    def _publish_folder(self, name: str, folder: Path, manifest: Manifest) -> Version:
        make_read_only(folder)
        fsync_tree(folder)
        self.pin_default(name)
        with locked_folder(folder.parent):  # no version is deleted while the next number is chosen
            number = _rename_to_next_number(folder, folder.parent)
        return self.version(name, number)

    def replace_aliases(self, name: str, aliases: dict[str, int]) -> None:
        """Replace all aliases of a model atomically, without checking the versions."""
        require_writable(self._store).put(f"{name}/{ALIASES_FILE}", format_json(aliases))

    def retire_numbers(self, name: str, backup: "LocalRegistry") -> None:
        """Reserve numbers deleted in a backup, so no version gets them."""
        versions, present = self.root / name / "versions", self.versions(name)
        with report_write_errors(versions):
            for tombstone in (backup.root / name / "versions").glob(f"{_DELETED}*"):
                number = tombstone.name.removeprefix(_DELETED)
                if is_version_number(number) and int(number) not in present:
                    (versions / tombstone.name).mkdir(parents=True, exist_ok=True)

    @override
    def sweep(self, *, older_than_s: float) -> int:
        """Remove leftovers of any age; the lock marks a running writer."""
        removed = 0
        self.models()  # raises RegistryError if the registry cannot be read
        for versions in self.root.glob("*/versions"):
            folder = versions.parent
            if is_name(folder.name) and versions.is_dir():
                with report_write_errors(folder), locked_folder(folder), locked_folder(versions):
                    removed += remove_stale_folders(versions) + sum(
                        map(_empty_folder, versions.glob(f"{_DELETED}*"))
                    )
        return removed

    @override
    def delete(self, name: str, number: int) -> None:
        self.resolve(f"{name}@{number}")
        folder = self.root / name
        with report_write_errors(folder), locked_folder(folder), locked_folder(folder / "versions"):
            # another process may have deleted it meanwhile
            version = self.resolve(f"{name}@{number}")
            check_unaliased(version, self.aliases(name))
            tombstone = version.path.with_name(f"{_DELETED}{number}")
            version.path.rename(tombstone)
            _empty_folder(tombstone)


def _empty_folder(tombstone: Path) -> bool:
    """Empty a folder; return True if it was not empty."""
    entries = list(tombstone.iterdir())
    for entry in entries:
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return bool(entries)


def _rename_to_next_number(temporary: Path, versions: Path) -> int:
    used = [p.name.removeprefix(_DELETED) for p in versions.iterdir()]
    number = 1 + max((int(n) for n in used if is_version_number(n)), default=0)
    while True:
        try:
            temporary.rename(versions / str(number))
        except OSError as error:
            # another publisher was faster: rename replaces no folder with files
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            number += 1
        else:
            fsync_path(versions)
            return number


def open_store(address: Address) -> ObjectStore:
    """Open the store of a registry, without a request yet.

    Raises:
        InputError: the URL has credentials or a query, or no bucket or folder.
        RegistryError: it needs a missing package, or fsspec lacks the protocol.
    """
    folder = registry_folder(address)
    if folder is not None:
        return FolderStore(folder)
    url = str(address)
    protocol, _, rest = url.partition("://")
    if _FORBIDDEN.search(rest):  # not quoted in the message: it may have a password
        raise InputError(
            f"the registry's {protocol}:// URL contains @, ?, #, :: or a space; set credentials and options in "
            "the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL",
            param="registry",
        )
    if not rest.strip("/"):
        raise InputError(f"the registry is {url!r}, without a bucket or folder", param="registry")
    if protocol == "s3":
        require_package("s3fs", "a registry at s3://", param="registry")
        from models.checkpoint.s3_store import S3Store

        return S3Store(url, STORE_TIMEOUTS)
    from models.checkpoint.fsspec_store import FsspecStore, MemoryStore

    return (MemoryStore if protocol == "memory" else FsspecStore)(url, STORE_TIMEOUTS)
