"""Float32 products by exact int8 products: numbers split into three digits to the base 256, in AMX tiles.

Every row has a scale. A row's largest number keeps its 24 bits, and products omit only what lies
beyond them: at a width of 512 they err by 6e-7 of the largest numbers' product (root mean square),
as sums in single precision do. Products of digits of like weight are summed separately, the three
heaviest sums are kept; sums are exact, so a row's products do not depend on the other rows. Without
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
"""Rows computed together."""

COLUMNS = 32
"""Columns computed together: two tiles, so that one is multiplied while the other's sums are awaited."""

DEPTH = 64
"""Places of rows and columns that one instruction multiplies."""

DIGITS = 3

_GROUP = 4  # neighbouring places that the instruction takes from a column at once
_TILE_BYTES = 1024  # bytes
_WIDTH = _TILE_BYTES // ROWS // 4  # columns of a tile of sums
_TILES = COLUMNS // _WIDTH
_SUMS = _TILES * DIGITS
_OF_ROWS, _OF_COLUMNS = _SUMS, _SUMS + 1  # the tiles that hold factors
# digit of the row, part and digit of the columns: neighbours share a factor, which is then loaded once
_ORDER = (
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 2), (0, 1, 1), (0, 1, 0)),
    *((1, 1, 0), (1, 1, 1), (1, 0, 1), (1, 0, 0), (2, 0, 0), (2, 1, 0)),
)


def aligned(size: int) -> npt.NDArray[np.int8]:
    """Zeros that start where a cache line starts: no row of a tile then touches two."""
    memory = np.zeros(size + DEPTH, np.int8)
    start = -memory.ctypes.data % DEPTH
    return memory[start : start + size]


def _shapes() -> npt.NDArray[np.int8]:
    """What tells the processor how large tiles are, for 0 to 16 rows, 64 bytes each."""
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
    """Say how many rows tiles have."""

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
    """Say that tiles are no longer in use, which spares the system saving them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        emit_x86(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _multiply_tiles(
    _typing_context: Any, rows: Any, row: Any, columns: Any, column: Any, steps: Any, sums: Any
) -> Any:
    """See `_multiply_plainly`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def address(position: int, offset: Any) -> Any:
            return builder.gep(byte_pointer(context, builder, signature, arguments, position), [offset])

        def load(tile: int, start: Any, number: int) -> None:
            place = builder.gep(start, [ir.Constant(INT64, number * _TILE_BYTES)])
            emit_x86(builder, "tileloadd64", tile, place, ir.Constant(INT64, DEPTH))

        first, other = address(0, arguments[1]), address(2, arguments[3])
        for tile in range(_SUMS):
            emit_x86(builder, "tilezero", tile)
        with codegen.for_range(builder, arguments[4], intp=arguments[4].type) as loop:
            left = builder.gep(first, [builder.mul(loop.index, ir.Constant(INT64, DIGITS * _TILE_BYTES))])
            right = builder.gep(other, [builder.mul(loop.index, ir.Constant(INT64, _SUMS * _TILE_BYTES))])
            held: tuple[int, int] | None = None
            for digit, *place in _ORDER:
                number = place[0] * DIGITS + place[1]
                if held is None or held[0] != digit:
                    load(_OF_ROWS, left, digit)
                if held is None or held[1] != number:
                    load(_OF_COLUMNS, right, number)
                held = digit, number
                emit_x86(builder, "tdpbssd", number + digit, _OF_ROWS, _OF_COLUMNS)
        for tile in range(_SUMS):
            place = address(5, ir.Constant(INT64, tile * _TILE_BYTES))
            emit_x86(builder, "tilestored64", tile, place, ir.Constant(INT64, DEPTH))
        return context.get_dummy_value()

    return types.void(rows, row, columns, column, steps, sums), generate


@numba.njit(nogil=True)
def _multiply_plainly(rows: Any, row: Any, columns: Any, column: Any, steps: Any, sums: Any) -> None:
    """Sums of products of 16 rows with 32 columns.

    Args:
        rows: int8, from `row` on [steps, 3 digits, 16, 64].
        row: where they start.
        columns: int8, from `column` on [steps, 2 parts, 3 digits, 16, 16 columns, 4], the places by fours.
        column: where they start.
        steps: 64 places each.
        sums: written, int32, [2 parts, 3 levels, 16, 16 columns]: level l is of the digits a and b with a + b = l.
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
                    for place in range(_GROUP):
                        one = np.int32(left[step, digit, r, group, place])
                        other = np.int32(right[step, part, further, group, c, place])
                        totals[part, digit + further, r, c] += one * other


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


_BYTES = 4 * VECTOR_WIDTH


@intrinsic
def _to_floats(
    _typing_context: Any,
    sums: Any,
    rows: Any,
    scales: Any,
    factors: Any,
    bias: Any,
    products: Any,
    stride: Any,
) -> Any:
    """Write what sums of three levels stand for.

    Args:
        sums: int32, [2 parts, 3 levels, 16, 16 columns].
        rows: how many of the 16.
        scales: of the rows, float32.
        factors: of the 32 columns, float32.
        bias: of the 32 columns, float32.
        products: where the first row's are written, float32.
        stride: floats from one row of the products to the next.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = partial(byte_pointer, context, builder, signature, arguments)

        def load(place: Any, offset: int, kind: Any) -> Any:
            there = builder.gep(place, [ir.Constant(INT64, offset)])
            return builder.load(builder.bitcast(there, kind.as_pointer()), align=4)

        summed, of_rows, of_columns, added, target = (start(number) for number in (0, 2, 3, 4, 5))
        weights = [ir.Constant(FLOAT_VECTOR, [2.0 ** (-8 * level)] * VECTOR_WIDTH) for level in range(DIGITS)]
        parts = range(2)
        columns = [load(of_columns, part * _BYTES, FLOAT_VECTOR) for part in parts]
        biases = [load(added, part * _BYTES, FLOAT_VECTOR) for part in parts]
        with codegen.for_range(builder, arguments[1], intp=arguments[1].type) as loop:
            row = builder.gep(summed, [builder.mul(loop.index, ir.Constant(INT64, _BYTES))])
            place = builder.gep(of_rows, [builder.mul(loop.index, ir.Constant(INT64, 4))])
            scale = broadcast(
                builder, builder.load(builder.bitcast(place, ir.FloatType().as_pointer())), FLOAT_VECTOR
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
                whole = call_llvm(builder, "fma", weights[1], levels[1], levels[0])
                whole = call_llvm(builder, "fma", weights[2], levels[2], whole)
                product = call_llvm(builder, "fma", whole, builder.fmul(scale, columns[part]), biases[part])
                there = builder.gep(written, [ir.Constant(INT64, part * _BYTES)])
                builder.store(product, builder.bitcast(there, FLOAT_VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(sums, rows, scales, factors, bias, products, stride), generate


to_floats: Any = _to_floats  # called without the typing context


LAYOUT = "tiles-2"
"""Names what `pack` makes; to be counted up when that changes."""

COLUMNS_PER_PRODUCT = 512
"""Columns multiplied with all vectors before the next: 786 KB of weights at a width of 512."""

MULTIPLE = 64
"""Rows of weights are rounded up to a multiple of it: what is weighed together."""

_TILE_VALUES = ROWS * DEPTH
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
