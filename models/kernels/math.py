"""Branch-free functions in single precision, and LLVM helpers.

Loops over exp, log, sigmoid, tanh and the fused multiply-add are vectorised. Processors round every operation here
equally in scalar and vector form, and the compiler contracts or reorders none, so a result depends on
the argument only.

numba passes the context, the builder, the signature and the arguments to the `generate` function of
an intrinsic.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic as _intrinsic

import models.kernels.target  # noqa: F401 - chooses the processor level before numba compiles anything

VECTOR_WIDTH = 16
"""Number of 32-bit lanes in the widest vectors."""

FLOAT_VECTOR = ir.VectorType(ir.FloatType(), VECTOR_WIDTH)
INT_VECTOR = ir.VectorType(ir.IntType(32), VECTOR_WIDTH)
BYTE, INT64 = ir.IntType(8), ir.IntType(64)
BYTE_POINTER = BYTE.as_pointer()

intrinsic: Callable[[Callable[..., Any]], Any] = _intrinsic
"""Make a function for kernels from one that generates its code."""

codegen: Any = _cgutils
_Pointer: Any = types.CPointer

LOG2_E = np.float32(1.4426950408889634)
LOWEST_EXPONENT = np.float32(-126.0)
_HALF = np.float32(0.5)
_ONE = np.float32(1)
_TWO = np.float32(2)
_SATURATION = np.float32(40)  # sigmoid and tanh equal their limits beyond it
# 2^f for f in [-1/2, 1/2], its Taylor series; the relative error is below 3e-7
_C1, _C2, _C3 = np.float32(0.6931471806), np.float32(0.2402265070), np.float32(0.0555041087)
_C4, _C5, _C6 = np.float32(0.0096181291), np.float32(0.0013333558), np.float32(0.0001540353)
# log m = 2 (s + s³/3 + s⁵/5 + …) with s = (m − 1) / (m + 1)
_L1, _L2, _L3, _L4 = np.float32(2 / 3), np.float32(2 / 5), np.float32(2 / 7), np.float32(2 / 9)
_LOG_2, _BITS_OF_SQRT_HALF = np.float32(0.6931471806), np.int32(0x3F3504F3)
EXP2_COEFFICIENTS = (_C1, _C2, _C3, _C4, _C5, _C6)
"""Coefficients of the series after the constant 1."""


def procedure(generate: Callable[..., None]) -> Any:
    """Make a function without a result for kernels from one that generates its code.

    That one takes the builder and the arguments, with pointers to first elements for arrays.
    """

    def declare(_typing_context: Any, *kinds: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            generate(builder, *map(partial(first_element, context, builder), signature.args, arguments))
            return context.get_dummy_value()

        return types.void(*kinds), build

    return intrinsic(wraps(generate)(declare))


def first_element(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return a pointer to an array's first element; other values as they are."""
    return context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value


@intrinsic
def pointer_at(_typing_context: Any, array: Any, index: Any) -> Any:
    """Return a pointer to an array element, for intrinsics to read or write from there on.

    numba would count a slice's references, with two atomic operations. It does not count this
    pointer, so the array must be an argument of the function or its caller.

    Args:
        array: contiguous, of one dimension.
        index: index of the element.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(first_element(context, builder, signature.args[0], arguments[0]), [arguments[1]])

    return _Pointer(array.dtype)(array, index), generate


def broadcast(builder: Any, value: Any, vector_type: Any) -> Any:
    """Return a `FLOAT_VECTOR` or `INT_VECTOR` with one number in every lane."""
    empty = ir.Constant(vector_type, ir.Undefined)
    inserted = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(inserted, empty, ir.Constant(INT_VECTOR, None))


def call_llvm(builder: Any, function: str, *arguments: Any) -> Any:
    """Call an LLVM function, such as `fma`, on vectors of sixteen floats."""
    declared = ir.FunctionType(FLOAT_VECTOR, [FLOAT_VECTOR] * len(arguments))
    named = codegen.get_or_insert_function(builder.module, declared, f"llvm.{function}.v{VECTOR_WIDTH}f32")
    return builder.call(named, arguments)


@intrinsic
def fma(_typing_context: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ARG001
    """Return a b + c, rounded once on every processor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@numba.njit(nogil=True, inline="always")
def greater(x: Any, y: Any) -> Any:
    """Return the greater number by a selection, which vectorises, unlike Python's `max`."""
    return x if x > y else y  # noqa: FURB136 - `max` compiles differently


@numba.njit(nogil=True, inline="always")
def exp(x: Any) -> Any:
    """Return e^x in single precision for x ≤ 88; the smallest normal number for any x below -87."""
    y = greater(x * LOG2_E, LOWEST_EXPONENT)
    integer = np.floor(y + _HALF)
    f = y - integer
    p = fma(fma(fma(fma(fma(fma(_C6, f, _C5), f, _C4), f, _C3), f, _C2), f, _C1), f, _ONE)
    exponent = np.uint32(np.int32(integer) + np.int32(127))
    return p * np.uint32(exponent << np.uint32(23)).view(np.float32)


@numba.njit(nogil=True, inline="always")
def log(x: Any) -> Any:
    """Return ln x of a positive normal number in single precision; relative error 2e-7."""
    bits = np.float32(x).view(np.int32)
    exponent = (bits - _BITS_OF_SQRT_HALF) >> np.int32(23)
    # in [√½, √2), with x = m · 2^exponent
    m = np.int32(bits - (exponent << np.int32(23))).view(np.float32)
    s = (m - _ONE) / (m + _ONE)
    square = s * s
    series = fma(fma(fma(_L4, square, _L3), square, _L2), square, _L1)
    return fma(np.float32(exponent), _LOG_2, fma(s * square, series, s + s))


@numba.njit(nogil=True, inline="always")
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e^-x) in single precision."""
    return _ONE / (_ONE + exp(-greater(x, -_SATURATION)))


@numba.njit(nogil=True, inline="always")
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent in single precision; the absolute error is below 2e-7."""
    return _ONE - _TWO / (_ONE + exp(_TWO * -greater(-x, -_SATURATION)))


@numba.njit(nogil=True)
def copy_values(values: Any, target: Any) -> None:
    """Copy values [N] to the beginning of an array."""
    # numba takes three seconds to compile a slice assignment, mostly for its error's text
    for index in range(len(values)):
        target[index] = values[index]


@numba.njit(nogil=True)
def fold_lanes(lanes: Any) -> Any:
    """Sum 64 numbers by halves, equally on every machine; the numbers are overwritten."""
    for lane in range(32):
        lanes[lane] += lanes[lane + 32]
    for lane in range(16):
        lanes[lane] += lanes[lane + 16]
    for lane in range(8):
        lanes[lane] += lanes[lane + 8]
    for lane in range(4):
        lanes[lane] += lanes[lane + 4]
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


@numba.njit(nogil=True)
def sum_lanes(values: Any) -> Any:
    """Sum a multiple of 64 float32 values, in 64 lanes and then by halves, for any vector width."""
    blocks = values.reshape(-1, 64)
    lanes = np.zeros(64, np.float32)
    for block in range(len(blocks)):
        for lane in range(64):
            lanes[lane] += blocks[block, lane]
    return fold_lanes(lanes)
