"""The innermost loop of products in single precision: a few vectors with 64 rows of weights, in the widest registers.

Weights lie as they are read, so that each comes from the cache once for all the vectors; the sums stay in
registers. Libraries that are handed a matrix as it is copy it in pieces at every call, and some use half of
what processors of another make can do. A sum is made in the order of the places, with one rounding a place:
what a vector comes to does not depend on the vectors beside it.
"""

from functools import partial
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural.llvm import (
    FLOAT_VECTOR,
    INT64,
    VECTOR_WIDTH,
    broadcast,
    byte_pointer,
    call_llvm,
    codegen,
    emit_prefetch,
)

COLUMNS = 64
"""Rows of weights multiplied together, columns of what comes out: four registers."""

HAS_AVX512 = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
"""Whether this processor has registers of sixteen numbers, and enough of them."""

_REGISTER = 4 * VECTOR_WIDTH  # bytes
_REGISTERS = COLUMNS // VECTOR_WIDTH
_LINE_BYTES = 64  # bytes of a cache line

PARTS_AHEAD = COLUMNS * 4 // _LINE_BYTES
"""A kernel has a cache line a place fetched ahead: so many of them what another 64 rows of weights take."""


def _products_of(count: int) -> Any:
    """An intrinsic that multiplies so many vectors."""

    @intrinsic
    def fill(
        _typing_context: Any,
        weights: Any,
        start: Any,
        bias: Any,
        vectors: Any,
        width: Any,
        products: Any,
        stride: Any,
        ahead: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = partial(byte_pointer, context, builder, signature, arguments)

            def floats(number: Any) -> Any:
                return builder.mul(number, ir.Constant(INT64, 4))

            def register(place: Any, number: int) -> Any:
                there = builder.gep(place, [ir.Constant(INT64, number * _REGISTER)])
                return builder.bitcast(there, FLOAT_VECTOR.as_pointer())

            def line(place: Any, length: Any, number: int) -> Any:
                return builder.gep(place, [builder.mul(floats(length), ir.Constant(INT64, number))])

            first, added = builder.gep(data(0), [floats(arguments[1])]), data(2)
            later = builder.gep(data(0), [floats(arguments[7])])
            inputs = [line(data(3), arguments[4], number) for number in range(count)]
            biases = [builder.load(register(added, part), align=4) for part in range(_REGISTERS)]
            sums = [[codegen.alloca_once_value(builder, bias) for bias in biases] for _ in range(count)]
            with codegen.for_range(builder, arguments[4], intp=arguments[4].type) as loop:
                here = builder.gep(first, [floats(builder.mul(loop.index, ir.Constant(INT64, COLUMNS)))])
                emit_prefetch(
                    builder, builder.gep(later, [builder.mul(loop.index, ir.Constant(INT64, _LINE_BYTES))])
                )
                columns = [builder.load(register(here, part), align=4) for part in range(_REGISTERS)]
                for number in range(count):
                    place = builder.gep(inputs[number], [floats(loop.index)])
                    value = builder.load(builder.bitcast(place, ir.FloatType().as_pointer()), align=4)
                    repeated = broadcast(builder, value, FLOAT_VECTOR)
                    for total, column in zip(sums[number], columns, strict=True):
                        builder.store(call_llvm(builder, "fma", column, repeated, builder.load(total)), total)
            for number in range(count):
                target = line(data(5), arguments[6], number)
                for part in range(_REGISTERS):
                    builder.store(builder.load(sums[number][part]), register(target, part), align=4)
            return context.get_dummy_value()

        return types.void(weights, start, bias, vectors, width, products, stride, ahead), generate

    return fill


one_vector: Any = _products_of(1)
two_vectors: Any = _products_of(2)
four_vectors: Any = _products_of(4)
six_vectors: Any = _products_of(6)
"""Write [6, 64] products of 64 rows of weights [width, 64] with 6 vectors, and a bias.

Args:
    weights: float32.
    start: where the rows lie in them.
    bias: of the rows, float32.
    vectors: the first number of the first; each next one begins `width` numbers further.
    width: of the vectors.
    products: where the first vector's are written.
    stride: numbers from one vector's to the next one's.
    ahead: where in the weights those are that are read next; a line a place is brought nearer meanwhile.
"""
