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

from models.neural.llvm import INTEGERS, WORD, bytes_of, codegen, spread

LANES = 64
"""Rows of weights computed together."""

GROUP = 4
"""Neighbouring columns that one instruction multiplies and sums."""

COLUMNS = 64
"""The width of vectors in memory is a multiple of it."""

ZERO = 128
"""What is added to weights so that they are unsigned, as the instruction wants one of its factors."""

_BYTES = ir.VectorType(ir.IntType(8), LANES)
_VECTORS = GROUP  # of sums that 64 rows fill


def _has_vnni() -> bool:
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512vnni"))


VNNI = _has_vnni()
"""Whether this processor multiplies bytes."""


def _byte_products(builder: Any, sums: Any, weights: Any, activations: Any) -> Any:
    """Sums plus weights · activations by groups of four, in one instruction."""
    declared = ir.FunctionType(INTEGERS, [INTEGERS, INTEGERS, INTEGERS])
    instruction = codegen.get_or_insert_function(builder.module, declared, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(
        instruction, [sums, builder.bitcast(weights, INTEGERS), builder.bitcast(activations, INTEGERS)]
    )


def _word_products(builder: Any, sums: Any, weights: Any, activations: Any) -> Any:
    """The same in integers of 32 bits."""
    quads = []
    for offset in range(GROUP):
        places = ir.Constant(INTEGERS, list(range(offset, LANES, GROUP)))
        one = builder.zext(builder.shuffle_vector(weights, weights, places), INTEGERS)
        other = builder.sext(builder.shuffle_vector(activations, activations, places), INTEGERS)
        quads.append(builder.mul(one, other))
    first, second, third, fourth = quads
    return builder.add(sums, builder.add(builder.add(first, second), builder.add(third, fourth)))


def _tile(rows: int, multiply: Any) -> Any:
    """An intrinsic that fills [rows, 64] sums."""

    @intrinsic
    def fill(
        _typing_context: Any, weights: Any, start: Any, activations: Any, row: Any, groups: Any, sums: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = partial(bytes_of, context, builder, signature, arguments)
            index = arguments[4].type
            width = builder.mul(arguments[4], ir.Constant(index, GROUP))
            weight = builder.gep(data(0), [arguments[1]])
            first = builder.gep(data(2), [builder.mul(arguments[3], width)])
            totals = [
                [codegen.alloca_once_value(builder, ir.Constant(INTEGERS, None)) for _ in range(_VECTORS)]
                for _ in range(rows)
            ]
            with codegen.for_range(builder, arguments[4], intp=index) as loop:
                at = builder.gep(weight, [builder.mul(loop.index, ir.Constant(index, LANES * GROUP))])
                columns = []
                for number in range(_VECTORS):
                    place = builder.gep(at, [ir.Constant(WORD, number * LANES)])
                    columns.append(builder.load(builder.bitcast(place, _BYTES.as_pointer()), align=1))
                offset = builder.mul(loop.index, ir.Constant(index, GROUP))
                for number in range(rows):
                    skipped = builder.mul(width, ir.Constant(index, number))
                    place = builder.gep(first, [builder.add(skipped, offset)])
                    four = builder.load(builder.bitcast(place, ir.IntType(32).as_pointer()), align=1)
                    repeated = builder.bitcast(spread(builder, four, INTEGERS), _BYTES)
                    for total, column in zip(totals[number], columns, strict=True):
                        builder.store(multiply(builder, builder.load(total), column, repeated), total)
            target = data(5)
            for number in range(rows * _VECTORS):
                place = builder.gep(target, [ir.Constant(WORD, number * LANES)])
                value = builder.load(totals[number // _VECTORS][number % _VECTORS])
                builder.store(value, builder.bitcast(place, INTEGERS.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(weights, start, activations, row, groups, sums), generate

    return fill


_multiply = _byte_products if VNNI else _word_products
one_row: Any = _tile(1, _multiply)
four_rows: Any = _tile(4, _multiply)
