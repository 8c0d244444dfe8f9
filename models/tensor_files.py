"""Array files: memory-mapped tensors, and packed weights shared between processes.

The layout is safetensors, memory-mapped instead of copied: the header's length in eight bytes
(little-endian), the header as JSON, the arrays.
Source: https://github.com/huggingface/safetensors, "Format".
"""

import fcntl
import hashlib
import json
import logging
import math
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from models.arrays import AnyArray
from models.errors import BAD_DATA_ERRORS, IntegrityError, ManifestError

_log = logging.getLogger(__name__)

Arrays: TypeAlias = dict[str, AnyArray]

_DTYPES = {
    "I64": "<i8",
    "F64": "<f8",
    "F32": "<f4",
    "U32": "<u4",
    "I32": "<i4",
    "I8": "i1",
    "U8": "u1",
}  # in the library's order
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_METADATA, _DIGEST = "__metadata__", "sha256"
_MAX_HEADER_BYTES = 1 << 20
_ALIGNMENT = 64  # bytes: a cache line

_LOCK_FILE = ".lock"
_UNFINISHED_FILE = ".unfinished"  # the lock is held, so one name suffices


def map_tensors(path: Path) -> Arrays:
    """Map a file into memory; its pages are read on first access.

    Returns:
        Read-only arrays by name; each keeps the map alive.

    Raises:
        ManifestError: the file is missing, truncated or not in this layout.
    """
    try:
        with path.open("rb") as file:
            return _views(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[0]
    except (OSError, *BAD_DATA_ERRORS) as error:
        raise ManifestError(f"{path} is not a safetensors file: {error}") from None


def write_tensors(path: Path, arrays: Mapping[str, AnyArray]) -> None:
    """Write the same bytes as the safetensors library, without copying the arrays.

    Raises:
        OSError: the file cannot be written.
    """
    ordered = sorted(arrays.items(), key=lambda item: (list(_NAMES).index(item[1].dtype), item[0]))
    header = json.dumps(_entries(dict(ordered), alignment=1), separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).data)


def write_hashed_tensors(file: BinaryIO, arrays: Mapping[str, AnyArray]) -> None:
    """Write arrays, each aligned to a cache line, and the SHA-256 of header and arrays."""
    entries = _entries(arrays, alignment=_ALIGNMENT)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = json.dumps({_METADATA: {_DIGEST: _digest(entries, contiguous)}, **entries}).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    file.write(len(header).to_bytes(8, "little") + header)
    for name, part in contiguous.items():
        file.write(b"\0" * (entries[name]["data_offsets"][0] + 8 + len(header) - file.tell()))
        file.write(part.data)
    file.flush()


def _entries(arrays: Mapping[str, AnyArray], *, alignment: int) -> dict[str, dict[str, Any]]:
    """Header of consecutive arrays, each aligned to a multiple of `alignment` bytes."""
    entries, end = {}, 0
    for name, array in arrays.items():
        begin = -(-end // alignment) * alignment
        end = begin + array.nbytes
        place: dict[str, Any] = {"shape": list(array.shape), "data_offsets": [begin, end]}
        entries[name] = {"dtype": _NAMES[array.dtype], **place}
    return entries


def map_hashed_tensors(file: BinaryIO) -> Arrays:
    """Map a file of `write_hashed_tensors` and verify its SHA-256.

    Returns:
        Arrays by name, which keep the map and a duplicate of the descriptor. Writes to the arrays are
        private to this process and never change the file.

    Raises:
        IntegrityError: the file is truncated, modified, or not written by `write_hashed_tensors`.
        OSError: the file cannot be mapped.
    """
    try:
        arrays, header = _views(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        digest = header.pop(_METADATA)[_DIGEST]
    except BAD_DATA_ERRORS as error:
        raise IntegrityError(f"not a file of hashed arrays: {error!r}") from None
    if digest != _digest(header, arrays):
        raise IntegrityError("its SHA-256 does not match")
    return arrays


def _digest(entries: Mapping[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode())
    for array in arrays.values():
        digest.update(array.data)
    return digest.hexdigest()


def _views(mapped: mmap.mmap) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays of a file and its header."""
    body = 8 + int.from_bytes(mapped[:8], "little")
    if not 8 < body <= min(len(mapped), _MAX_HEADER_BYTES):
        raise ValueError(f"its header ends at byte {body} of {len(mapped)}")
    header = json.loads(mapped[8:body])
    arrays = {name: _view(mapped, body, entry) for name, entry in header.items() if name != _METADATA}
    return arrays, header


def _view(mapped: mmap.mmap, body: int, entry: dict[str, Any]) -> AnyArray:
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    begin, end = (body + int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(n) for n in entry["shape"])
    count = math.prod(shape)
    if (
        not body <= begin <= end <= len(mapped)
        or min(shape, default=0) < 0
        or count * dtype.itemsize != end - begin
    ):
        raise ValueError(f"an array of shape {shape} lies at bytes {begin} to {end} of {len(mapped)}")
    if begin % dtype.itemsize:
        raise ValueError(f"an array of {dtype} starts at byte {begin}, which is not aligned")
    return np.frombuffer(mapped, dtype, count=count, offset=begin).reshape(shape)


class PackedWeightCache:
    """Cache of computed arrays by name: files in a folder, which a host's processes map, so their pages are there once.

    The first process that needs the arrays computes them while others wait. If the folder is
    unusable, each process computes its own arrays and logs a warning.

    Args:
        folder: on a file system with `flock`, preferably in memory; writable by this user only. None disables the
            cache: each call computes the arrays in process memory.
        key: identity of the source data: equal exactly if the data are equal.

    Attributes:
        arrays: all arrays that this cache has returned and keeps.
    """

    def __init__(self, folder: Path | None = None, key: str = "") -> None:
        self.arrays: list[AnyArray] = []
        self._folder = folder
        self._key = key

    def get_or_make(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """Return the cached arrays of a name, or compute them by `make`, which must be deterministic.

        Writes to the arrays change this process's copy only.
        """
        arrays = make() if self._folder is None else self._get_or_make(self._folder, name, make)
        self.arrays += arrays.values()
        return arrays

    def _get_or_make(self, folder: Path, name: str, make: Callable[[], Arrays]) -> Arrays:
        path = folder / f"{self._key}.{name}"
        try:
            cached = _map_existing(path)
            if cached is not None:
                return cached
            with (folder / _LOCK_FILE).open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return _map_existing(path) or _write_and_map(path, make())
        except OSError as error:
            _log.warning("weights are not shared between processes: %s", error)
            return make()


def _map_existing(path: Path) -> Arrays | None:
    """Map the arrays of a file; None if it is missing or damaged.

    The lock that marks the file as mapped is its descriptor's; the map keeps a duplicate.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            if not os.fstat(file.fileno()).st_nlink:
                return None  # removed before the lock was acquired
            return map_hashed_tensors(file)
    except FileNotFoundError:
        return None
    except IntegrityError as error:
        _log.warning("%s is damaged and rebuilt: %s", path, error)
        return None


def _write_and_map(path: Path, arrays: Arrays) -> Arrays:
    """Write a complete file and map it; return the given arrays if writing fails."""
    new = path.with_name(_UNFINISHED_FILE)
    try:
        _remove_unused(path.parent)
        with new.open("w+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            write_hashed_tensors(file, arrays)
            mapped = map_hashed_tensors(file)
            new.replace(path)
            return mapped
    except (OSError, IntegrityError) as error:
        _log.warning("%s cannot be shared between processes: %s", path, error)
        new.unlink(missing_ok=True)
        return arrays


def _remove_unused(folder: Path) -> None:
    """Remove files that no process has mapped."""
    for path in folder.iterdir():
        if path.name == _LOCK_FILE:
            continue
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            path.unlink()
