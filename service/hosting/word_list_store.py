"""Stored word lists: compiled files in a folder by owner, mapped by all processes that use them.

    <folder>/<owner>/<name>.words       visible once complete; a replaced file lives on while it is mapped
    <folder>/<owner>/.tmp-…             file being written

A list is replaced by renaming a complete file, so requests read the old or the new list, never a part.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import NamedTuple, TypeAlias

from models.errors import InputError, ManifestError, UnknownWordListError, WordListStoreError
from models.files import TEMPORARY_PREFIX
from models.prefix_cache import LimitedCache
from models.word_list import WordList, WordListBuilder

_SUFFIX = ".words"
_LOCK_FILE = ".lock"
_MAX_MAPPED_ENTRIES = 4_000_000
"""Entries of the lists of which the maps, and what requests derive from them, are kept."""

_SIZES_TTL_S = 10.0
"""Time for which the sizes of all files are kept for metrics."""

_Stamp: TypeAlias = tuple[int, int, int]
"""Inode, time and size of a file."""


class StoredList(NamedTuple):
    """A list and the size of its file in bytes."""

    words: WordList
    num_bytes: int


class WordListStore:
    """Word lists by owner and name, in files shared by processes.

    `find` takes microseconds if the list has not changed. Methods that write may wait for the disk, so threads
    call them.

    Args:
        folder: where the lists are; created with the first one, for this account only.
        max_lists: maximum lists of an owner.
        max_bytes: maximum size of a list as it is sent; also an attribute.
    """

    def __init__(self, folder: Path, *, max_lists: int, max_bytes: int) -> None:
        self._given_folder, self._max_lists, self.max_bytes = folder, max_lists, max_bytes
        self._cache = LimitedCache[Path, tuple[_Stamp, StoredList]](_MAX_MAPPED_ENTRIES)
        self._known_sizes = -_SIZES_TTL_S, list[int]()

    def find(self, owner: str, name: str, *, param: str = "name") -> StoredList:
        """Return a list.

        Raises:
            UnknownWordListError: there is none of this name.
            WordListStoreError: its file cannot be read, or is damaged.
        """
        path = self._path(owner, name)
        try:
            stamp = _stamp(path)
            known = self._cache.find(path)
            if known is None or known[0] != stamp:
                known = self._keep(path, stamp, WordList(path))
        except (OSError, ManifestError) as error:
            self._cache.remove(path)
            if isinstance(error, FileNotFoundError) or not path.exists():  # also if it is deleted meanwhile
                raise UnknownWordListError.of(
                    param,
                    f"is {name!r}; this key has no word list of that name, PUT /v1/wordlists/{name} stores it",
                ) from None
            raise _unusable(path, error) from None
        return known[1]

    def _keep(self, path: Path, stamp: _Stamp, words: WordList) -> tuple[_Stamp, StoredList]:
        kept = stamp, StoredList(words, stamp[-1])
        self._cache.insert(path, kept, 1 + words.info.entries)
        return kept

    def all(self, owner: str) -> list[StoredList]:
        """Return an owner's lists, sorted by name; damaged ones are left out.

        Raises:
            WordListStoreError: the folder cannot be read.
        """
        found = []
        for path in self._files(owner):
            with contextlib.suppress(UnknownWordListError, WordListStoreError):
                found.append(self.find(owner, path.stem))
        return found

    def put(self, owner: str, name: str, builder: WordListBuilder) -> StoredList:
        """Compile a list and store it, in place of one of this name.

        Raises:
            InputError: the owner has too many lists.
            WordListStoreError: it cannot be written.
        """
        path = self._path(owner, name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (path.parent / _LOCK_FILE).open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
                for unfinished in path.parent.glob(f"{TEMPORARY_PREFIX}*"):
                    unfinished.unlink()
                new = path.with_name(f"{TEMPORARY_PREFIX}{name}")
                try:
                    builder.write(new, version=1 + self._check_place(owner, name))
                    with new.open("rb") as written:
                        os.fsync(written.fileno())
                    stored, stamp = WordList(new), _stamp(new)
                    new.replace(path)
                finally:
                    new.unlink(missing_ok=True)
        except (OSError, ManifestError) as error:
            raise _unusable(path, error) from None
        return self._keep(path, stamp, stored)[1]

    def delete(self, owner: str, name: str) -> bool:
        """Delete a list; return whether it existed.

        Raises:
            WordListStoreError: it cannot be deleted.
        """
        path = self._path(owner, name)
        self._cache.remove(path)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unusable(path, error) from None
        return True

    def count(self) -> float:
        """Return the number of all owners' lists."""
        return float(len(self._sizes()))

    def num_bytes(self) -> float:
        """Return the size of all owners' files in bytes."""
        return float(sum(self._sizes()))

    def _sizes(self) -> list[int]:
        at_s, sizes = self._known_sizes
        if time.monotonic() - at_s >= _SIZES_TTL_S:
            with contextlib.suppress(
                OSError, WordListStoreError
            ):  # one is deleted now, or there is no folder
                sizes = [path.stat().st_size for path in self._folder.glob(f"*/*{_SUFFIX}")]
            self._known_sizes = time.monotonic(), sizes
        return sizes

    def _check_place(self, owner: str, name: str) -> int:
        """Return the version of the list to replace, 0 if there is none.

        Raises:
            InputError: it is a new one, and the owner has too many lists.
        """
        names = [path.stem for path in self._files(owner)]
        if name in names:
            with contextlib.suppress(UnknownWordListError, WordListStoreError):
                return self.find(owner, name).words.info.version
        elif len(names) >= self._max_lists:
            raise InputError.of("name", f"is {name!r}, a new list; this key has {len(names)}, the maximum")
        return 0

    @property
    def _folder(self) -> Path:
        """The folder of all lists.

        Raises:
            WordListStoreError: it is in a home folder, and there is none.
        """
        try:
            return self._given_folder.expanduser()
        except RuntimeError as error:
            raise _unusable(self._given_folder, error) from None

    def _files(self, owner: str) -> list[Path]:
        return sorted(self._path(owner, "").parent.glob(f"[!.]*{_SUFFIX}"))

    def _path(self, owner: str, name: str) -> Path:
        # keys have any name
        folder = hashlib.sha256(owner.encode()).hexdigest()[:32] if owner else "everyone"
        return self._folder / folder / f"{name}{_SUFFIX}"


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _unusable(path: Path, error: Exception) -> WordListStoreError:
    return WordListStoreError(f"the word list {path} cannot be read or written now: {error}")
