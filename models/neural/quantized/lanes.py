"""Exponentials of 64 numbers at once, in vectors as wide as the machine has: compilers shy away from the widest."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.neural import elementary
from models.neural.llvm import FLOATS, INTEGERS, WIDTH, call, codegen, data_of, spread
from models.neural.quantized.dot_products import LANES

_BIAS, _FRACTION_BITS = 127, 23  # of a float32


def _all(value: Any) -> Any:
    return ir.Constant(FLOATS, [float(value)] * WIDTH)


def _exponential(builder: Any, x: Any) -> Any:
    """What `elementary.exp` computes, operation by operation, of sixteen numbers."""
    scaled, lowest = builder.fmul(x, _all(elementary.LOG2_E)), _all(elementary.LOWEST_EXPONENT)
    y = builder.select(builder.fcmp_ordered(">", scaled, lowest), scaled, lowest)
    whole = call(builder, "floor", builder.fadd(y, _all(0.5)))
    f = builder.fsub(y, whole)
    power = _all(elementary.POWERS_OF_2[-1])
    for coefficient in (*elementary.POWERS_OF_2[-2::-1], 1.0):
        power = call(builder, "fma", power, f, _all(coefficient))
    exponent = builder.add(builder.fptosi(whole, INTEGERS), ir.Constant(INTEGERS, [_BIAS] * WIDTH))
    bits = builder.shl(exponent, ir.Constant(INTEGERS, [_FRACTION_BITS] * WIDTH))
    return builder.fmul(power, builder.bitcast(bits, FLOATS))


def _vector(builder: Any, array: Any, *offsets: Any) -> Any:
    """Where sixteen numbers of an array stand."""
    place = array
    for offset in offsets:
        place = builder.gep(place, [offset])
    return builder.bitcast(place, FLOATS.as_pointer())


def _in_lanes(builder: Any, values: Any, count: Any, lanes: Any, combine: Callable[[Any, Any], Any]) -> None:
    """Combine lanes [64] with values, 64 at a time; the lanes are in registers meanwhile."""
    offsets = [ir.Constant(ir.IntType(64), first) for first in range(0, LANES, WIDTH)]
    held = [
        codegen.alloca_once_value(builder, builder.load(_vector(builder, lanes, offset), align=4))
        for offset in offsets
    ]
    step = ir.Constant(count.type, LANES)
    with codegen.for_range(builder, builder.udiv(count, step), intp=count.type) as loop:
        start = builder.mul(loop.index, step)
        for offset, lane in zip(offsets, held, strict=True):
            value = builder.load(_vector(builder, values, start, offset), align=4)
            builder.store(combine(builder.load(lane), value), lane)
    for offset, lane in zip(offsets, held, strict=True):
        builder.store(builder.load(lane), _vector(builder, lanes, offset), align=4)


@intrinsic
def _highest_in_lanes(  # noqa: D417 - numba hands over the typing context
    typing_context: Any,  # noqa: ARG001
    values: Any,
    count: Any,
    lanes: Any,
) -> Any:
    """Raise lanes [64] to the highest of values that stand in them.

    Args:
        values: [count], float32, contiguous.
        count: a multiple of 64.
        lanes: written over.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def higher(top: Any, value: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", value, top), value, top)

        source, target = (data_of(context, builder, signature, arguments, position) for position in (0, 2))
        _in_lanes(builder, source, arguments[1], target, higher)
        return context.get_dummy_value()

    return types.void(values, count, lanes), generate


@intrinsic
def _add_exponentials(  # noqa: D417
    typing_context: Any,  # noqa: ARG001
    values: Any,
    count: Any,
    highest: Any,
    lanes: Any,
) -> Any:
    """Add to lanes [64] the exponentials of values that stand in them, less the highest.

    Args:
        values: [count], float32, contiguous.
        count: a multiple of 64.
        highest: no value is higher.
        lanes: written over.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        less = spread(builder, arguments[2], FLOATS)

        def added(total: Any, value: Any) -> Any:
            return builder.fadd(total, _exponential(builder, builder.fsub(value, less)))

        source, target = (data_of(context, builder, signature, arguments, position) for position in (0, 3))
        _in_lanes(builder, source, arguments[1], target, added)
        return context.get_dummy_value()

    return types.void(values, count, highest, lanes), generate


highest_in_lanes: Any = _highest_in_lanes  # called without the typing context
add_exponentials_in_lanes: Any = _add_exponentials
