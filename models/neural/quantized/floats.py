"""From sums of products of integers to the numbers that they stand for, sixteen at a time.

The compiler finds vectors half as wide in loops over so few numbers, and takes three times as long.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural.llvm import (
    FLOAT_VECTOR,
    INT64,
    INT_VECTOR,
    VECTOR_WIDTH,
    broadcast,
    byte_pointer,
    call_llvm,
    codegen,
)
from models.neural.quantized.dot_products import ROW_LANES, ZERO_POINT

_FLOAT_BYTES = 4  # bytes of a number
_VECTOR_RANGE = range(ROW_LANES // VECTOR_WIDTH)


@intrinsic
def _to_floats(
    _typing_context: Any,
    sums: Any,
    rows: Any,
    totals: Any,
    scales: Any,
    factors: Any,
    bias: Any,
    products: Any,
    stride: Any,
) -> Any:
    """Write what sums of 64 rows of weights with some vectors stand for, bias included.

    Args:
        sums: int32 [N, 64]; weights had `ZERO_POINT` added to them.
        rows: N.
        totals: of each vector's integers [N], int32.
        scales: of the vectors [N], float32.
        factors: of the weights [64], float32.
        bias: [64], float32.
        products: where those of the first vector are written, float32.
        stride: floats from one vector's products to the next's.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = partial(byte_pointer, context, builder, signature, arguments)

        def scaled(index: Any, factor: int) -> Any:
            return builder.mul(index, ir.Constant(INT64, factor))

        def vectors(place: Any, kind: Any) -> list[Any]:
            places = (
                builder.gep(place, [ir.Constant(INT64, n * VECTOR_WIDTH * _FLOAT_BYTES)])
                for n in _VECTOR_RANGE
            )
            return [builder.load(builder.bitcast(there, kind.as_pointer()), align=4) for there in places]

        def number(place: Any, index: Any, kind: Any) -> Any:
            there = builder.gep(place, [scaled(index, _FLOAT_BYTES)])
            return builder.load(builder.bitcast(there, kind.as_pointer()), align=4)

        summed, totalled, of_vectors, of_weights, added, target = (start(n) for n in (0, 2, 3, 4, 5, 6))
        columns, biases = vectors(of_weights, FLOAT_VECTOR), vectors(added, FLOAT_VECTOR)
        with codegen.for_range(builder, arguments[1], intp=arguments[1].type) as loop:
            total = number(totalled, loop.index, ir.IntType(32))
            less = broadcast(builder, builder.mul(total, ir.Constant(ir.IntType(32), ZERO_POINT)), INT_VECTOR)
            scale = broadcast(builder, number(of_vectors, loop.index, ir.FloatType()), FLOAT_VECTOR)
            row = vectors(builder.gep(summed, [scaled(loop.index, ROW_LANES * _FLOAT_BYTES)]), INT_VECTOR)
            written = builder.gep(target, [scaled(builder.mul(loop.index, arguments[7]), _FLOAT_BYTES)])
            for n in _VECTOR_RANGE:
                whole = builder.sitofp(builder.sub(row[n], less), FLOAT_VECTOR)
                product = call_llvm(builder, "fma", whole, builder.fmul(scale, columns[n]), biases[n])
                there = builder.gep(written, [ir.Constant(INT64, n * VECTOR_WIDTH * _FLOAT_BYTES)])
                builder.store(product, builder.bitcast(there, FLOAT_VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(sums, rows, totals, scales, factors, bias, products, stride), generate


dequantise_sums: Any = _to_floats  # called without the typing context
