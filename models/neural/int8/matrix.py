"""Int8 weight matrices, and products with int8 activations.

Every row of a matrix and every row of activations has a scale, and integer sums are exact in any
order, so the float of a dot product depends only on its two rows.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.arrays import AnyArray, FloatArray, Int32s, Int64s, UInt8s
from models.kernels.compilation import kernel, tuple_type
from models.kernels.log_sum_exp import ROW_LANES
from models.kernels.math import fma, greater, pointer_at
from models.neural.int8.kernels import (
    COLUMN_GROUP,
    COLUMN_MULTIPLE,
    ZERO_POINT,
    dequantise_sums,
    dot_four_rows,
    dot_one_row,
)
from models.tensor_files import Arrays, PackedWeightCache

FLOATS, FLOATS_2D, IDS = types.float32[::1], types.float32[:, ::1], types.int64[::1]
"""Types of kernels' arguments: arrays of one and two dimensions, and ids or indices."""

MAX_INT8 = np.float32(127)
"""Largest integer; -128 is not used, for a symmetric range."""

SPARE_ROWS = 3
"""Number of rows past the last that a product of four rows may read."""

_TINY = np.float32(1e-30)
_HALF = np.float32(0.5)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_ZERO = np.int64(0)  # numba would compile a further version for each literal

INT8_LAYOUT = "int8-1"
"""Version of the layout of `quantise_matrix`; increase it when the layout changes."""

_BATCH = SPARE_ROWS + 1  # rows of one product
_ALIGNMENT = 64  # bytes: a cache line
ROW_PADDING = 16
"""Floats between rows of products: rows a power of two apart evict each other."""


class Int8Rows(NamedTuple):
    """N vectors as integers times a scale, followed by `SPARE_ROWS` rows of padding.

    Attributes:
        values: [N + SPARE, W rounded up to a multiple of 64], int8; 0 in padding.
        scales: [N + SPARE], float32.
        sums: sum of each row's values [N + SPARE], int32.
    """

    values: npt.NDArray[np.int8]
    scales: FloatArray
    sums: Int32s


INT8_ROWS_TYPE = tuple_type(Int8Rows, types.int8[:, ::1], FLOATS, types.int32[::1])


def zero_int8_rows(count: int, width: int) -> Int8Rows:
    """Return zero-filled rows for `count` vectors of a width."""
    count, padded = count + SPARE_ROWS, -(-width // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    values = np.zeros((count, padded), np.int8)
    return Int8Rows(values, np.zeros(count, np.float32), np.zeros(count, np.int32))


@numba.njit(nogil=True)
def _max_abs(vector: Any) -> Any:
    """Return the largest absolute value; comparisons of integers vectorise."""
    highest = np.uint32(0)
    for index in range(len(vector)):
        highest = greater(np.uint32(np.float32(vector[index]).view(np.uint32) & _MAGNITUDE), highest)
    return np.uint32(highest).view(np.float32)


@numba.njit(nogil=True, error_model="numpy")
def quantise_row(vector: Any, rows: Any, row: Any) -> None:
    """Quantise a float32 vector [W] to a row of nearest integers, the largest ±127."""
    highest = _max_abs(vector)
    inverse = MAX_INT8 / max(highest, _TINY)
    values = rows.values[row]
    total = np.int32(0)
    for column in range(len(vector)):
        value = np.int32(np.floor(vector[column] * inverse + _HALF))
        values[column] = value
        total += value
    rows.scales[row] = highest / MAX_INT8
    rows.sums[row] = total


@kernel(types.void(FLOATS_2D, INT8_ROWS_TYPE, types.int64))
def quantise_rows(vectors: Any, rows: Any, first: Any) -> None:
    """Quantise vectors [N, W] to rows from `first` on."""
    for number in range(len(vectors)):
        quantise_row(vectors[number], rows, first + number)


@kernel(types.void(INT8_ROWS_TYPE, types.int64, FLOATS_2D))
def dequantise_rows(rows: Any, first: Any, vectors: Any) -> None:
    """Convert rows from `first` on to floats, written to vectors [N, W]."""
    for number in range(len(vectors)):
        scale = rows.scales[first + number]
        for column in range(vectors.shape[1]):
            vectors[number, column] = np.float32(rows.values[first + number, column]) * scale


def take_rows(rows: Int8Rows, positions: Int64s) -> Int8Rows:
    """Copy the rows at given positions [N]."""
    positions = np.concatenate([positions, np.zeros(SPARE_ROWS, np.int64)])
    return Int8Rows(rows.values[positions], rows.scales[positions], rows.sums[positions])


class Int8Matrix(NamedTuple):
    """O rows of K weights in the memory order of the products.

    Attributes:
        weights: [O/64, K/4, 64, 4] as [O/64, 64 K], O and K rounded up; uint8, the integer plus 128.
        scales: scale per row [O rounded up to a multiple of 64], float32; 0 in padding.
    """

    weights: UInt8s
    scales: FloatArray


INT8_MATRIX_TYPE = tuple_type(Int8Matrix, types.uint8[:, ::1], FLOATS)


def quantise_matrix(matrix: FloatArray) -> Int8Matrix:
    """Quantise each row of weights [O, K] to 255 levels, symmetric about 0."""
    rows, columns = matrix.shape
    blocks = -(-rows // ROW_LANES)
    groups = -(-columns // COLUMN_MULTIPLE) * (COLUMN_MULTIPLE // COLUMN_GROUP)
    scales = np.zeros(blocks * ROW_LANES, np.float32)
    width = groups * ROW_LANES * COLUMN_GROUP
    memory = np.empty(blocks * width + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT  # so no 64-byte read spans two lines
    weights = memory[begin : begin + blocks * width].reshape(blocks, width)
    # block by block, to avoid a temporary of the matrix's size
    for block, start in enumerate(range(0, rows, ROW_LANES)):
        block_rows = matrix[start : start + ROW_LANES]
        steps = np.abs(block_rows).max(axis=1, initial=0.0) / MAX_INT8
        scales[start : start + len(block_rows)] = steps
        integers = np.full((ROW_LANES, groups * COLUMN_GROUP), ZERO_POINT, np.uint8)
        integers[: len(block_rows), :columns] = (
            np.rint(block_rows / np.maximum(steps, np.float32(1e-30))[:, None]) + ZERO_POINT
        )
        # [64, K/4, 4] to [K/4, 64, 4], the order in which the products read weights
        weights[block] = integers.reshape(ROW_LANES, groups, COLUMN_GROUP).transpose(1, 0, 2).reshape(-1)
    return Int8Matrix(weights, scales)


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, types.int64, types.int64, FLOATS_2D))
def multiply_rows(matrix: Any, bias: Any, rows: Any, first: Any, count: Any, products: Any) -> None:
    """Write the products of a matrix with rows of activations, plus a bias.

    Args:
        matrix: an `Int8Matrix` of O rows.
        bias: [O rounded up], float32.
        rows: `Int8Rows` of the matrix's width.
        first: index of the first row.
        count: number of rows.
        products: written, [count, O rounded up], float32.
    """
    multiply_blocks(matrix, bias, rows, first, count, _ZERO, len(matrix.weights), products, _ZERO)


@numba.njit(nogil=True)
def multiply_blocks(
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
    """Write products of `multiply_rows` for blocks of 64 matrix rows, from `column` on."""
    values, totals, scales, factors = rows.values, rows.sums, rows.scales, matrix.scales
    groups = values.shape[1] // COLUMN_GROUP
    sums = np.empty(_BATCH * ROW_LANES, np.int32)
    stride, target = products.shape[1], products.reshape(-1)
    weights = matrix.weights.reshape(-1)
    # outer loop over blocks of weights: each is read from memory once, then cached
    for block in range(begin, end):
        start, lane = block * groups * ROW_LANES * COLUMN_GROUP, block * ROW_LANES
        done = 0
        while done < count:
            row, left = first + done, count - done
            if left == 1:
                dot_one_row(weights, start, values, row, groups, sums)
                batch = 1
            else:
                dot_four_rows(weights, start, values, row, groups, sums)
                batch = _BATCH
            dequantise_sums(
                sums,
                min(batch, left),
                pointer_at(totals, row),
                pointer_at(scales, row),
                pointer_at(factors, lane),
                pointer_at(bias, lane),
                pointer_at(target, done * stride + column + lane - begin * ROW_LANES),
                stride,
            )
            done += batch


@kernel(types.int64(INT8_MATRIX_TYPE, types.int64, IDS, INT8_ROWS_TYPE, types.int64))
def gather_rows(matrix: Any, size: Any, ids: Any, rows: Any, first: Any) -> Any:
    """Look up embeddings: copy matrix rows with ids [N] to rows from `first` on.

    Returns:
        The first id outside [0, size), or 0 if all are valid.
    """
    groups = rows.values.shape[1] // COLUMN_GROUP
    weights = matrix.weights
    for number in range(len(ids)):
        row, token = first + number, ids[number]
        if not 0 <= token < size:
            return token
        block, lane = token // ROW_LANES, token % ROW_LANES
        offset = lane * COLUMN_GROUP
        total = np.int32(0)
        for group in range(groups):
            for column in range(COLUMN_GROUP):
                value = np.int32(weights[block, offset + column]) - np.int32(ZERO_POINT)
                rows.values[row, group * COLUMN_GROUP + column] = value
                total += value
            offset += ROW_LANES * COLUMN_GROUP
        rows.scales[row] = matrix.scales[token]
        rows.sums[row] = total
    return 0


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, IDS, FLOATS))
def multiply_row_pairs(matrix: Any, bias: Any, rows: Any, ids: Any, products: Any) -> None:
    """Write products [N] of each row of activations with a matrix row, by ids [N]."""
    groups = rows.values.shape[1] // COLUMN_GROUP
    for row in range(len(ids)):
        block, lane = ids[row] // ROW_LANES, ids[row] % ROW_LANES
        offset = lane * COLUMN_GROUP
        total = np.int32(0)
        for group in range(groups):
            for column in range(COLUMN_GROUP):
                weight = np.int32(matrix.weights[block, offset + column]) - np.int32(ZERO_POINT)
                total += weight * np.int32(rows.values[row, group * COLUMN_GROUP + column])
            offset += ROW_LANES * COLUMN_GROUP
        scale = rows.scales[row] * matrix.scales[ids[row]]
        products[row] = fma(np.float32(np.int32(total)), scale, bias[ids[row]])


class Int8Linear(NamedTuple):
    """W x + b.

    Attributes:
        matrix: W, [O, I].
        bias: b, [O rounded up to a multiple of 64], float32.
        size: O.
    """

    matrix: Int8Matrix
    bias: FloatArray
    size: int


def pad_bias(bias: FloatArray) -> FloatArray:
    """Pad a bias [O] with minus infinity to a multiple of 64."""
    padded = np.full(-(-len(bias) // ROW_LANES) * ROW_LANES, -np.inf, np.float32)
    padded[: len(bias)] = bias
    return padded


class Parameters:
    """Parameters of a part of a network, and their quantised matrices.

    Args:
        arrays: parameters of the network by name, in single precision.
        weight_cache: cache of the quantised matrices.
        prefix: beginning of the names of the part's parameters.
    """

    def __init__(
        self, arrays: Mapping[str, AnyArray], weight_cache: PackedWeightCache, prefix: str = ""
    ) -> None:
        self._arrays, self._weight_cache, self._prefix = arrays, weight_cache, prefix

    def part(self, name: str) -> "Parameters":
        """Return the parameters of a part of this part."""
        return Parameters(self._arrays, self._weight_cache, f"{self._prefix}{name}.")

    def __getitem__(self, name: str) -> AnyArray:
        """Return a parameter, perhaps a read-only view of a file."""
        return self._arrays[self._prefix + name]

    def matrix(self, name: str, make: Callable[[], FloatArray] | None = None) -> Int8Matrix:
        """Return a quantised matrix from the cache.

        Args:
            name: name of the matrix.
            make: function that makes it if it is not cached; None if it is a parameter.
        """

        def pack() -> Arrays:
            packed = quantise_matrix(self[name] if make is None else make())
            return {"weights": packed.weights, "scales": packed.scales}

        return Int8Matrix(**self._weight_cache.get_or_make(f"{INT8_LAYOUT}.{self._prefix}{name}", pack))

    def linear(self, weight: str, bias: FloatArray | None = None) -> Int8Linear:
        """Return a layer of named weights [O, I] and a bias [O], or 0."""
        size = len(self[weight])
        bias = np.zeros(size, np.float32) if bias is None else bias
        return Int8Linear(self.matrix(weight), pad_bias(bias), size)
