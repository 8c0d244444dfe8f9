"""The innermost loop: sums of products of bytes, sixteen rows by thirty-two columns at a time.

Numbers come as three digits to the base 256 (`digits`), so a product of two is made of products of digits.
Those of like weight have a sum of their own; the three sums of the heaviest are kept, which is as much as
single precision holds. Sums are exact, so a row's do not depend on the rows beside it.

Where the processor multiplies tiles of bytes (AMX), that is done by its instructions, else by plain
loops with the same result, which are there for tests: they are slower than single precision itself.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural.amx import USE_AMX, emit_x86
from models.neural.llvm import INT64, byte_pointer, codegen

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
