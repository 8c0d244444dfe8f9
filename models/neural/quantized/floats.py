"""From sums of products of integers to the numbers that they stand for, sixteen at a time.

The compiler finds vectors half as wide in loops over so few numbers, and takes three times as long.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural.llvm import FLOATS, INTEGERS, WIDTH, WORD, bytes_of, call, codegen, spread
from models.neural.quantized.dot_products import LANES, ZERO

_FOUR = 4  # bytes of a number
_VECTORS = range(LANES // WIDTH)


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
        sums: int32 [N, 64]; weights had `ZERO` added to them.
        rows: N.
        totals: of each vector's integers [N], int32.
        scales: of the vectors [N], float32.
        factors: of the weights [64], float32.
        bias: [64], float32.
        products: where those of the first vector are written, float32.
        stride: floats from one vector's products to the next's.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = partial(bytes_of, context, builder, signature, arguments)

        def scaled(index: Any, factor: int) -> Any:
            return builder.mul(index, ir.Constant(WORD, factor))

        def vectors(place: Any, kind: Any) -> list[Any]:
            places = (builder.gep(place, [ir.Constant(WORD, n * WIDTH * _FOUR)]) for n in _VECTORS)
            return [builder.load(builder.bitcast(there, kind.as_pointer()), align=4) for there in places]

        def number(place: Any, index: Any, kind: Any) -> Any:
            there = builder.gep(place, [scaled(index, _FOUR)])
            return builder.load(builder.bitcast(there, kind.as_pointer()), align=4)

        summed, totalled, of_vectors, of_weights, added, target = (start(n) for n in (0, 2, 3, 4, 5, 6))
        columns, biases = vectors(of_weights, FLOATS), vectors(added, FLOATS)
        with codegen.for_range(builder, arguments[1], intp=arguments[1].type) as loop:
            total = number(totalled, loop.index, ir.IntType(32))
            less = spread(builder, builder.mul(total, ir.Constant(ir.IntType(32), ZERO)), INTEGERS)
            scale = spread(builder, number(of_vectors, loop.index, ir.FloatType()), FLOATS)
            row = vectors(builder.gep(summed, [scaled(loop.index, LANES * _FOUR)]), INTEGERS)
            written = builder.gep(target, [scaled(builder.mul(loop.index, arguments[7]), _FOUR)])
            for n in _VECTORS:
                whole = builder.sitofp(builder.sub(row[n], less), FLOATS)
                product = call(builder, "fma", whole, builder.fmul(scale, columns[n]), biases[n])
                there = builder.gep(written, [ir.Constant(WORD, n * WIDTH * _FOUR)])
                builder.store(product, builder.bitcast(there, FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(sums, rows, totals, scales, factors, bias, products, stride), generate


to_floats: Any = _to_floats  # called without the typing context
