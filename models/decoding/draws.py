"""Random numbers that a row draws whatever rows stand beside it, and whenever it does.

A row's number at a place is a function of its seed and of that place, so there is nothing to remember.

Source: SplitMix64, Steele, Lea and Flood 2014.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.decoding.rows import Int64s

Seeds = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
_GAMMA, _MULTIPLIER_1, _MULTIPLIER_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def row_seed(seed: int, *numbers: int) -> int:
    """The seed of a row of a request: of the request's own and of numbers such as those of its prompt and choice."""
    mixed = _mix_bits(seed + _GAMMA)
    for number in numbers:
        mixed = _mix_bits(mixed + (number + 1) * _GAMMA)
    return mixed


def uniform_numbers(seeds: Seeds, places: Int64s) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each of R rows.

    Args:
        seeds: of the rows [R].
        places: how many numbers each has drawn before [R].
    """
    numbers = np.empty(len(seeds))
    _fill_uniforms(seeds, places, numbers)
    return numbers


def _mix_bits(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * _MULTIPLIER_1 & _MASK
    value = (value ^ (value >> 27)) * _MULTIPLIER_2 & _MASK
    return value ^ (value >> 31)


@numba.njit(types.void(types.uint64[::1], types.int64[::1], types.float64[::1]), nogil=True, cache=True)
def _fill_uniforms(seeds: Any, places: Any, numbers: Any) -> None:
    for row in range(len(seeds)):
        value = seeds[row] + np.uint64(places[row] + 1) * np.uint64(_GAMMA)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
        numbers[row] = np.float64((value ^ (value >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
