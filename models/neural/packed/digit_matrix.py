"""Matrices of weights as digits, and their products with rows of digits."""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.neural.llvm import pointer_at
from models.neural.packed.digit_sums import to_floats
from models.neural.packed.digits import SplitFloats, empty_split_floats, split_floats
from models.neural.packed.tiles import (
    COLUMNS,
    DEPTH,
    DIGITS,
    ROWS,
    SHAPES,
    aligned,
    configure,
    multiply_block,
    release,
)
from models.tensor_file import Arrays

LAYOUT = "tiles-2"
"""Names what `pack` makes; to be counted up when that changes."""

COLUMNS_PER_PRODUCT = 512
"""Columns multiplied with all vectors before the next: 786 KB of weights at a width of 512."""

MULTIPLE = 64
"""Rows of weights are rounded up to a multiple of it: what is weighed together."""

_TILE_VALUES = ROWS * DEPTH
_LANES = 16
_PARTS = COLUMNS // _LANES

MAX_SPLIT_WIDTH = 1 << 15
"""Of vectors, so that no sum of products of digits leaves 32 bits."""


class SplitFloatMatrix(NamedTuple):
    """O rows of W weights as the products read them, three bytes a weight.

    Attributes:
        values: int8, [O / 32, W / 64, 2, 3, 16, 16, 4] one after the other, O rounded up to a multiple of 64, W too.
        scales: of the rows [O rounded up], float32; 0 in rows that were added.
        bias: [O rounded up], float32.
        depths: W / 64, rounded up.
    """

    values: npt.NDArray[np.int8]
    scales: FloatArray
    bias: FloatArray
    depths: int

    @property
    def size(self) -> int:
        """O rounded up to a multiple of 64."""
        return len(self.bias)

    @property
    def fewest(self) -> int:
        """Vectors that are worth a product: one takes as long as the weights are read, and fills no tile."""
        return 2

    @property
    def apart(self) -> int:
        """Vectors from one that products can begin at to the next."""
        return ROWS

    @property
    def piece(self) -> tuple[int, int]:
        """Vectors and columns whose products are made before the next ones."""
        return ROWS, COLUMNS_PER_PRODUCT

    def buffer_for(self, count: int) -> SplitFloats:
        """Room for vectors [N, W], to be filled by `write`."""
        return empty_split_floats(count, self.depths * DEPTH)


def pack(matrix: FloatArray, bias: FloatArray, fill: float) -> SplitFloatMatrix:
    """Weights [O, W] and a bias [O], which is `fill` in what is added to O."""
    size, width = matrix.shape
    blocks, depths = -(-size // MULTIPLE) * (MULTIPLE // COLUMNS), -(-width // DEPTH)
    values = aligned(blocks * depths * _PARTS * DIGITS * _TILE_VALUES)
    scales = np.zeros(blocks * COLUMNS, np.float32)
    padded = np.full(blocks * COLUMNS, fill, np.float32)
    padded[:size] = bias
    shaped = values.reshape(blocks, depths, _PARTS, DIGITS, DEPTH // 4, _LANES, 4)
    for block in range(-(-size // COLUMNS)):
        rows = np.ascontiguousarray(matrix[block * COLUMNS : (block + 1) * COLUMNS])
        digits = empty_split_floats(COLUMNS, width)
        split_floats(rows, digits, 0)
        parts = digits.values.reshape(_PARTS, depths, DIGITS, _LANES, DEPTH // 4, 4)
        shaped[block] = parts.transpose(1, 0, 2, 4, 3, 5)
        scales[block * COLUMNS : (block + 1) * COLUMNS] = digits.scales
    return SplitFloatMatrix(values, scales, padded, depths)


def of_arrays(arrays: Arrays) -> SplitFloatMatrix:
    """The matrix whose arrays these are."""
    values, scales, bias = arrays["values"], arrays["scales"], arrays["bias"]
    return SplitFloatMatrix(values, scales, bias, len(values) // (len(bias) * DIGITS * DEPTH))


def arrays_of(matrix: SplitFloatMatrix) -> Arrays:
    """Its arrays, by name."""
    return {"values": matrix.values, "scales": matrix.scales, "bias": matrix.bias}


@numba.njit(nogil=True, cache=True)
def write(_matrix: Any, vectors: Any, room: Any, first: Any) -> None:
    """Write vectors [N, W] as rows of `SplitFloats`, from a row on."""
    split_floats(vectors, room, first)


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, vectors: Any, count: Any, products: Any) -> None:
    """The products of a matrix with vectors, and its bias.

    Args:
        matrix: a `SplitFloatMatrix` of O rows.
        vectors: `SplitFloats` of the matrix's width.
        count: of the vectors, the first ones.
        products: written, [N, O rounded up], float32.
    """
    size = len(matrix.bias)
    for begin in range(0, size, COLUMNS_PER_PRODUCT):
        end = min(begin + COLUMNS_PER_PRODUCT, size)
        for row in range(0, count, ROWS):
            some = products[row : min(row + ROWS, count)]
            multiply_some(matrix, vectors, row, begin, end, some, begin)


@numba.njit(nogil=True, cache=True)
def multiply_some(
    matrix: Any, vectors: Any, row: Any, begin: Any, end: Any, products: Any, column: Any
) -> None:
    """The products of some rows of a matrix with up to 16 vectors, and their bias.

    Args:
        matrix: a `SplitFloatMatrix`.
        vectors: `SplitFloats`.
        row: the first vector, a multiple of 16.
        begin: of the matrix's rows, a multiple of 32.
        end: of them, and one; likewise.
        products: written, float32, a row for each vector.
        column: of the products, where the first row's stand.
    """
    sums = np.empty(_PARTS * DIGITS * ROWS * _LANES, np.int32)
    depths, weights, factors, bias = matrix.depths, matrix.values, matrix.scales, matrix.bias
    values, scales = vectors.values, vectors.scales
    start, target = row * depths * DIGITS * DEPTH, products.reshape(-1)
    count, stride = products.shape
    configure(SHAPES, count)
    for first in range(begin, end, COLUMNS):
        block = first // COLUMNS
        multiply_block(values, start, weights, block * depths * _PARTS * DIGITS * _TILE_VALUES, depths, sums)
        there = pointer_at(target, column + first - begin)
        to_floats(
            sums,
            count,
            pointer_at(scales, row),
            pointer_at(factors, first),
            pointer_at(bias, first),
            there,
            stride,
        )
    release()
