"""Matrices of weights in integers of eight bits, and their products with rows of activations.

Each row of a matrix has a scale, each row of activations another, so the float that comes of a
dot product depends on the two alone: sums of integers are exact in any order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.neural.amx import TILES
from models.neural.elementary import fused
from models.neural.llvm import at
from models.neural.quantized.dot_products import (
    COLUMNS,
    GROUP,
    LANES,
    ZERO,
    four_rows,
    one_row,
)
from models.neural.quantized.floats import to_floats
from models.neural.quantized.rows import LIMIT
from models.neural.quantized.tiles import ROWS as TILE_ROWS
from models.neural.quantized.tiles import begin_tiles, end_tiles, sixteen_rows
from models.shelf import Shelf
from models.tensor_file import Arrays

LAYOUT = "int8-1"
"""Names what `pack` makes; to be counted up when that changes."""

_ALIGNMENT = 64  # bytes: a cache line
APART = 16
"""Floats between rows of products, as rows a power of two apart would drive one another out of the cache."""

_FEWEST = 5
"""Rows that are worth a tile."""


class PackedMatrix(NamedTuple):
    """O rows of K weights as the products read them.

    Attributes:
        weights: [O/64, K/4, 64, 4] as [O/64, 64 K], O and K rounded up; uint8, the integer plus 128.
        scales: of the rows [O rounded up to a multiple of 64], float32; 0 in rows that were added.
        tiled: whether it is multiplied in tiles.
    """

    weights: npt.NDArray[np.uint8]
    scales: FloatArray
    tiled: bool


def pack(matrix: FloatArray) -> PackedMatrix:
    """Round the weights [O, K] of every row to 255 steps, symmetric about 0."""
    rows, columns = matrix.shape
    blocks, groups = -(-rows // LANES), -(-columns // COLUMNS) * (COLUMNS // GROUP)
    scales = np.zeros(blocks * LANES, np.float32)
    weights = _aligned(blocks, groups * LANES * GROUP)
    for block, start in enumerate(range(0, rows, LANES)):  # nothing as large as the matrix is made
        some = matrix[start : start + LANES]
        steps = np.abs(some).max(axis=1, initial=0.0) / LIMIT
        scales[start : start + len(some)] = steps
        integers = np.full((LANES, groups * GROUP), ZERO, np.uint8)
        integers[: len(some), :columns] = np.rint(some / np.maximum(steps, np.float32(1e-30))[:, None]) + ZERO
        weights[block] = integers.reshape(LANES, groups, GROUP).transpose(1, 0, 2).reshape(-1)
    return PackedMatrix(weights, scales, TILES)


def packed_once(shelf: Shelf, name: str, matrix: Callable[[], FloatArray]) -> PackedMatrix:
    """What `pack` makes of a matrix, from the shelf if it lies there; then the matrix is not asked for."""
    arrays = shelf.get_or_make(name, lambda: _arrays(pack(matrix())))
    return PackedMatrix(arrays["weights"], arrays["scales"], TILES)


def _arrays(packed: PackedMatrix) -> Arrays:
    return {"weights": packed.weights, "scales": packed.scales}


def _aligned(rows: int, width: int) -> npt.NDArray[np.uint8]:
    """An array that starts where a cache line starts: no read of 64 bytes then touches two."""
    memory = np.empty(rows * width + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + rows * width].reshape(rows, width)


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, bias: Any, rows: Any, first: Any, count: Any, products: Any) -> None:
    """The products of a matrix with some rows of activations, and a bias.

    Args:
        matrix: a `PackedMatrix` of O rows.
        bias: [O rounded up], float32.
        rows: `Rows` of the matrix's width.
        first: of the rows.
        count: how many of them.
        products: written, [count, O rounded up], float32.
    """
    multiply_some(matrix, bias, rows, first, count, 0, len(matrix.weights), products, 0)


@numba.njit(nogil=True, cache=True)
def multiply_some(
    matrix: Any,
    bias: Any,
    rows: Any,
    first: Any,
    count: Any,
    begin: Any,
    end: Any,
    products: Any,
    column: Any,
) -> None:
    """What `multiply` computes, of some blocks of 64 rows of the matrix alone, written from a column on."""
    values, totals, scales, factors = rows.values, rows.sums, rows.scales, matrix.scales
    groups = values.shape[1] // GROUP
    sums = np.empty(TILE_ROWS * LANES, np.int32)
    stride, target = products.shape[1], products.reshape(-1)
    weights, tiled = matrix.weights.reshape(-1), matrix.tiled and count >= _FEWEST
    if tiled:
        begin_tiles()
    for block in range(begin, end):
        start, lane = block * groups * LANES * GROUP, block * LANES
        done = 0
        while done < count:
            row, left = first + done, count - done
            if tiled and left >= _FEWEST:
                sixteen_rows(weights, start, values, row, groups, sums)
                together = TILE_ROWS
            elif left == 1:
                one_row(weights, start, values, row, groups, sums)
                together = 1
            else:
                four_rows(weights, start, values, row, groups, sums)
                together = 4
            to_floats(
                sums,
                min(together, left),
                at(totals, row),
                at(scales, row),
                at(factors, lane),
                at(bias, lane),
                at(target, done * stride + column + lane - begin * LANES),
                stride,
            )
            done += together
    if tiled:
        end_tiles()


@numba.njit(nogil=True, cache=True)
def gather(matrix: Any, size: Any, ids: Any, rows: Any, first: Any) -> Any:
    """Write given rows of a matrix, ids [N], from a row on: an embedding's look-up.

    Returns:
        The first id that is not in [0, size), or 0 if all are.
    """
    groups = rows.values.shape[1] // GROUP
    weights = matrix.weights
    for number in range(len(ids)):
        row, token = first + number, ids[number]
        if not 0 <= token < size:
            return token
        block, lane = token // LANES, token % LANES
        place = lane * GROUP
        total = np.int32(0)
        for group in range(groups):
            for column in range(GROUP):
                value = np.int32(weights[block, place + column]) - np.int32(ZERO)
                rows.values[row, group * GROUP + column] = value
                total += value
            place += LANES * GROUP
        rows.scales[row] = matrix.scales[token]
        rows.sums[row] = total
    return 0


@numba.njit(nogil=True, cache=True)
def multiply_one_each(matrix: Any, bias: Any, rows: Any, ids: Any, products: Any) -> None:
    """What `multiply` gives for one row of the matrix for each row of activations, ids [N]; written into [N]."""
    groups = rows.values.shape[1] // GROUP
    for row in range(len(ids)):
        block, lane = ids[row] // LANES, ids[row] % LANES
        place = lane * GROUP
        total = np.int32(0)
        for group in range(groups):
            for column in range(GROUP):
                weight = np.int32(matrix.weights[block, place + column]) - np.int32(ZERO)
                total += weight * np.int32(rows.values[row, group * GROUP + column])
            place += LANES * GROUP
        scale = rows.scales[row] * matrix.scales[ids[row]]
        products[row] = fused(np.float32(np.int32(total)), scale, bias[ids[row]])
