"""Features of unit length, so that an inner product is a cosine."""

import math

import numba
import numpy as np
from numba import types

from models.arrays import FloatArray
from models.caching.products import VECTOR_LANES

_FEATURES = types.Array(types.float32, 2, "C", readonly=True)


def padded_width(width: int) -> int:
    """Numbers in a unit vector of features of a width: the next multiple of `LANES`."""
    return -(-width // VECTOR_LANES) * VECTOR_LANES


def to_unit_vectors(features: FloatArray) -> FloatArray:
    """Vectors [N, W] at length 1, with zeros behind up to a multiple of `LANES`; what has no length stays zero.

    Each depends on its own features alone, to the last bit.
    """
    count, width = features.shape
    units = np.zeros((count, padded_width(width)), dtype=np.float32)
    _normalise_rows(np.ascontiguousarray(features, dtype=np.float32), units)
    return units


@numba.njit([types.void(_FEATURES, types.float32[:, ::1])], nogil=True, cache=True)
def _normalise_rows(features: FloatArray, units: FloatArray) -> None:
    for row in range(len(features)):
        square = 0.0
        for place in range(features.shape[1]):
            square += np.float64(features[row, place]) * np.float64(features[row, place])
        if square > 0.0:
            inverse = 1.0 / math.sqrt(square)
            for place in range(features.shape[1]):
                units[row, place] = features[row, place] * inverse
