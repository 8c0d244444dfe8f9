"""Arrays in files with the layout of safetensors, mapped into memory instead of being copied.

The safetensors library copies what NumPy loads. The layout is simple enough to map: eight bytes
with the header's length (little-endian), the header as JSON, the arrays.
Source: https://github.com/huggingface/safetensors, "Format".
"""

import hashlib
import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import IntegrityError, ManifestError

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_DTYPES = {"I64": "<i8", "U32": "<u4", "I32": "<i4", "F32": "<f4", "U8": "u1", "I8": "i1"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_DTYPE_ORDER = ("I64", "F32", "U32", "I32", "I8", "U8")  # the library's order of types in a file
_METADATA, _DIGEST = "__metadata__", "sha256"
_MAX_HEADER_BYTES = 1 << 20
_ALIGNMENT = 64  # bytes: a cache line


def map_tensors(path: Path) -> Arrays:
    """Map a file; its pages are read when they are touched.

    Returns:
        Read-only arrays by name; each keeps the map alive.

    Raises:
        ManifestError: the file is missing, is cut, or is not in this layout.
    """
    try:
        with path.open("rb") as file:
            return _views(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[0]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ManifestError(f"{path} is not a safetensors file: {error}") from None


def write_tensors(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as the safetensors library would, to the byte, but from where they lie, copying none.

    Raises:
        OSError: the file system refused.
    """
    ordered = sorted(arrays.items(), key=lambda item: (_DTYPE_ORDER.index(_NAMES[item[1].dtype]), item[0]))
    header, end = {}, 0
    for name, array in ordered:
        offsets = [end, end := end + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 8)
    with path.open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).data)


def write_hashed_tensors(file: BinaryIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays, each from the beginning of a cache line on, and the SHA-256 of them and of their header."""
    entries, end = {}, 0
    for name, array in arrays.items():
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + array.nbytes
        entries[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    parts = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = json.dumps({_METADATA: {_DIGEST: _digest(entries, parts)}, **entries}).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    file.write(len(header).to_bytes(8, "little") + header)
    for name, part in parts.items():
        file.write(b"\0" * (entries[name]["data_offsets"][0] + 8 + len(header) - file.tell()))
        file.write(part.data)
    file.flush()


def map_hashed_tensors(file: BinaryIO) -> Arrays:
    """Map what `write_hashed_tensors` wrote, and compare every byte with the SHA-256.

    Returns:
        Arrays by name, which keep the map and a duplicate of the file's descriptor. What is written to
        them stays in this process: the file is never changed.

    Raises:
        IntegrityError: the file is cut, was changed, or is none of `write_hashed_tensors`.
        OSError: it cannot be mapped.
    """
    try:
        arrays, header = _views(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        digest = header.pop(_METADATA)[_DIGEST]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise IntegrityError(f"not a file of sealed arrays: {error!r}") from None
    if digest != _digest(header, arrays):
        raise IntegrityError("its SHA-256 does not match")
    return arrays


def _digest(entries: Mapping[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode())
    for array in arrays.values():
        digest.update(array.data)
    return digest.hexdigest()


def _views(mapped: mmap.mmap) -> tuple[Arrays, dict[str, Any]]:
    """The arrays in a file, and its header."""
    body = 8 + int.from_bytes(mapped[:8], "little")
    if not 8 < body <= min(len(mapped), _MAX_HEADER_BYTES):
        raise ValueError(f"its header ends at byte {body} of {len(mapped)}")
    header = json.loads(mapped[8:body])
    arrays = {name: _view(mapped, body, entry) for name, entry in header.items() if name != _METADATA}
    return arrays, header


def _view(mapped: mmap.mmap, body: int, entry: dict[str, Any]) -> npt.NDArray[Any]:
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
    return np.frombuffer(mapped, dtype=dtype, count=count, offset=begin).reshape(shape)
