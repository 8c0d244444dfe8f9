"""Dot products of 64 rows of weights with sixteen vectors, in tiles.

The weights lie in memory as `dot_products` reads them, which is as tiles want it.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural.amx import HAS_AMX, emit_x86
from models.neural.llvm import BYTE, BYTE_POINTER, INT64, byte_pointer, codegen
from models.neural.quantized.dot_products import COLUMN_GROUP, COLUMN_MULTIPLE, ROW_LANES

TILE_ROWS = 16
"""Vectors multiplied together."""

_SUMS = (0, 1, 2, 3)
_ROWS_TILE = 4
_WEIGHTS = (5, 6, 7, 5)
_CONFIGURATION = bytearray(64)  # palette 1; eight tiles of 64 bytes a line and 16 lines
_CONFIGURATION[0] = 1
_CONFIGURATION[16:32] = COLUMN_MULTIPLE.to_bytes(2, "little") * 8
_CONFIGURATION[48:56] = bytes([TILE_ROWS] * 8)


@intrinsic
def _begin_tiles(_typing_context: Any) -> Any:
    """Say how large tiles are; to be called before `dot_sixteen_rows`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if HAS_AMX:
            value = ir.Constant(ir.ArrayType(BYTE, len(_CONFIGURATION)), _CONFIGURATION)
            place = codegen.alloca_once_value(builder, value)
            emit_x86(builder, "ldtilecfg", builder.bitcast(place, BYTE_POINTER))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _end_tiles(_typing_context: Any) -> Any:
    """Give the tiles back, so that the system need not keep them for a thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if HAS_AMX:
            emit_x86(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _sixteen_rows(  # as `dot_products.dot_four_rows`
    _typing_context: Any,
    weights: Any,
    start: Any,
    activations: Any,
    row: Any,
    groups: Any,
    sums: Any,
) -> Any:
    """Fill [16, 64] sums."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not HAS_AMX:
            return context.get_dummy_value()

        data = partial(byte_pointer, context, builder, signature, arguments)

        def number(value: int) -> Any:
            return ir.Constant(INT64, value)

        width = builder.mul(arguments[4], number(COLUMN_GROUP))
        weight = builder.gep(data(0), [arguments[1]])
        first = builder.gep(data(2), [builder.mul(arguments[3], width)])
        for tile in _SUMS:
            emit_x86(builder, "tilezero", tile)
        steps = builder.udiv(width, number(COLUMN_MULTIPLE))
        with codegen.for_range(builder, steps, intp=INT64) as loop:
            column = builder.mul(loop.index, number(COLUMN_MULTIPLE))
            emit_x86(builder, "tileloadd64", _ROWS_TILE, builder.gep(first, [column]), width)
            at = builder.gep(weight, [builder.mul(column, number(ROW_LANES))])
            for tile, source in zip(_SUMS, _WEIGHTS, strict=True):
                place = builder.gep(at, [number(tile * COLUMN_MULTIPLE)])
                emit_x86(builder, "tileloadd64", source, place, number(ROW_LANES * COLUMN_GROUP))
                emit_x86(builder, "tdpbsud", tile, _ROWS_TILE, source)
        target = data(5)
        for tile in _SUMS:
            place = builder.gep(target, [number(tile * COLUMN_MULTIPLE)])
            emit_x86(builder, "tilestored64", tile, place, number(ROW_LANES * COLUMN_GROUP))
        return context.get_dummy_value()

    return types.void(weights, start, activations, row, groups, sums), generate


configure_tiles: Any = _begin_tiles  # called without the typing context
release_tiles: Any = _end_tiles
dot_sixteen_rows: Any = _sixteen_rows
