"""Float32 products by exact int8 products: numbers split into three digits to the base 256, in AMX tiles.

Every row has a scale. A row's largest number keeps its 24 bits, and products omit only what lies
beyond them: at a width of 512 they err by 6e-7 of the largest numbers' product (root mean square),
as sums in single precision do. Products of digits of like weight are summed separately, the three
heaviest sums are used; sums are exact, so a row's products do not depend on the other rows. Without
AMX, plain loops give the same result for tests; they are slower than single precision.

Source: splitting floats into pieces with exact products, Ozaki et al. 2012; in int8, Ootomo et al.
2024.
"""

from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.arrays import FloatArray
from models.kernels.llvm import (
    FLOAT_VECTOR,
    INT64,
    INT_VECTOR,
    USE_AMX,
    VECTOR_WIDTH,
    broadcast,
    byte_pointer,
    call_llvm,
    codegen,
    emit_x86,
    pointer_at,
)
from models.kernels.math import greater
from models.tensor_files import Arrays

ROWS = 16
"""Rows of one product."""

COLUMNS = 32
"""Columns of one product: two tiles, so that one is multiplied while the sums of the other complete."""

DEPTH = 64
"""Numbers of a row and a column that one instruction multiplies."""

DIGITS = 3

_GROUP = 4  # neighbouring numbers of a column in one 32-bit lane
_TILE_BYTES = 1024  # bytes
_WIDTH = _TILE_BYTES // ROWS // 4  # columns of a tile of sums
_TILES = COLUMNS // _WIDTH
_SUMS = _TILES * DIGITS
_OF_ROWS, _OF_COLUMNS = _SUMS, _SUMS + 1  # tiles of the factors
# digit of the row, part and digit of the columns: neighbours share a factor, which is then loaded once
_ORDER = (
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 2), (0, 1, 1), (0, 1, 0)),
    *((1, 1, 0), (1, 1, 1), (1, 0, 1), (1, 0, 0), (2, 0, 0), (2, 1, 0)),
)


def aligned(size: int) -> npt.NDArray[np.int8]:
    """Zeros aligned to a cache line: no row of a tile touches two lines."""
    memory = np.zeros(size + DEPTH, np.int8)
    start = -memory.ctypes.data % DEPTH
    return memory[start : start + size]


def _shapes() -> npt.NDArray[np.int8]:
    """Tile configurations for 0 to 16 rows, 64 bytes each."""
    shapes = aligned((ROWS + 1) * DEPTH)
    for rows, shape in enumerate(shapes.reshape(-1, DEPTH)):
        shape[0] = 1  # the palette
        shape[16:32].view(np.uint16)[:] = DEPTH  # bytes of a tile's row
        shape[48 : 48 + _OF_COLUMNS] = rows
        shape[48 + _OF_COLUMNS] = DEPTH // _GROUP
    return shapes


SHAPES = _shapes()
"""For `_configure`."""


@intrinsic
def _configure(_typing_context: Any, shapes: Any, rows: Any) -> Any:
    """Configure the tiles for a number of rows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        offset = builder.mul(arguments[1], ir.Constant(arguments[1].type, DEPTH))
        emit_x86(
            builder,
            "ldtilecfg",
            builder.gep(byte_pointer(context, builder, signature, arguments, 0), [offset]),
        )
        return context.get_dummy_value()

    return types.void(shapes, rows), generate


@intrinsic
def _release(_typing_context: Any) -> Any:
    """Release the tiles, so that the system need not save them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        emit_x86(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _multiply_tiles(
    _typing_context: Any, rows: Any, row: Any, columns: Any, column: Any, steps: Any, sums: Any
) -> Any:
    """Multiply as `_multiply_plainly`, in AMX tiles: six of sums, one of each factor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def address(position: int, offset: Any) -> Any:
            return builder.gep(byte_pointer(context, builder, signature, arguments, position), [offset])

        def load(tile: int, start: Any, number: int) -> None:
            pointer = builder.gep(start, [ir.Constant(INT64, number * _TILE_BYTES)])
            emit_x86(builder, "tileloadd64", tile, pointer, ir.Constant(INT64, DEPTH))

        first, second = address(0, arguments[1]), address(2, arguments[3])
        for tile in range(_SUMS):
            emit_x86(builder, "tilezero", tile)
        with codegen.for_range(builder, arguments[4], intp=arguments[4].type) as loop:
            left = builder.gep(first, [builder.mul(loop.index, ir.Constant(INT64, DIGITS * _TILE_BYTES))])
            right = builder.gep(second, [builder.mul(loop.index, ir.Constant(INT64, _SUMS * _TILE_BYTES))])
            held: tuple[int, int] | None = None
            for digit, *column_tile in _ORDER:
                number = column_tile[0] * DIGITS + column_tile[1]
                if held is None or held[0] != digit:
                    load(_OF_ROWS, left, digit)
                if held is None or held[1] != number:
                    load(_OF_COLUMNS, right, number)
                held = digit, number
                emit_x86(builder, "tdpbssd", number + digit, _OF_ROWS, _OF_COLUMNS)
        for tile in range(_SUMS):
            target = address(5, ir.Constant(INT64, tile * _TILE_BYTES))
            emit_x86(builder, "tilestored64", tile, target, ir.Constant(INT64, DEPTH))
        return context.get_dummy_value()

    return types.void(rows, row, columns, column, steps, sums), generate


@numba.njit(nogil=True)
def _multiply_plainly(rows: Any, row: Any, columns: Any, column: Any, steps: Any, sums: Any) -> None:
    """Write the sums of products of 16 rows with 32 columns, without AMX.

    Args:
        rows: int8, from `row` on [steps, 3 digits, 16, 64].
        row: their offset.
        columns: int8, from `column` on [steps, 2 parts, 3 digits, 16, 16 columns, 4], in groups of four.
        column: their offset.
        steps: of 64 numbers each.
        sums: written, int32, [2 parts, 3 levels, 16, 16 columns]: level l sums the digits a and b with a + b = l.
    """
    left = rows[row : row + steps * DIGITS * _TILE_BYTES].reshape(
        (steps, DIGITS, ROWS, DEPTH // _GROUP, _GROUP)
    )
    right = columns[column : column + steps * _SUMS * _TILE_BYTES]
    right = right.reshape((steps, _TILES, DIGITS, DEPTH // _GROUP, _WIDTH, _GROUP))
    totals = sums.reshape((_TILES, DIGITS, ROWS, _WIDTH))
    totals[:] = 0
    for step in range(steps):
        for digit in range(DIGITS):
            for further in range(DIGITS - digit):
                for part, r, group, c in np.ndindex(_TILES, ROWS, DEPTH // _GROUP, _WIDTH):
                    for item in range(_GROUP):
                        left_digit = np.int32(left[step, digit, r, group, item])
                        right_digit = np.int32(right[step, part, further, group, c, item])
                        totals[part, digit + further, r, c] += left_digit * right_digit


@numba.njit(nogil=True)
def _nothing_to_configure(shapes: Any, rows: Any) -> None:
    """The stand-in of `_configure`."""


@numba.njit(nogil=True)
def _nothing_to_release() -> None:
    """The stand-in of `_release`."""


configure: Any = _configure if USE_AMX else _nothing_to_configure
release: Any = _release if USE_AMX else _nothing_to_release
multiply_block: Any = _multiply_tiles if USE_AMX else _multiply_plainly


LARGEST = np.float32(127 << 16)
"""Integer of a row's largest number: digits are from -128 to 127, the first at least -127."""

HEAVIEST = np.float32(1 << 16)
"""The weight of the first digit."""

_LANES = 16
_TINY = np.float32(1e-30)
_ZERO = np.float32(0)


class SplitFloats(NamedTuple):
    """N vectors of W numbers.

    Attributes:
        values: int8, [N / 16, W / 64, 3, 16, 64] flattened, N and W rounded up.
        scales: value of the first digit's unit in each row [N rounded up], float32.
    """

    values: npt.NDArray[np.int8]
    scales: FloatArray


def empty_split_floats(count: int, width: int) -> SplitFloats:
    """Zeros for `count` vectors of a width."""
    tiles, depths = -(-count // ROWS), -(-width // DEPTH)
    return SplitFloats(aligned(tiles * depths * DIGITS * ROWS * DEPTH), np.zeros(tiles * ROWS, np.float32))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def split_floats(vectors: Any, digits: Any, first: Any) -> None:
    """Write vectors [N, W] as rows from `first` on; a vector with NaN or infinity becomes NaN."""
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
    """The largest absolute value; NaN if the vector has NaN or infinity."""
    lanes, nan_lanes = np.zeros(_LANES, np.float32), np.zeros(_LANES, np.float32)
    lane_end = len(vector) // _LANES * _LANES
    for start in range(0, lane_end, _LANES):
        for lane in range(_LANES):
            lanes[lane] = greater(lanes[lane], abs(vector[start + lane]))
            nan_lanes[lane] += vector[start + lane] * _ZERO
    for index in range(lane_end, len(vector)):
        lanes[index - lane_end] = greater(lanes[index - lane_end], abs(vector[index]))
        nan_lanes[index - lane_end] += vector[index] * _ZERO
    return lanes.max() + nan_lanes.sum()


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _round(vector: Any, step: Any, integers: Any) -> None:
    """Write the nearest multiples of the step; a reciprocal's error would be the same in all columns and add up."""
    for index in range(len(vector)):
        integers[index] = np.int32(np.rint(vector[index] / step))


@numba.njit(nogil=True, cache=True)
def _write_digits(integers: Any, values: Any, start: Any, depths: Any) -> None:
    """Write the digits of one row, which begins at `start` of `values`."""
    for depth in range(depths):
        heavy = start + depth * DIGITS * ROWS * DEPTH
        middle, light = heavy + ROWS * DEPTH, heavy + 2 * ROWS * DEPTH
        for index in range(DEPTH):
            rest = integers[depth * DEPTH + index]
            last = np.int8(rest)
            rest = (rest - np.int32(last)) >> np.int32(8)
            second = np.int8(rest)
            values[light + index] = last
            values[middle + index] = second
            values[heavy + index] = np.int8((rest - np.int32(second)) >> np.int32(8))


_BYTES = 4 * VECTOR_WIDTH


@intrinsic
def _dequantise_levels(
    _typing_context: Any,
    sums: Any,
    rows: Any,
    scales: Any,
    factors: Any,
    bias: Any,
    products: Any,
    stride: Any,
) -> Any:
    """Convert sums of three levels to floats, and add the bias.

    Args:
        sums: int32, [2 parts, 3 levels, 16, 16 columns].
        rows: number of the 16 that are used.
        scales: of the rows, float32.
        factors: of the 32 columns, float32.
        bias: of the 32 columns, float32.
        products: pointer to the first row's, float32; written.
        stride: floats from one row of the products to the next.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = partial(byte_pointer, context, builder, signature, arguments)

        def load(scale_address: Any, offset: int, vector_type: Any) -> Any:
            address = builder.gep(scale_address, [ir.Constant(INT64, offset)])
            return builder.load(builder.bitcast(address, vector_type.as_pointer()), align=4)

        summed, of_rows, of_columns, added, target = (start(number) for number in (0, 2, 3, 4, 5))
        weights = [ir.Constant(FLOAT_VECTOR, [2.0 ** (-8 * level)] * VECTOR_WIDTH) for level in range(DIGITS)]
        parts = range(2)
        columns = [load(of_columns, part * _BYTES, FLOAT_VECTOR) for part in parts]
        biases = [load(added, part * _BYTES, FLOAT_VECTOR) for part in parts]
        with codegen.for_range(builder, arguments[1], intp=arguments[1].type) as loop:
            row = builder.gep(summed, [builder.mul(loop.index, ir.Constant(INT64, _BYTES))])
            scale_address = builder.gep(of_rows, [builder.mul(loop.index, ir.Constant(INT64, 4))])
            scale = broadcast(
                builder,
                builder.load(builder.bitcast(scale_address, ir.FloatType().as_pointer())),
                FLOAT_VECTOR,
            )
            skipped = builder.mul(builder.mul(loop.index, arguments[6]), ir.Constant(INT64, 4))
            written = builder.gep(target, [skipped])
            for part in parts:
                levels = [
                    builder.sitofp(
                        load(row, (part * DIGITS + level) * ROWS * _BYTES, INT_VECTOR), FLOAT_VECTOR
                    )
                    for level in range(DIGITS)
                ]
                weighted_sum = call_llvm(builder, "fma", weights[1], levels[1], levels[0])
                weighted_sum = call_llvm(builder, "fma", weights[2], levels[2], weighted_sum)
                product = call_llvm(
                    builder, "fma", weighted_sum, builder.fmul(scale, columns[part]), biases[part]
                )
                address = builder.gep(written, [ir.Constant(INT64, part * _BYTES)])
                builder.store(product, builder.bitcast(address, FLOAT_VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(sums, rows, scales, factors, bias, products, stride), generate


to_floats: Any = _dequantise_levels  # called without the typing context


LAYOUT = "tiles-2"
"""Version of the layout of `pack`; to be increased when it changes."""

COLUMNS_PER_PRODUCT = 512
"""Columns per pass over all vectors: 786 KB of weights at a width of 512."""

MULTIPLE = 64
"""Unit of the rows of weights, which are padded to a multiple of it: one block of the sampling sums."""

_TILE_VALUES = ROWS * DEPTH
_PARTS = COLUMNS // _LANES

MAX_SPLIT_WIDTH = 1 << 15
"""Largest width of vectors: sums of products of digits must fit into 32 bits."""


class SplitFloatMatrix(NamedTuple):
    """O rows of W weights as the products read them, three bytes a weight.

    Attributes:
        values: int8, [O / 32, W / 64, 2, 3, 16, 16, 4] flattened, O and W rounded up to multiples of 64.
        scales: of the rows [O rounded up], float32; 0 in padding.
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
        """Vectors at least for which a product pays: a single one fills no tile."""
        return 2

    @property
    def apart(self) -> int:
        """Unit of the first vector of a product: a multiple of it."""
        return ROWS

    @property
    def piece(self) -> tuple[int, int]:
        """Vectors and columns of a tile of products."""
        return ROWS, COLUMNS_PER_PRODUCT

    def buffer_for(self, count: int) -> SplitFloats:
        """A buffer for vectors [N, W], to be filled by `write`."""
        return empty_split_floats(count, self.depths * DEPTH)


def pack(matrix: FloatArray, bias: FloatArray, fill: float) -> SplitFloatMatrix:
    """Pack weights [O, W] and a bias [O], padded with `fill`."""
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
    """The matrix of arrays from `arrays_of`."""
    values, scales, bias = arrays["values"], arrays["scales"], arrays["bias"]
    return SplitFloatMatrix(values, scales, bias, len(values) // (len(bias) * DIGITS * DEPTH))


def arrays_of(matrix: SplitFloatMatrix) -> Arrays:
    """The arrays of a matrix, by name."""
    return {"values": matrix.values, "scales": matrix.scales, "bias": matrix.bias}


@numba.njit(nogil=True, cache=True)
def write(_matrix: Any, vectors: Any, buffer: Any, first: Any) -> None:
    """Write vectors [N, W] as rows of `SplitFloats` from row `first` on."""
    split_floats(vectors, buffer, first)


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, vectors: Any, count: Any, products: Any) -> None:
    """Write the products of a matrix with vectors, plus its bias.

    Args:
        matrix: a `SplitFloatMatrix` of O rows.
        vectors: `SplitFloats` of the matrix's width.
        count: number of vectors, from the first on.
        products: written, [N, O rounded up], float32.
    """
    size = len(matrix.bias)
    # columns outside: 512 columns of weights stay in the cache for all vectors
    for begin in range(0, size, COLUMNS_PER_PRODUCT):
        end = min(begin + COLUMNS_PER_PRODUCT, size)
        for row in range(0, count, ROWS):
            product_rows = products[row : min(row + ROWS, count)]
            multiply_some(matrix, vectors, row, begin, end, product_rows, begin)


@numba.njit(nogil=True, cache=True)
def multiply_some(
    matrix: Any, vectors: Any, row: Any, begin: Any, end: Any, products: Any, column: Any
) -> None:
    """Write the products of a range of a matrix's rows with up to 16 vectors, plus their bias.

    Args:
        matrix: a `SplitFloatMatrix`.
        vectors: `SplitFloats`.
        row: the first vector, a multiple of 16.
        begin: of the matrix's rows, a multiple of 32.
        end: of them, exclusive; a multiple of 32.
        products: written, float32, a row for each vector.
        column: of the products of row `begin`.
    """
    sums = np.empty(_PARTS * DIGITS * ROWS * _LANES, np.int32)  # [2, 3, 16, 16], as the tiles are stored
    depths, weights, factors, bias = matrix.depths, matrix.values, matrix.scales, matrix.bias
    values, scales = vectors.values, vectors.scales
    start, target = row * depths * DIGITS * DEPTH, products.reshape(-1)
    count, stride = products.shape
    configure(SHAPES, count)
    for first in range(begin, end, COLUMNS):
        block = first // COLUMNS
        multiply_block(values, start, weights, block * depths * _PARTS * DIGITS * _TILE_VALUES, depths, sums)
        destination = pointer_at(target, column + first - begin)
        to_floats(
            sums,
            count,
            pointer_at(scales, row),
            pointer_at(factors, first),
            pointer_at(bias, first),
            destination,
            stride,
        )
    release()
