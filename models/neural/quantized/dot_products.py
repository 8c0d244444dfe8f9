"""The innermost loop of int8 inference: dot products of 64 rows of weights with one or four vectors.

numba knows no instruction for products of bytes, so the loop is written in LLVM's language: with
`vpdpbusd` where the processor has it (AVX-512 VNNI: 64 products and sums an instruction), else in
plain arithmetic that every processor has. `tiles` does sixteen vectors where there are tiles.
All are exact, hence equal.
"""

from functools import partial
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural.llvm import INT64, INT_VECTOR, broadcast, byte_pointer, codegen

ROW_LANES = 64
"""Rows of weights computed together."""

COLUMN_GROUP = 4
"""Neighbouring columns that one instruction multiplies and sums."""

COLUMN_MULTIPLE = 64
"""The width of vectors in memory is a multiple of it."""

ZERO_POINT = 128
"""What is added to weights so that they are unsigned, as the instruction wants one of its factors."""

_BYTE_VECTOR = ir.VectorType(ir.IntType(8), ROW_LANES)
_SUM_VECTORS = COLUMN_GROUP  # of sums that 64 rows fill


def _has_vnni() -> bool:
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512vnni"))


HAS_VNNI = _has_vnni()
"""Whether this processor multiplies bytes."""


def _byte_products(builder: Any, sums: Any, weights: Any, activations: Any) -> Any:
    """Sums plus weights · activations by groups of four, in one instruction."""
    declared = ir.FunctionType(INT_VECTOR, [INT_VECTOR, INT_VECTOR, INT_VECTOR])
    instruction = codegen.get_or_insert_function(builder.module, declared, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(
        instruction, [sums, builder.bitcast(weights, INT_VECTOR), builder.bitcast(activations, INT_VECTOR)]
    )


def _word_products(builder: Any, sums: Any, weights: Any, activations: Any) -> Any:
    """The same in integers of 32 bits."""
    quads = []
    for offset in range(COLUMN_GROUP):
        places = ir.Constant(INT_VECTOR, list(range(offset, ROW_LANES, COLUMN_GROUP)))
        one = builder.zext(builder.shuffle_vector(weights, weights, places), INT_VECTOR)
        other = builder.sext(builder.shuffle_vector(activations, activations, places), INT_VECTOR)
        quads.append(builder.mul(one, other))
    first, second, third, fourth = quads
    return builder.add(sums, builder.add(builder.add(first, second), builder.add(third, fourth)))


def _dot_intrinsic(rows: int, multiply: Any) -> Any:
    """An intrinsic that fills [rows, 64] sums."""

    @intrinsic
    def fill(
        _typing_context: Any, weights: Any, start: Any, activations: Any, row: Any, groups: Any, sums: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = partial(byte_pointer, context, builder, signature, arguments)
            index = arguments[4].type
            width = builder.mul(arguments[4], ir.Constant(index, COLUMN_GROUP))
            weight = builder.gep(data(0), [arguments[1]])
            first = builder.gep(data(2), [builder.mul(arguments[3], width)])
            totals = [
                [
                    codegen.alloca_once_value(builder, ir.Constant(INT_VECTOR, None))
                    for _ in range(_SUM_VECTORS)
                ]
                for _ in range(rows)
            ]
            with codegen.for_range(builder, arguments[4], intp=index) as loop:
                at = builder.gep(
                    weight, [builder.mul(loop.index, ir.Constant(index, ROW_LANES * COLUMN_GROUP))]
                )
                columns = []
                for number in range(_SUM_VECTORS):
                    place = builder.gep(at, [ir.Constant(INT64, number * ROW_LANES)])
                    columns.append(builder.load(builder.bitcast(place, _BYTE_VECTOR.as_pointer()), align=1))
                offset = builder.mul(loop.index, ir.Constant(index, COLUMN_GROUP))
                for number in range(rows):
                    skipped = builder.mul(width, ir.Constant(index, number))
                    place = builder.gep(first, [builder.add(skipped, offset)])
                    four = builder.load(builder.bitcast(place, ir.IntType(32).as_pointer()), align=1)
                    repeated = builder.bitcast(broadcast(builder, four, INT_VECTOR), _BYTE_VECTOR)
                    for total, column in zip(totals[number], columns, strict=True):
                        builder.store(multiply(builder, builder.load(total), column, repeated), total)
            target = data(5)
            for number in range(rows * _SUM_VECTORS):
                place = builder.gep(target, [ir.Constant(INT64, number * ROW_LANES)])
                value = builder.load(totals[number // _SUM_VECTORS][number % _SUM_VECTORS])
                builder.store(value, builder.bitcast(place, INT_VECTOR.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(weights, start, activations, row, groups, sums), generate

    return fill


_accumulate = _byte_products if HAS_VNNI else _word_products
dot_one_row: Any = _dot_intrinsic(1, _accumulate)
dot_four_rows: Any = _dot_intrinsic(4, _accumulate)
