"""Inner products of many vectors with many: each is the same bits, whatever else is computed beside it.

The numbers of two vectors are multiplied and summed in sixteen lanes, and these folded by halves. BLAS sums
in an order that depends on how many vectors there are, and the compiler keeps few sums in registers: so the
innermost loop is written in LLVM's language.
"""

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from models.arrays import FloatArray

VECTOR_LANES = 16
"""What the vectors' width must be a multiple of."""

_TILE_SIDE = 4  # queries and keys that meet at once: their products' sums fill the registers
_KEYS_PER_BLOCK = 32  # keys that stay near while all queries meet them

_codegen: Any = _cgutils
_LANE_VECTOR = ir.VectorType(ir.FloatType(), VECTOR_LANES)
_FMA_TYPE = ir.FunctionType(_LANE_VECTOR, [_LANE_VECTOR] * 3)
_ROWS = types.Array(types.float32, 2, "C", readonly=True)


def _shuffle(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    index = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
    return builder.shuffle_vector(one, other, index)


def _fold_lanes(builder: Any, sums: list[Any]) -> Any:
    """The totals of up to sixteen vectors of lanes, side by side in one vector."""
    width = VECTOR_LANES  # of what a sum takes in a vector, so far
    while width > 1:
        halves = [
            [place for place in range(2 * VECTOR_LANES) if (place % width < width // 2) == lower]
            for lower in (True, False)
        ]
        pairs = zip(sums[::2], sums[1::2], strict=True) if len(sums) > 1 else [(sums[0], sums[0])]
        sums = [
            builder.fadd(*(_shuffle(builder, one, other, half) for half in halves)) for one, other in pairs
        ]
        width //= 2
    return sums[0]


def _tile_intrinsic(rows: int, columns: int) -> Any:
    """An intrinsic that writes the products of some queries with some keys into `out`."""

    @intrinsic
    def fill(
        _typing_context: Any, queries: Any, query: Any, keys: Any, key: Any, out: Any, column: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            index = arguments[1].type
            fused = _codegen.get_or_insert_function(builder.module, _FMA_TYPE, "llvm.fma.v16f32")

            def constant(value: int) -> Any:
                return ir.Constant(index, value)

            def vectors(position: int, count: int) -> list[Any]:
                array = context.make_array(signature.args[position])(context, builder, arguments[position])
                width = builder.extract_value(array.shape, 1)
                numbers = [builder.add(arguments[position + 1], constant(i)) for i in range(count)]
                return [builder.gep(array.data, [builder.mul(number, width)]) for number in numbers]

            def lanes(vector: Any, offset: Any) -> Any:
                place = builder.bitcast(builder.gep(vector, [offset]), _LANE_VECTOR.as_pointer())
                return builder.load(place, align=4)

            some, others = vectors(0, rows), vectors(2, columns)
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            steps = builder.udiv(builder.extract_value(array.shape, 1), constant(VECTOR_LANES))
            sums = [
                _codegen.alloca_once_value(builder, ir.Constant(_LANE_VECTOR, None))
                for _ in range(rows * columns)
            ]
            with _codegen.for_range(builder, steps, intp=index) as loop:
                offset = builder.mul(loop.index, constant(VECTOR_LANES))
                met = [lanes(other, offset) for other in others]
                for row, one in enumerate(some):
                    here = lanes(one, offset)
                    for there, total in zip(met, sums[row * columns : (row + 1) * columns], strict=True):
                        builder.store(builder.call(fused, [here, there, builder.load(total)]), total)
            totals = _fold_lanes(builder, [builder.load(total) for total in sums])
            # the first product's place in `out` is told as its row, the query's, and its column
            target = context.make_array(signature.args[4])(context, builder, arguments[4])
            stride = builder.extract_value(target.shape, 1)
            for row in range(rows):
                begin = builder.mul(builder.add(arguments[1], constant(row)), stride)
                place = builder.gep(target.data, [builder.add(begin, arguments[5])])
                chosen = _shuffle(builder, totals, totals, list(range(row * columns, (row + 1) * columns)))
                builder.store(chosen, builder.bitcast(place, chosen.type.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(queries, query, keys, key, out, column), generate

    return fill


_tile_1x1: Any = _tile_intrinsic(1, 1)
_tile_1x4: Any = _tile_intrinsic(1, _TILE_SIDE)
_tile_4x4: Any = _tile_intrinsic(_TILE_SIDE, _TILE_SIDE)


@numba.njit([types.void(_ROWS, _ROWS, types.int64, types.float32[:, ::1])], nogil=True, cache=True)
def inner_products(queries: FloatArray, keys: FloatArray, column: int, out: FloatArray) -> None:
    """Inner products of queries [Q, W] and keys [N, W], into `out[:, column : column + N]`.

    Where four do not divide what there is, the last four are computed from the end: some of them twice.

    Args:
        queries: W is a multiple of `LANES`.
        keys: of the same width.
        column: where in `out` the first key's products are.
        out: [Q, at least column + N]; written.
    """
    rows, count = len(queries), len(keys)
    for begin in range(0, count, _KEYS_PER_BLOCK):
        end = min(begin + _KEYS_PER_BLOCK, count)
        if count < _TILE_SIDE:
            for row in range(rows):
                for key in range(count):
                    _tile_1x1(queries, row, keys, key, out, column + key)
        elif rows < _TILE_SIDE:
            for row in range(rows):
                for first in range(begin, end, _TILE_SIDE):
                    key = min(first, count - _TILE_SIDE)
                    _tile_1x4(queries, row, keys, key, out, column + key)
        else:
            for number in range(0, rows, _TILE_SIDE):
                row = min(number, rows - _TILE_SIDE)
                for first in range(begin, end, _TILE_SIDE):
                    key = min(first, count - _TILE_SIDE)
                    _tile_4x4(queries, row, keys, key, out, column + key)
