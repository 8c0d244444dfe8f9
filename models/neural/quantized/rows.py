"""Vectors in integers of eight bits, each row with a scale of its own."""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.neural.elementary import bits_of_float, float_of_bits, greater
from models.neural.quantized.dot_products import COLUMN_MULTIPLE

MAX_INT8 = np.float32(127)
"""The largest integer; -128 is not used, so that the range is symmetric."""

SPARE_ROWS = 15
"""Rows past the last that may be read when sixteen are computed together."""

_TINY = np.float32(1e-30)
_HALF = np.float32(0.5)
_MAGNITUDE = np.uint32(0x7FFFFFFF)


class Int8Rows(NamedTuple):
    """N vectors as integers times a scale; in memory, `SPARE_ROWS` rows more.

    Attributes:
        values: [N + SPARE, W rounded up to a multiple of 64], int8; 0 in what was added to the width.
        scales: [N + SPARE], float32.
        sums: of a row's values [N + SPARE], int32.
    """

    values: npt.NDArray[np.int8]
    scales: FloatArray
    sums: npt.NDArray[np.int32]


def zero_int8_rows(count: int, width: int) -> Int8Rows:
    """Room for vectors of a width; what is in it is 0."""
    count, padded = count + SPARE_ROWS, -(-width // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    values = np.zeros((count, padded), np.int8)
    return Int8Rows(values, np.zeros(count, np.float32), np.zeros(count, np.int32))


@numba.njit(nogil=True, cache=True)
def _max_abs(vector: Any) -> Any:
    """The largest absolute value, found as an integer of the same order: only in that the compiler finds vectors."""
    found = np.uint32(0)
    for place in range(len(vector)):
        found = greater(np.uint32(bits_of_float(vector[place]) & _MAGNITUDE), found)
    return float_of_bits(found)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def quantise_row(vector: Any, rows: Any, row: Any) -> None:
    """Write a vector [W] of float32 as a row: the nearest integers, the largest being ±127."""
    highest = _max_abs(vector)
    inverse = MAX_INT8 / max(highest, _TINY)
    values = rows.values[row]
    total = np.int32(0)
    for place in range(len(vector)):
        value = np.int32(np.floor(vector[place] * inverse + _HALF))
        values[place] = value
        total += value
    rows.scales[row] = highest / MAX_INT8
    rows.sums[row] = total


@numba.njit(nogil=True, cache=True)
def quantise_rows(vectors: Any, rows: Any, first: Any) -> None:
    """Write vectors [N, W] as rows, from one on."""
    for number in range(len(vectors)):
        quantise_row(vectors[number], rows, first + number)


@numba.njit(nogil=True, cache=True)
def dequantise_rows(rows: Any, first: Any, vectors: Any) -> None:
    """Write what rows, from one on, stand for into vectors [N, W]."""
    for number in range(len(vectors)):
        scale = rows.scales[first + number]
        for place in range(vectors.shape[1]):
            vectors[number, place] = np.float32(rows.values[first + number, place]) * scale


def take_rows(rows: Int8Rows, places: npt.NDArray[np.int64]) -> Int8Rows:
    """Rows at given places [N], copied."""
    places = np.concatenate([places, np.zeros(SPARE_ROWS, np.int64)])
    return Int8Rows(rows.values[places], rows.scales[places], rows.sums[places])
