"""Branch-free functions in single precision: exp, log, sigmoid, tanh, fused multiply-add.

Loops over them are vectorised. Processors round every operation here equally in scalar and vector
form, and the compiler contracts or reorders none, so a result depends on the argument only.
"""

from typing import Any

import numba
import numpy as np
from numba import types

import models.kernels.target  # noqa: F401 - chooses the processor level before numba compiles anything
from models.kernels.llvm import intrinsic

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
