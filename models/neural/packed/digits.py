"""Numbers of single precision as three digits to the base 256, each row with a scale of its own.

A row's largest number has its 24 bits, and what products leave out lies beyond those. At a width of 512 they
err by 6e-7 of the largest numbers' product (root mean square), as sums in single precision do. Splitting
floats into pieces whose products are exact: Ozaki et al. 2012; in integers of eight bits: Ootomo et al. 2024.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.neural.elementary import greater
from models.neural.packed.tiles import DEPTH, DIGITS, ROWS, aligned

LARGEST = np.float32(127 << 16)
"""What a row's largest number becomes: digits are from -128 to 127, the first one never below -127."""

HEAVIEST = np.float32(1 << 16)
"""The weight of the first digit."""

_LANES = 16
_TINY = np.float32(1e-30)
_ZERO = np.float32(0)


class SplitFloats(NamedTuple):
    """N vectors of W numbers.

    Attributes:
        values: int8, [N / 16, W / 64, 3, 16, 64] one after the other, N and W rounded up.
        scales: what the first digit of each row counts [N rounded up], float32.
    """

    values: npt.NDArray[np.int8]
    scales: FloatArray


def empty_split_floats(count: int, width: int) -> SplitFloats:
    """Room for vectors of a width; what is in it is 0."""
    tiles, depths = -(-count // ROWS), -(-width // DEPTH)
    return SplitFloats(aligned(tiles * depths * DIGITS * ROWS * DEPTH), np.zeros(tiles * ROWS, np.float32))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def split_floats(vectors: Any, digits: Any, first: Any) -> None:
    """Write vectors [N, W] as rows, from one on; a vector with a number that is none or infinite becomes such."""
    depths = -(-vectors.shape[1] // DEPTH)
    integers = np.zeros(depths * DEPTH, np.int32)
    for number in range(len(vectors)):
        row = first + number
        step = _max_abs(vectors[number]) / LARGEST
        digits.scales[row] = step * HEAVIEST
        _round(vectors[number], greater(step, _TINY), integers)
        start = (row // ROWS * depths * DIGITS * ROWS + row % ROWS) * DEPTH
        _write_digits(integers, digits.values, start, depths)


@numba.njit(nogil=True, cache=True)
def _max_abs(vector: Any) -> Any:
    """The largest absolute value; not a number if there is one that is none or infinite."""
    lanes, none = np.zeros(_LANES, np.float32), np.zeros(_LANES, np.float32)
    whole = len(vector) // _LANES * _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            lanes[lane] = greater(lanes[lane], abs(vector[start + lane]))
            none[lane] += vector[start + lane] * _ZERO
    for place in range(whole, len(vector)):
        lanes[place - whole] = greater(lanes[place - whole], abs(vector[place]))
        none[place - whole] += vector[place] * _ZERO
    return lanes.max() + none.sum()


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _round(vector: Any, step: Any, integers: Any) -> None:
    """Write the nearest multiples; a reciprocal of the step would err in all places alike, and errors would add up."""
    for place in range(len(vector)):
        integers[place] = np.int32(np.rint(vector[place] / step))


@numba.njit(nogil=True, cache=True)
def _write_digits(integers: Any, values: Any, start: Any, depths: Any) -> None:
    """Write the digits of one row, which begins at `start`."""
    for depth in range(depths):
        heavy = start + depth * DIGITS * ROWS * DEPTH
        middle, light = heavy + ROWS * DEPTH, heavy + 2 * ROWS * DEPTH
        for place in range(DEPTH):
            rest = integers[depth * DEPTH + place]
            last = np.int8(rest)
            rest = (rest - np.int32(last)) >> np.int32(8)
            second = np.int8(rest)
            values[light + place] = last
            values[middle + place] = second
            values[heavy + place] = np.int8((rest - np.int32(second)) >> np.int32(8))
