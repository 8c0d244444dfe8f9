"""Zero-copy reading of safetensors files: arrays that are views of a memory map.

The safetensors library copies what it loads. The layout is simple enough to map: eight bytes
with the header's length (little-endian), the header as JSON, the arrays.
Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.errors import ManifestError

_DTYPES = {"I64": "<i8", "U32": "<u4", "I32": "<i4", "F32": "<f4", "U8": "u1"}
_MAX_HEADER_BYTES = 1 << 20


def map_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Map a file; its pages are read when they are touched.

    Returns:
        Read-only arrays by name; each keeps the map alive.

    Raises:
        ManifestError: the file is missing, is cut, or is not in this layout.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        body = 8 + int.from_bytes(mapped[:8], "little")
        if not 8 < body <= min(len(mapped), _MAX_HEADER_BYTES):
            raise ManifestError(f"{path}: its header ends at byte {body} of {len(mapped)}")
        header = json.loads(mapped[8:body])
        header.pop("__metadata__", None)
        return {name: _view(mapped, body, entry) for name, entry in header.items()}
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
