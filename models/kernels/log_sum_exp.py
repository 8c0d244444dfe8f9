"""Maxima and sums of exponentials in 64 lanes, with the processor's widest vectors.

Written in LLVM IR because compilers avoid the widest vectors in such loops.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from models.kernels import math
from models.kernels.math import (
    FLOAT_VECTOR,
    INT_VECTOR,
    VECTOR_WIDTH,
    broadcast,
    call_llvm,
    codegen,
    procedure,
)

ROW_LANES = 64
"""Rows of weights computed together."""

_BIAS, _FRACTION_BITS = 127, 23  # of a float32


def _constant(value: Any) -> Any:
    return ir.Constant(FLOAT_VECTOR, [float(value)] * VECTOR_WIDTH)


def _exp(builder: Any, x: Any) -> Any:
    """Generate the exponentials of sixteen numbers, by the operations of `math.exp`."""
    scaled, lowest = builder.fmul(x, _constant(math.LOG2_E)), _constant(math.LOWEST_EXPONENT)
    y = builder.select(builder.fcmp_ordered(">", scaled, lowest), scaled, lowest)
    integer = call_llvm(builder, "floor", builder.fadd(y, _constant(0.5)))
    f = builder.fsub(y, integer)
    power = _constant(math.EXP2_COEFFICIENTS[-1])
    for coefficient in (*math.EXP2_COEFFICIENTS[-2::-1], 1.0):
        power = call_llvm(builder, "fma", power, f, _constant(coefficient))
    exponent = builder.add(
        builder.fptosi(integer, INT_VECTOR), ir.Constant(INT_VECTOR, [_BIAS] * VECTOR_WIDTH)
    )
    bits = builder.shl(exponent, ir.Constant(INT_VECTOR, [_FRACTION_BITS] * VECTOR_WIDTH))
    return builder.fmul(power, builder.bitcast(bits, FLOAT_VECTOR))


def _vector_pointer(builder: Any, array: Any, *offsets: Any) -> Any:
    """Return a pointer to sixteen numbers in an array, at the sum of offsets."""
    pointer = array
    for offset in offsets:
        pointer = builder.gep(pointer, [offset])
    return builder.bitcast(pointer, FLOAT_VECTOR.as_pointer())


def _combine_lanes(
    builder: Any,
    values: Any,
    count: Any,
    lanes: Any,
    combine: Callable[[Any, Any], Any],
    finish: Callable[[Any], object] = lambda _: None,
) -> None:
    """Combine lanes [64] with values [count], 64 at a time; the lanes stay in registers.

    After each block of 64, `finish` is called with the block's number.
    """
    offsets = [ir.Constant(ir.IntType(64), first) for first in range(0, ROW_LANES, VECTOR_WIDTH)]
    # four registers of 16 lanes: LLVM promotes these stack slots
    registers = [
        codegen.alloca_once_value(builder, builder.load(_vector_pointer(builder, lanes, offset), align=4))
        for offset in offsets
    ]
    step = ir.Constant(count.type, ROW_LANES)
    with codegen.for_range(builder, builder.udiv(count, step), intp=count.type) as loop:
        start = builder.mul(loop.index, step)
        for offset, lane in zip(offsets, registers, strict=True):
            value = builder.load(_vector_pointer(builder, values, start, offset), align=4)
            builder.store(combine(builder.load(lane), value), lane)
        finish(loop.index)
    for offset, lane in zip(offsets, registers, strict=True):
        builder.store(builder.load(lane), _vector_pointer(builder, lanes, offset), align=4)


@procedure
def max_in_lanes(builder: Any, values: Any, count: Any, lanes: Any) -> None:
    """Raise each of 64 lanes to the maximum of its values.

    Args:
        builder: builder of the caller's code.
        values: [count], float32, contiguous.
        count: a multiple of 64.
        lanes: [64]; overwritten.
    """

    def higher(top: Any, value: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", value, top), value, top)

    _combine_lanes(builder, values, count, lanes, higher)


@procedure
def add_exp_in_lanes(builder: Any, values: Any, count: Any, highest: Any, lanes: Any) -> None:
    """Add exp(value - highest) to lanes [64], each value to its lane.

    Args:
        builder: builder of the caller's code.
        values: [count], float32, contiguous.
        count: a multiple of 64.
        highest: upper bound of the values.
        lanes: overwritten.
    """
    maxima = broadcast(builder, highest, FLOAT_VECTOR)

    def added(total: Any, value: Any) -> Any:
        return builder.fadd(total, _exp(builder, builder.fsub(value, maxima)))

    _combine_lanes(builder, values, count, lanes, added)


@procedure
def block_sums_in_lanes(
    builder: Any, values: Any, count: Any, highest: Any, inverse: Any, lanes: Any, sums: Any
) -> None:
    """Run `add_exp_in_lanes`, and sum exp((value - highest) inverse) over each block of 64.

    Args:
        builder: builder of the caller's code.
        values: [count], float32, contiguous.
        count: a multiple of 64.
        highest: upper bound of the values.
        inverse: inverse of a temperature.
        lanes: overwritten.
        sums: written, [count / 64], float32, contiguous.
    """
    maxima, factor = (broadcast(builder, number, FLOAT_VECTOR) for number in (highest, inverse))

    # one pass, so each value is read from memory once for both sums
    def accumulate(weight: Callable[[Any, Any], Any]) -> None:
        weights = []

        def added(total: Any, value: Any) -> Any:
            below = builder.fsub(value, maxima)
            exponential = _exp(builder, below)
            weights.append(weight(below, exponential))
            return builder.fadd(total, exponential)

        def write_sum(block: Any) -> None:
            builder.store(_sum_vectors(builder, weights), builder.gep(sums, [block]))

        _combine_lanes(builder, values, count, lanes, added, write_sum)

    is_one = builder.fcmp_ordered("==", inverse, ir.Constant(ir.FloatType(), 1.0))
    with builder.if_else(is_one) as (then, otherwise):
        with then:
            accumulate(lambda _, exponential: exponential)
        with otherwise:
            accumulate(lambda below, _: _exp(builder, builder.fmul(below, factor)))


def _sum_vectors(builder: Any, vectors: list[Any]) -> Any:
    """Return the sum of 64 numbers, added by halves in order of `math.fold_lanes`."""
    first, second, third, fourth = vectors
    total = builder.fadd(builder.fadd(first, third), builder.fadd(second, fourth))
    for half in (8, 4, 2, 1):
        swapped = [(lane + half) % VECTOR_WIDTH for lane in range(VECTOR_WIDTH)]
        total = builder.fadd(total, builder.shuffle_vector(total, total, ir.Constant(INT_VECTOR, swapped)))
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
