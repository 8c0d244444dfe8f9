"""Matrices of weights in single precision, and their products with vectors."""

from typing import Any, NamedTuple

import numba
import numpy as np

from models.arrays import FloatArray
from models.neural.llvm import pointer_at
from models.neural.packed.float_products import (
    COLUMNS,
    PARTS_AHEAD,
    four_vectors,
    one_vector,
    six_vectors,
    two_vectors,
)
from models.tensor_file import Arrays

LAYOUT = "floats-1"
"""Names what `pack` makes; to be counted up when that changes."""

_LINE_FLOATS = 16  # numbers of a cache line


class FloatMatrix(NamedTuple):
    """O rows of W weights as the products read them, four bytes a weight.

    Attributes:
        values: float32, [O / 64, W, 64] one after the other, O rounded up.
        bias: [O rounded up], float32.
        width: W.
    """

    values: FloatArray
    bias: FloatArray
    width: int

    @property
    def size(self) -> int:
        """O rounded up to a multiple of 64."""
        return len(self.bias)

    @property
    def fewest(self) -> int:
        """Vectors that are worth a product."""
        return 1

    @property
    def apart(self) -> int:
        """Vectors from one that products can begin at to the next."""
        return 1

    @property
    def piece(self) -> tuple[int, int]:
        """Vectors and columns whose products are made before the next ones, while they are in the nearest cache."""
        return 48, 512

    def buffer_for(self, count: int) -> FloatArray:
        """Room for vectors [N, W], to be filled by `write`."""
        return np.empty((count, self.width), np.float32)


def pack(matrix: FloatArray, bias: FloatArray, fill: float) -> FloatMatrix:
    """Weights [O, W] and a bias [O], which is `fill` in what is added to O."""
    size, width = matrix.shape
    blocks = -(-size // COLUMNS)
    memory = np.zeros(blocks * COLUMNS * width + _LINE_FLOATS, np.float32)
    start = -memory.ctypes.data // 4 % _LINE_FLOATS
    values = memory[start : start + blocks * COLUMNS * width]
    padded = np.full(blocks * COLUMNS, fill, np.float32)
    padded[:size] = bias
    for block, places in enumerate(values.reshape(blocks, width, COLUMNS)):
        rows = matrix[block * COLUMNS : (block + 1) * COLUMNS]
        places[:, : len(rows)] = rows.T
    return FloatMatrix(values, padded, width)


def of_arrays(arrays: Arrays) -> FloatMatrix:
    """The matrix whose arrays these are."""
    values, bias = arrays["values"], arrays["bias"]
    return FloatMatrix(values, bias, len(values) // len(bias))


def arrays_of(matrix: FloatMatrix) -> Arrays:
    """Its arrays, by name."""
    return {"values": matrix.values, "bias": matrix.bias}


@numba.njit(nogil=True, cache=True)
def write(_matrix: Any, vectors: Any, room: Any, first: Any) -> None:
    """Write vectors [N, W] into room [M, W], from a row on."""
    room[first : first + len(vectors)] = vectors


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, vectors: Any, count: Any, products: Any) -> None:
    """The products of a matrix with vectors, and its bias.

    Args:
        matrix: a `FloatMatrix` of O rows.
        vectors: [N, W], float32.
        count: of the vectors, the first ones.
        products: written, [N, O rounded up], float32.
    """
    multiply_some(matrix, vectors, 0, 0, len(matrix.bias), products[:count], 0)


@numba.njit(nogil=True, cache=True)
def multiply_some(
    matrix: Any, vectors: Any, row: Any, begin: Any, end: Any, products: Any, column: Any
) -> None:
    """The products of some rows of a matrix with some vectors, and their bias.

    Args:
        matrix: a `FloatMatrix`.
        vectors: [N, W], float32.
        row: the first vector.
        begin: of the matrix's rows, a multiple of 64.
        end: of them, and one; likewise.
        products: written, float32, a row for each vector.
        column: of the products, where the first row's stand.
    """
    count, width, stride = len(products), matrix.width, products.shape[1]
    inputs, target = vectors.reshape(-1), products.reshape(-1)
    weights, biases = matrix.values, matrix.bias
    part = COLUMNS // PARTS_AHEAD * width
    for first in range(begin, end, COLUMNS):
        start, place = first * width, column + first - begin
        done = passes = 0
        while done < count:
            bias, there = pointer_at(biases, first), pointer_at(target, done * stride + place)
            source = pointer_at(inputs, (row + done) * width)
            left, ahead = count - done, start + COLUMNS * width + passes % PARTS_AHEAD * part
            if left >= 6:
                six_vectors(weights, start, bias, source, width, there, stride, ahead)
                done += 6
            elif left >= 4:
                four_vectors(weights, start, bias, source, width, there, stride, ahead)
                done += 4
            elif left >= 2:
                two_vectors(weights, start, bias, source, width, there, stride, ahead)
                done += 2
            else:
                one_vector(weights, start, bias, source, width, there, stride, ahead)
                done += 1
            passes += 1
