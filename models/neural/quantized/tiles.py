"""Dot products of 64 rows of weights with sixteen vectors, by Intel's Advanced Matrix Extensions (AMX).

A tile is a register of 16 lines of 64 bytes; one instruction multiplies 16 x 64 by 64 x 16 bytes and
adds to 16 x 16 sums. The weights lie in memory as `dot_products` reads them, which is as tiles want it.
"""

import ctypes
import sys
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from models.neural.quantized.dot_products import COLUMNS, GROUP, LANES

ROWS = 16
"""Vectors multiplied together."""

_codegen: Any = _cgutils
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_POINTER = _BYTE.as_pointer()
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # Linux, x86-64
_SUMS = (0, 1, 2, 3)
_ROWS_TILE = 4
_WEIGHTS = (5, 6, 7, 5)
_CONFIGURATION = bytearray(64)  # palette 1; eight tiles of 64 bytes a line and 16 lines
_CONFIGURATION[0] = 1
_CONFIGURATION[16:32] = COLUMNS.to_bytes(2, "little") * 8
_CONFIGURATION[48:56] = bytes([ROWS] * 8)

_KNOWN = bool(llvmlite.binding.get_host_cpu_features().get("amx-int8"))


def _has_tiles() -> bool:
    """Whether the processor has tiles and the system lets this process use them, for which Linux wants to be asked."""
    if not (_KNOWN and sys.platform == "linux"):
        return False
    refused: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return refused == 0


TILES = _has_tiles()
"""Whether `sixteen_rows` may be called."""


@intrinsic
def _begin_tiles(typing_context: Any) -> Any:  # noqa: ARG001
    """Say how large tiles are; to be called before `sixteen_rows`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if _KNOWN:
            value = ir.Constant(ir.ArrayType(_BYTE, len(_CONFIGURATION)), _CONFIGURATION)
            place = _codegen.alloca_once_value(builder, value)
            _call(builder, "ldtilecfg", builder.bitcast(place, _POINTER))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _end_tiles(typing_context: Any) -> Any:  # noqa: ARG001
    """Give the tiles back, so that the system need not keep them for a thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if _KNOWN:
            _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _sixteen_rows(  # as `dot_products.four_rows`
    typing_context: Any,  # noqa: ARG001
    weights: Any,
    start: Any,
    activations: Any,
    row: Any,
    groups: Any,
    sums: Any,
) -> Any:
    """Fill [16, 64] sums."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _KNOWN:
            return context.get_dummy_value()

        def data(position: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            return builder.bitcast(array.data, _POINTER)

        def number(value: int) -> Any:
            return ir.Constant(_WORD, value)

        width = builder.mul(arguments[4], number(GROUP))
        weight = builder.gep(data(0), [arguments[1]])
        first = builder.gep(data(2), [builder.mul(arguments[3], width)])
        for tile in _SUMS:
            _call(builder, "tilezero", tile)
        steps = builder.udiv(width, number(COLUMNS))
        with _codegen.for_range(builder, steps, intp=_WORD) as loop:
            column = builder.mul(loop.index, number(COLUMNS))
            _call(builder, "tileloadd64", _ROWS_TILE, builder.gep(first, [column]), width)
            at = builder.gep(weight, [builder.mul(column, number(LANES))])
            for tile, source in zip(_SUMS, _WEIGHTS, strict=True):
                place = builder.gep(at, [number(tile * COLUMNS)])
                _call(builder, "tileloadd64", source, place, number(LANES * GROUP))
                _call(builder, "tdpbsud", tile, _ROWS_TILE, source)
        target = data(5)
        for tile in _SUMS:
            place = builder.gep(target, [number(tile * COLUMNS)])
            _call(builder, "tilestored64", tile, place, number(LANES * GROUP))
        return context.get_dummy_value()

    return types.void(weights, start, activations, row, groups, sums), generate


def _call(builder: Any, instruction: str, *arguments: Any) -> None:
    """An instruction on tiles, which are named by their numbers."""
    values = [ir.Constant(_BYTE, one) if isinstance(one, int) else one for one in arguments]
    declared = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(_codegen.get_or_insert_function(builder.module, declared, f"llvm.x86.{instruction}"), values)


begin_tiles: Any = _begin_tiles  # called without the typing context
end_tiles: Any = _end_tiles
sixteen_rows: Any = _sixteen_rows
