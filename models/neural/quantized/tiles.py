"""Dot products of 64 rows of weights with sixteen vectors, in tiles.

The weights lie in memory as `dot_products` reads them, which is as tiles want it.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural.amx import KNOWN, instruct
from models.neural.llvm import BYTE, BYTES, WORD, bytes_of, codegen
from models.neural.quantized.dot_products import COLUMNS, GROUP, LANES

ROWS = 16
"""Vectors multiplied together."""

_SUMS = (0, 1, 2, 3)
_ROWS_TILE = 4
_WEIGHTS = (5, 6, 7, 5)
_CONFIGURATION = bytearray(64)  # palette 1; eight tiles of 64 bytes a line and 16 lines
_CONFIGURATION[0] = 1
_CONFIGURATION[16:32] = COLUMNS.to_bytes(2, "little") * 8
_CONFIGURATION[48:56] = bytes([ROWS] * 8)


@intrinsic
def _begin_tiles(_typing_context: Any) -> Any:
    """Say how large tiles are; to be called before `sixteen_rows`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if KNOWN:
            value = ir.Constant(ir.ArrayType(BYTE, len(_CONFIGURATION)), _CONFIGURATION)
            place = codegen.alloca_once_value(builder, value)
            instruct(builder, "ldtilecfg", builder.bitcast(place, BYTES))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _end_tiles(_typing_context: Any) -> Any:
    """Give the tiles back, so that the system need not keep them for a thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if KNOWN:
            instruct(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _sixteen_rows(  # as `dot_products.four_rows`
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
        if not KNOWN:
            return context.get_dummy_value()

        data = partial(bytes_of, context, builder, signature, arguments)

        def number(value: int) -> Any:
            return ir.Constant(WORD, value)

        width = builder.mul(arguments[4], number(GROUP))
        weight = builder.gep(data(0), [arguments[1]])
        first = builder.gep(data(2), [builder.mul(arguments[3], width)])
        for tile in _SUMS:
            instruct(builder, "tilezero", tile)
        steps = builder.udiv(width, number(COLUMNS))
        with codegen.for_range(builder, steps, intp=WORD) as loop:
            column = builder.mul(loop.index, number(COLUMNS))
            instruct(builder, "tileloadd64", _ROWS_TILE, builder.gep(first, [column]), width)
            at = builder.gep(weight, [builder.mul(column, number(LANES))])
            for tile, source in zip(_SUMS, _WEIGHTS, strict=True):
                place = builder.gep(at, [number(tile * COLUMNS)])
                instruct(builder, "tileloadd64", source, place, number(LANES * GROUP))
                instruct(builder, "tdpbsud", tile, _ROWS_TILE, source)
        target = data(5)
        for tile in _SUMS:
            place = builder.gep(target, [number(tile * COLUMNS)])
            instruct(builder, "tilestored64", tile, place, number(LANES * GROUP))
        return context.get_dummy_value()

    return types.void(weights, start, activations, row, groups, sums), generate


begin_tiles: Any = _begin_tiles  # called without the typing context
end_tiles: Any = _end_tiles
sixteen_rows: Any = _sixteen_rows
