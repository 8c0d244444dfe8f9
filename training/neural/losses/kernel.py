"""Softmax, loss and gradient of rows of logits in one pass over them, in place.

torch takes several passes over fresh memory for the same; beside matrix products in bfloat16 they
would cost as much as the products.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_LOG2_E = np.float32(1.4426950408889634)
_LOWEST_EXPONENT = np.float32(-126.0)
_HALF = np.float32(0.5)
_LOWEST_KEY = np.int32(-(2**31))
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)
# 2^f for f in [-1/2, 1/2], its Taylor series; the relative error is below 3e-7
_C1, _C2, _C3 = np.float32(0.6931471806), np.float32(0.2402265070), np.float32(0.0555041087)
_C4, _C5, _C6 = np.float32(0.0096181291), np.float32(0.0013333558), np.float32(0.0001540353)
_ONE = np.float32(1)


@intrinsic
def _float_of_bits(typing_context: Any, bits: Any) -> Any:  # noqa: ARG001
    """The float32 that 32 bits stand for."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of_float(typing_context: Any, value: Any) -> Any:  # noqa: ARG001
    """The 32 bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


float_of_bits: Any = _float_of_bits  # called without the typing context
bits_of_float: Any = _bits_of_float


@numba.njit(nogil=True, inline="always")
def exp(x: Any) -> Any:
    """e^x in single precision for x ≤ 88, without a branch, so that a loop over it is vectorised."""
    y = max(x * _LOG2_E, _LOWEST_EXPONENT)
    whole = np.floor(y + _HALF)
    f = y - whole
    p = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return p * float_of_bits(np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23))


@numba.njit(nogil=True, inline="always")
def from_bfloat16(bits: Any) -> Any:
    """A bfloat16, given as 16 bits, as float32."""
    return float_of_bits(np.uint32(bits) << np.uint32(16))


@numba.njit(nogil=True, inline="always")
def to_bfloat16(value: Any) -> Any:
    """The 16 bits of the nearest bfloat16, the even one of two."""
    bits = bits_of_float(value)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@numba.njit(nogil=True, inline="always")
def _key(value: Any) -> Any:
    """A float32 as an integer of the same order: LLVM vectorises the maximum of integers, not that of floats."""
    bits = np.int32(bits_of_float(value))
    return bits ^ ((bits >> _SIGN) & _MAGNITUDE)


@numba.njit(nogil=True, inline="always")
def _of_key(key: Any) -> Any:
    """The float32 of a key."""
    return float_of_bits(np.uint32(key ^ ((key >> _SIGN) & _MAGNITUDE)))


# infinities are left alone: they are the logits of what is never predicted
@numba.njit(
    nogil=True,
    cache=True,
    error_model="numpy",  # a row of no numbers has a loss that is none, and the trainer says so
    fastmath={"reassoc", "nsz", "nnan", "arcp", "contract"},
)
def softmax_gradients(logits: Any, targets: Any, scale: Any, pull: Any, losses: Any, log_sums: Any) -> None:
    """Turn logits into the gradient of scale · Σ_n (loss_n + ½ pull · log_sum_n²), in place.

    Args:
        logits: [N, V], float32, or bfloat16 seen as uint16; no row is all minus infinity.
        targets: ids [N].
        scale: of the gradients, float32.
        pull: weight of the squared log-normalisers, float32; 0 for the plain softmax.
        losses: written: −log p(target), [N] float32.
        log_sums: written: log Σ exp, [N] float32.
    """
    size = logits.shape[1]
    values = np.empty(size, np.float32)
    for n in range(logits.shape[0]):
        row = logits[n]
        highest = _read_row(row, values)
        target = values[targets[n]]
        total = np.float32(0)
        for v in range(size):
            e = exp(values[v] - highest)
            values[v] = e
            total += e
        log_sum = np.log(total) + highest
        losses[n] = log_sum - target
        log_sums[n] = log_sum
        _write_row(row, values, scale * (_ONE + pull * log_sum) / total, targets[n], scale)


def _read_row(row: Any, values: Any) -> Any:
    raise NotImplementedError  # in kernels only


def _write_row(row: Any, values: Any, factor: Any, target: Any, less: Any) -> None:
    raise NotImplementedError  # in kernels only


@numba.extending.overload(_read_row, inline="always")
def _read(row: Any, values: Any) -> Any:  # noqa: ARG001
    """Copy a row of logits as float32; returns the highest."""
    if row.dtype == types.uint16:

        def read_bfloat16(row: Any, values: Any) -> Any:
            highest = _LOWEST_KEY
            for v in range(len(row)):
                values[v] = from_bfloat16(row[v])
                highest = max(highest, _key(values[v]))
            return _of_key(highest)

        return read_bfloat16

    def read_float32(row: Any, values: Any) -> Any:
        highest = _LOWEST_KEY
        for v in range(len(row)):
            values[v] = row[v]
            highest = max(highest, _key(values[v]))
        return _of_key(highest)

    return read_float32


@numba.extending.overload(_write_row, inline="always")
def _write(row: Any, values: Any, factor: Any, target: Any, less: Any) -> Any:  # noqa: ARG001
    """Write a row's values times a factor, the target's less something."""
    if row.dtype == types.uint16:

        def write_bfloat16(row: Any, values: Any, factor: Any, target: Any, less: Any) -> None:
            for v in range(len(row)):
                row[v] = to_bfloat16(values[v] * factor)
            row[target] = to_bfloat16(values[target] * factor - less)

        return write_bfloat16

    def write_float32(row: Any, values: Any, factor: Any, target: Any, less: Any) -> None:
        for v in range(len(row)):
            row[v] = values[v] * factor
        row[target] = values[target] * factor - less

    return write_float32
