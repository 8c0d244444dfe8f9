"""Softmax, loss and gradient of rows of logits in one pass over them, in place.

torch takes several passes over fresh memory for the same; beside matrix products in bfloat16 they
would cost as much as the products.
"""

from typing import Any

import numba
import numpy as np

from models.neural.elementary import bits_of_float, exp, float_of_bits
from training.neural.losses.logits import as_float32, as_type_of

_LOWEST_KEY = np.int32(-(2**31))
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)
_ONE = np.float32(1)


@numba.njit(nogil=True, inline="always")
def _sortable_bits(value: Any) -> Any:
    """A float32 as an integer of the same order: LLVM vectorises the maximum of integers, not that of floats."""
    bits = np.int32(bits_of_float(value))
    return bits ^ ((bits >> _SIGN) & _MAGNITUDE)


@numba.njit(nogil=True, inline="always")
def _float_of_sortable(key: Any) -> Any:
    """The float32 of a key."""
    return float_of_bits(np.uint32(key ^ ((key >> _SIGN) & _MAGNITUDE)))


# infinities are left alone: they are the logits of what is never predicted
@numba.njit(
    nogil=True,
    cache=True,
    error_model="numpy",  # a row of no numbers has a loss that is none, and the trainer says so
    fastmath={"reassoc", "nsz", "nnan", "arcp", "contract"},
)
def softmax_gradients(
    logits: Any, bias: Any, targets: Any, scale: Any, pull: Any, losses: Any, log_sums: Any
) -> None:
    """Turn logits, less a bias, into the gradient of scale · Σ_n (loss_n + ½ pull · log_sum_n²), in place.

    Args:
        logits: [N, V], float32, or bfloat16 seen as uint16.
        bias: [V], float32; with it, no row is all minus infinity.
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
        key = _LOWEST_KEY
        for v in range(size):
            values[v] = as_float32(row[v]) + bias[v]
            key = max(key, _sortable_bits(values[v]))
        highest = _float_of_sortable(key)
        target = values[targets[n]]
        total = np.float32(0)
        for v in range(size):
            e = exp(values[v] - highest)
            values[v] = e
            total += e
        log_sum = np.log(total) + highest
        losses[n] = log_sum - target
        log_sums[n] = log_sum
        factor = scale * (_ONE + pull * log_sum) / total
        for v in range(size):
            row[v] = as_type_of(values[v] * factor, row[v])
        row[targets[n]] = as_type_of(values[targets[n]] * factor - scale, row[targets[n]])
