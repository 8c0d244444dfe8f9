"""Matrices of weights as digits, and their products with rows of digits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.neural.tiled.digits import room_for, split
from models.neural.tiled.floats import to_floats
from models.neural.tiled.tiles import (
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
from models.shelf import Shelf
from models.tensor_file import Arrays

LAYOUT = "tiles-1"
"""Names what `pack` makes; to be counted up when that changes."""

TOGETHER = 16
"""Blocks of 32 columns multiplied with all rows before the next: 786 KB of weights at a width of 512."""

_TILE = ROWS * DEPTH
_LANES = 16
_PARTS = COLUMNS // _LANES

LARGEST_WIDTH = 1 << 15
"""Of vectors, so that no sum of products of digits leaves 32 bits."""


class PackedMatrix(NamedTuple):
    """O rows of W weights as the products read them, three bytes a weight.

    Attributes:
        values: int8, [O / 32, W / 64, 2, 3, 16, 16, 4] one after the other, O and W rounded up.
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
        """O rounded up to a multiple of 32."""
        return len(self.bias)


def pack(matrix: FloatArray, bias: FloatArray, *, fill: float = 0.0) -> PackedMatrix:
    """Weights [O, W] and a bias [O], which is `fill` in what is added to O."""
    size, width = matrix.shape
    blocks, depths = -(-size // COLUMNS), -(-width // DEPTH)
    values = aligned(blocks * depths * _PARTS * DIGITS * _TILE)
    scales = np.zeros(blocks * COLUMNS, np.float32)
    padded = np.full(blocks * COLUMNS, fill, np.float32)
    padded[:size] = bias
    shaped = values.reshape(blocks, depths, _PARTS, DIGITS, DEPTH // 4, _LANES, 4)
    for block in range(blocks):
        rows = np.ascontiguousarray(matrix[block * COLUMNS : (block + 1) * COLUMNS])
        digits = room_for(COLUMNS, width)
        split(rows, digits, 0)
        parts = digits.values.reshape(_PARTS, depths, DIGITS, _LANES, DEPTH // 4, 4)
        shaped[block] = parts.transpose(1, 0, 2, 4, 3, 5)
        scales[block * COLUMNS : (block + 1) * COLUMNS] = digits.scales
    return PackedMatrix(values, scales, padded, depths)


def packed_once(shelf: Shelf, name: str, make: Callable[[], PackedMatrix]) -> PackedMatrix:
    """What `make` packs, from the shelf if it lies there."""
    arrays = shelf.take(name, lambda: _arrays(make()))
    values, scales, bias = arrays["values"], arrays["scales"], arrays["bias"]
    return PackedMatrix(values, scales, bias, len(values) // (len(bias) * DIGITS * DEPTH))


def _arrays(packed: PackedMatrix) -> Arrays:
    return {"values": packed.values, "scales": packed.scales, "bias": packed.bias}


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, digits: Any, count: Any, products: Any) -> None:
    """The products of a matrix with vectors, and its bias.

    Args:
        matrix: a `PackedMatrix` of O rows.
        digits: `Digits` of the matrix's width.
        count: of the vectors, the first ones.
        products: written, [N, O rounded up], float32.
    """
    blocks = len(matrix.bias) // COLUMNS
    for first in range(0, blocks, TOGETHER):
        last = min(first + TOGETHER, blocks)
        for row in range(0, count, ROWS):
            end = min(row + ROWS, count)
            multiply_some(matrix, digits, row, first, last, products[row:end], first * COLUMNS)


@numba.njit(nogil=True, cache=True)
def multiply_some(
    matrix: Any, digits: Any, row: Any, first: Any, last: Any, products: Any, column: Any
) -> None:
    """The products of some blocks of 32 rows of a matrix with up to 16 vectors.

    Args:
        matrix: a `PackedMatrix`.
        digits: `Digits`.
        row: the first vector, a multiple of 16.
        first: of the blocks.
        last: of the blocks, and one.
        products: written, float32, a row for each vector.
        column: of the products, where the first block's stand.
    """
    sums = np.empty(_PARTS * DIGITS * ROWS * _LANES, np.int32)
    depths, values, vectors = matrix.depths, matrix.values, digits.values
    start = row * depths * DIGITS * DEPTH
    count, scales = len(products), digits.scales[row:]
    configure(SHAPES, count)
    for block in range(first, last):
        multiply_block(vectors, start, values, block * depths * _PARTS * DIGITS * _TILE, depths, sums)
        here = slice(block * COLUMNS, (block + 1) * COLUMNS)
        at = column + (block - first) * COLUMNS
        target = products.reshape(-1)[at:]
        to_floats(sums, count, scales, matrix.scales[here], matrix.bias[here], target, products.shape[1])
    release()
