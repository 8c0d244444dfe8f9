"""A folder of models, each with immutable, numbered versions and movable aliases.

    <root>/<model>/versions/<7>/        a checkpoint; visible once its directory has this name
    <root>/<model>/versions/.tmp-…/     one being written; ignored by readers
    <root>/<model>/versions/.deleted-7/ an empty tombstone: the number is never used again
    <root>/<model>/aliases.json         {"champion": 7}

A version appears by one `rename` after its files are written, flushed and verified, so a
reader sees all of it or nothing, whenever the writer dies.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from models.checkpoint.manifest import MANIFEST_FILE, read_manifest, verify_files
from models.errors import InvalidInputError, ManifestError, ModelNotFoundError, RegistryError

CHAMPION = "champion"
ALIASES_FILE = "aliases.json"
MAX_NAME_LENGTH = 100
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TEMPORARY = ".tmp-"
_DELETED = ".deleted-"

Stamp: TypeAlias = tuple[int, ...]
"""Another one means that something has changed."""


class Version(NamedTuple):
    """One published version and where it lies."""

    name: str
    number: int
    path: Path

    @property
    def address(self) -> str:
        """`name@number`."""
        return f"{self.name}@{self.number}"


class Registry:
    """A registry in a local folder.

    Args:
        root: the folder.
        create: make it if it is missing; otherwise a missing folder is an error.

    Raises:
        RegistryError: the folder is missing, or is no folder.
    """

    def __init__(self, root: Path, *, create: bool = False) -> None:
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

    def models(self) -> list[str]:
        """Names of the models with at least one version, sorted.

        Raises:
            RegistryError: the folder cannot be read, or is there no longer.
        """
        return [name for name in self._names() if self.versions(name)]

    def versions(self, name: str) -> list[int]:
        """A model's version numbers, ascending; empty if there is no such model."""
        folder = self._folder(name) / "versions"
        try:
            return sorted(
                int(p.name)
                for p in folder.iterdir()
                if _NUMBER.fullmatch(p.name) and (p / MANIFEST_FILE).is_file()
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise RegistryError(f"cannot read {folder}: {error.strerror}") from None

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases.

        Raises:
            ManifestError: aliases.json is damaged.
        """
        path = self._folder(name) / ALIASES_FILE
        try:
            aliases = json.loads(path.read_bytes())
            if not isinstance(aliases, dict) or not all(type(v) is int for v in aliases.values()):
                raise ValueError("it must map names to version numbers")  # noqa: TRY301 - same message as bad JSON
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise ManifestError(
                f"{path} is damaged: {error}; set the alias again with `gramophone models promote`"
            ) from None
        return aliases

    def resolve(self, address: str) -> Version:
        """The version that `name`, `name@7` or `name@champion` means.

        A bare name means the alias `champion`, else the newest version.

        Raises:
            ModelNotFoundError: there is no such model, version or alias; the message lists what there is.
            ManifestError: aliases.json is needed and damaged.
        """
        name, _, which = address.partition("@")
        versions = self.versions(name) if _is_name(name) else []
        if not versions:
            known = ", ".join(self.models()) or "none"
            raise ModelNotFoundError(
                f"there is no model {name[:MAX_NAME_LENGTH]!r} in {self.root}; there are: {known}"
            )
        if which.isdecimal():
            if not _NUMBER.fullmatch(which):
                raise ModelNotFoundError(
                    f"model {name!r} has no version {which[:20]!r}: not a version number"
                )
            number = int(which)
        else:
            aliases = self.aliases(name)
            if which and which not in aliases:
                raise _no_alias(name, which, aliases)
            number = aliases[which or CHAMPION] if (which or CHAMPION) in aliases else versions[-1]
        if number not in versions:
            listed = ", ".join(map(str, versions[-10:]))
            raise ModelNotFoundError(f"model {name!r} has no version {number}; it has: {listed}")
        return Version(name, number, self._folder(name) / "versions" / str(number))

    def publish(self, name: str, write: Callable[[Path], None]) -> Version:
        """Make a new version.

        Args:
            name: the model; letters, digits, `.`, `_` and `-`.
            write: fills the directory it is given with a whole checkpoint, manifest last.

        Raises:
            InvalidInputError: the name cannot be a folder's.
            CheckpointError: what was written does not verify; nothing is published.
            RegistryError: the file system refused; nothing is published.
        """
        check_name(name)
        versions = self._folder(name) / "versions"
        temporary = versions / f"{_TEMPORARY}{uuid.uuid4().hex}"
        with contextlib.ExitStack() as locks:
            locks.callback(shutil.rmtree, temporary, ignore_errors=True)  # gone already if it was published
            locks.enter_context(_writing(versions))
            versions.mkdir(parents=True, exist_ok=True)
            with _held(versions):  # so that nobody takes the new directory for an abandoned one
                _remove_abandoned(versions)
                temporary.mkdir()
                locks.enter_context(_held(temporary))
            write(temporary)
            verify_files(temporary, read_manifest(temporary))
            _flush_tree(temporary)
            number = _rename_to_next_number(temporary, versions)
        return Version(name, number, versions / str(number))

    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Point an alias at a version, atomically.

        Raises:
            ModelNotFoundError: there is no such version.
            InvalidInputError: the alias is not a name, or is a number.
            ManifestError: aliases.json is damaged (it is set anew if `alias` is the champion).
            RegistryError: the file system refused.
        """
        if alias.isdecimal():
            raise InvalidInputError(f"the alias {alias!r} would read as a version number", parameter="alias")
        check_name(alias, parameter="alias")
        self.resolve(f"{name}@{number}")
        folder = self._folder(name)
        with _writing(folder), _held(folder):
            try:
                aliases = self.aliases(name)
            except ManifestError:
                if alias != CHAMPION:
                    raise
                aliases = {}
            _write_aliases(folder, {**aliases, alias: number})

    def delete_alias(self, name: str, alias: str) -> int:
        """Take an alias away, atomically.

        Returns:
            The version that it pointed to.

        Raises:
            ModelNotFoundError: there is no such model or alias.
            ManifestError: aliases.json is damaged.
            RegistryError: the file system refused.
        """
        self.resolve(name)
        folder = self._folder(name)
        with _writing(folder), _held(folder):
            aliases = self.aliases(name)
            if alias not in aliases:
                raise _no_alias(name, alias, aliases)
            number = aliases.pop(alias)
            _write_aliases(folder, aliases)
        return number

    def stamps(self, names: Iterable[str] | None = None) -> dict[str, Stamp]:
        """What tells cheaply that a model's versions or aliases have changed; nothing is read.

        Two changes within one tick of the file system's clock may have one stamp: look a second time.

        Args:
            names: of models, there or not; None means every folder of the registry.

        Raises:
            RegistryError: the folder cannot be read.
        """
        if names is None:
            names = self._names()
        return {
            name: (*_stat(self._folder(name) / "versions"), *_stat(self._folder(name) / ALIASES_FILE))
            for name in names
        }

    def delete(self, name: str, number: int) -> None:
        """Remove a version; its number is never used again.

        Raises:
            ModelNotFoundError: there is no such version.
            InvalidInputError: an alias points to it.
            RegistryError: the file system refused.
        """
        version = self.resolve(f"{name}@{number}")
        folder = self._folder(name)
        with _writing(folder), _held(folder):
            pointing = [alias for alias, target in self.aliases(name).items() if target == number]
            if pointing:
                raise InvalidInputError(
                    f"{version.address} is {' and '.join(pointing)}: point the alias elsewhere first",
                    parameter="version",
                )
            tombstone = version.path.with_name(f"{_DELETED}{number}")
            version.path.rename(tombstone)
            for entry in tombstone.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _names(self) -> list[str]:
        """Folders that may be models, sorted."""
        try:
            return sorted(p.name for p in self.root.iterdir() if _is_name(p.name))
        except OSError as error:
            raise RegistryError(f"cannot read the registry {self.root}: {error.strerror}") from None

    def _folder(self, name: str) -> Path:
        return self.root / name


def check_name(name: str, *, parameter: str = "name") -> None:
    """Refuse what cannot be the name of a model or an alias.

    Raises:
        InvalidInputError: it has other characters than letters, digits, `.`, `_`, `-`, or is too long.
    """
    if not _is_name(name):
        raise InvalidInputError(
            f"{parameter} is {name[:120]!r}; it must start with a letter or digit, go on with letters, digits, "
            f"'.', '_' or '-', and have at most {MAX_NAME_LENGTH} characters",
            parameter=parameter,
        )


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def _no_alias(name: str, alias: str, aliases: Iterable[str]) -> ModelNotFoundError:
    known = ", ".join(sorted(aliases)) or "none"
    return ModelNotFoundError(
        f"model {name!r} has no alias {alias[:MAX_NAME_LENGTH]!r}; its aliases: {known}"
    )


def _write_aliases(folder: Path, aliases: Mapping[str, int]) -> None:
    """Replace aliases.json by one rename."""
    temporary = folder / f"{_TEMPORARY}aliases"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(aliases, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / ALIASES_FILE)
    _flush(folder)


def _stat(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_ino, found.st_size


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say which folder cannot be written to."""
    try:
        yield
    except OSError as error:
        raise RegistryError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which the system drops when the process dies, however it dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(versions: Path) -> None:
    """Remove temporary directories whose writer is no more."""
    for path in versions.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)


def _rename_to_next_number(temporary: Path, versions: Path) -> int:
    used = [p.name.removeprefix(_DELETED) for p in versions.iterdir()]
    number = 1 + max((int(n) for n in used if _NUMBER.fullmatch(n)), default=0)
    while True:
        try:
            temporary.rename(versions / str(number))
        except (
            OSError
        ) as error:  # another publisher was faster: a directory with files in it is never replaced
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            number += 1
        else:
            _flush(versions)
            return number


def _flush_tree(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
