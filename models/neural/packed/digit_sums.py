"""From sums of products of digits to the numbers that they stand for, written for vectors of sixteen.

The compiler does not find these vectors in loops over so few numbers, and takes ten times as long.
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
from models.neural.packed.tiles import DIGITS, ROWS

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
