"""Registry in a local folder, and the factory of registries and object stores by address.

    <root>/<model>/versions/<7>/        a checkpoint; visible once its directory has this name
    <root>/<model>/versions/.tmp-…/     one being written; ignored by readers
    <root>/<model>/versions/.deleted-7/ an empty tombstone: the number is never used again
    <root>/<model>/aliases.json         {"champion": 7}
    <root>/.default                     name of the model for requests that name none

A version appears by one `rename` after its files are written, flushed and verified, so a reader
sees all of it or nothing, whenever the writer dies.
"""

import errno
import re
import shutil
from pathlib import Path
from typing import TypeAlias

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
    format_aliases,
    is_name,
    is_version_number,
    read_manifest,
)
from models.checkpoint.registry_interface import Registry
from models.checkpoint.stores import FolderStore, ObjectStore, StoreTimeouts, require_writable
from models.errors import InvalidInputError, ManifestError, RegistryError

Address: TypeAlias = str | Path
"""Of a registry: a folder, or a URL such as `s3://bucket/prefix`."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_FILE_URL = "file://"
_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)", re.IGNORECASE)


def open_registry(address: Address, *, create: bool = False, cache: Path | None = None) -> Registry:
    """Open a registry by its address.

    Args:
        address: a folder, or a URL: `file:///folder`, `s3://bucket/prefix`, or of whatever else fsspec can list
            and read.
        create: for writing: make a missing folder, otherwise that is an error; ask a remote registry whether it is
            there and can be written to, before there is something to lose.
        cache: the folder where versions of remote registries are kept; None means the process's own choice,
            `models.checkpoint.folders`.

    Raises:
        RegistryError: there is no such registry, it needs a package that is not installed, or cannot be written to.
        InvalidInputError: the URL holds credentials or cannot be a registry's.
    """
    folder = local_registry_folder(address)
    if folder is not None:
        return LocalRegistry(folder, create=create)
    from models.checkpoint.remote_registry import RemoteRegistry

    store = open_store(address)
    if create:
        require_writable(store).entries()
    return RemoteRegistry(store, cache=cache)


def local_registry_folder(address: Address) -> Path | None:
    """The folder that an address means; None if it is the URL of something remote.

    Raises:
        InvalidInputError: it is empty, a `file:` URL without an absolute path, or a URL with one slash only.
    """
    text = str(address)
    if not text:
        raise InvalidInputError("the registry is empty: give a folder or a URL", parameter="registry")
    if isinstance(address, str) and _ONE_SLASH.match(text):
        raise InvalidInputError(
            f"the registry is {text!r}; a URL has two slashes after the colon", parameter="registry"
        )
    if isinstance(address, Path) or not _URL.match(text):
        return Path(address)
    if not text.lower().startswith(_FILE_URL):
        return None
    path = text[len(_FILE_URL) :]
    if not path.startswith("/"):
        raise InvalidInputError(
            f"the registry is {text!r}; a file URL is file:///absolute/path", parameter="registry"
        )
    return Path(path)


_DELETED = ".deleted-"


class LocalRegistry(Registry):
    """A registry in a local folder.

    Args:
        root: the folder.
        create: make it if it is missing; otherwise a missing folder is an error.

    Raises:
        RegistryError: the folder is missing, or is no folder.
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
            if not self.models():  # it is gone, or a volume that is not mounted
                raise RegistryError(f"cannot read {path}: the registry is not there") from None
            raise ManifestError(f"{path}: {error}") from None

    @override
    def _publish_folder(self, name: str, folder: Path, manifest: Manifest) -> Version:
        make_read_only(folder)
        fsync_tree(folder)
        self.pin_default(name)
        with locked_folder(folder.parent):  # nobody deletes the newest while the next number is looked for
            number = _rename_to_next_number(folder, folder.parent)
        return self.version(name, number)

    def replace_aliases(self, name: str, aliases: dict[str, int]) -> None:
        """Point aliases at versions, atomically, and take all others away; for one who knows the versions.

        Raises:
            RegistryError: the registry cannot be written to.
        """
        require_writable(self._store).put(f"{name}/{ALIASES_FILE}", format_aliases(aliases))

    def retire_numbers(self, name: str, backup: "LocalRegistry") -> None:
        """Have no later version of a model get a number that was deleted in a backup.

        Raises:
            RegistryError: the registry cannot be written to.
        """
        versions, present = self.root / name / "versions", self.versions(name)
        with report_write_errors(versions):
            for tombstone in (backup.root / name / "versions").glob(f"{_DELETED}*"):
                number = tombstone.name.removeprefix(_DELETED)
                if is_version_number(number) and int(number) not in present:
                    (versions / tombstone.name).mkdir(parents=True, exist_ok=True)

    @override
    def sweep(self, *, older_than_s: float) -> int:
        """A live writer is recognized by its lock, whatever the age."""
        removed = 0
        self.models()  # raises what prevents reading
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
            version = self.resolve(f"{name}@{number}")  # somebody else may have deleted it meanwhile
            check_unaliased(version, self.aliases(name))
            tombstone = version.path.with_name(f"{_DELETED}{number}")
            version.path.rename(tombstone)
            _empty_folder(tombstone)


def _empty_folder(tombstone: Path) -> bool:
    """Remove what is in a folder; whether anything was."""
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
            # another publisher was faster: a directory with files in it is never replaced
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            number += 1
        else:
            fsync_path(versions)
            return number


STORE_TIMEOUTS = StoreTimeouts()
"""How long every store is waited for."""

_FORBIDDEN = re.compile(r"[@?#\s]|::")


def open_store(address: Address) -> ObjectStore:
    """The store of a registry; no request is made yet.

    Raises:
        InvalidInputError: the URL holds credentials or a query, or names no bucket or folder.
        RegistryError: it needs a package that is not installed, or fsspec knows no such protocol.
    """
    folder = local_registry_folder(address)
    if folder is not None:
        return FolderStore(folder)
    url = str(address)
    protocol, _, rest = url.partition("://")
    if _FORBIDDEN.search(rest):  # not quoted: it may hold a password
        raise InvalidInputError(
            f"the registry's {protocol}:// URL has one of @ ? # or a space: credentials and options do not go there "
            "but into the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL",
            parameter="registry",
        )
    if not rest.strip("/"):
        raise InvalidInputError(
            f"the registry is {url!r}, which names no bucket or folder", parameter="registry"
        )
    if protocol == "memory":
        from models.checkpoint.fsspec_store import MemoryStore

        return MemoryStore(url, STORE_TIMEOUTS)
    if protocol == "s3":
        try:
            from models.checkpoint.s3_store import S3Store
        except ImportError as error:
            raise RegistryError(
                f"registries at s3:// need the extra s3: pip install 'gramophone-lm[s3]' ({error})"
            ) from None
        return S3Store(url, STORE_TIMEOUTS)
    from models.checkpoint.fsspec_store import FsspecStore

    return FsspecStore(url, STORE_TIMEOUTS)
