"""From sums of products of digits to the numbers that they stand for, written for vectors of sixteen.

The compiler does not find these vectors in loops over so few numbers, and takes ten times as long.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from models.neural.tiled.tiles import DIGITS, ROWS

_codegen: Any = _cgutils
_LANES = 16
_BYTES = 4 * _LANES
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), _LANES)
_WORD = ir.IntType(64)


def _spread(builder: Any, value: Any) -> Any:
    """A number in all lanes."""
    empty = ir.Constant(_FLOATS, ir.Undefined)
    one = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
    return builder.shuffle_vector(one, empty, places)


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """The sums a b + c, rounded once."""
    declared = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    instruction = _codegen.get_or_insert_function(builder.module, declared, f"llvm.fma.v{_LANES}f32")
    return builder.call(instruction, [a, b, c])


@intrinsic
def _to_floats(  # noqa: D417 - numba hands over the typing context
    typing_context: Any,
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
        def start(position: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            return builder.bitcast(array.data, ir.IntType(8).as_pointer())

        def load(place: Any, offset: int, kind: Any) -> Any:
            there = builder.gep(place, [ir.Constant(_WORD, offset)])
            return builder.load(builder.bitcast(there, kind.as_pointer()), align=4)

        summed, of_rows, of_columns, added, target = (start(number) for number in (0, 2, 3, 4, 5))
        weights = [ir.Constant(_FLOATS, [2.0 ** (-8 * level)] * _LANES) for level in range(DIGITS)]
        parts = range(2)
        columns = [load(of_columns, part * _BYTES, _FLOATS) for part in parts]
        biases = [load(added, part * _BYTES, _FLOATS) for part in parts]
        with _codegen.for_range(builder, arguments[1], intp=arguments[1].type) as loop:
            row = builder.gep(summed, [builder.mul(loop.index, ir.Constant(_WORD, _BYTES))])
            place = builder.gep(of_rows, [builder.mul(loop.index, ir.Constant(_WORD, 4))])
            scale = _spread(builder, builder.load(builder.bitcast(place, ir.FloatType().as_pointer())))
            skipped = builder.mul(builder.mul(loop.index, arguments[6]), ir.Constant(_WORD, 4))
            written = builder.gep(target, [skipped])
            for part in parts:
                levels = [
                    builder.sitofp(load(row, (part * DIGITS + level) * ROWS * _BYTES, _INTEGERS), _FLOATS)
                    for level in range(DIGITS)
                ]
                whole = _fused(builder, weights[1], levels[1], levels[0])
                whole = _fused(builder, weights[2], levels[2], whole)
                product = _fused(builder, whole, builder.fmul(scale, columns[part]), biases[part])
                there = builder.gep(written, [ir.Constant(_WORD, part * _BYTES)])
                builder.store(product, builder.bitcast(there, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    del typing_context
    return types.void(sums, rows, scales, factors, bias, products, stride), generate


to_floats: Any = _to_floats  # called without the typing context
