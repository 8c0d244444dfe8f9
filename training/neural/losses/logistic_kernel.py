"""Logistic losses and gradients of rows of logits in one pass over them, in place."""

from typing import Any

import numba
import numpy as np
from numba import types

from training.neural.losses.kernel import exp, from_bfloat16, to_bfloat16

_LANES = 64
"""Logits computed together, each with a sum of its own, so that the loop over them is vectorised."""

_FACTORS = 64
"""Logits of a lane between two logarithms: a product of so many factors from 1 to 2 is below 2^64."""

_ONE = np.float32(1)
_ZERO = np.float32(0)
_NO_LOGIT = np.float32(-3e38)  # adds nothing


@numba.njit(
    nogil=True,
    cache=True,
    error_model="numpy",  # no numbers give no number
    fastmath={"reassoc", "nsz", "nnan", "arcp", "contract"},
)
def logistic_gradients(logits: Any, scale: Any, losses: Any) -> None:
    """Turn logits into the gradient of scale · Σ log(1 + exp(logit)), in place.

    Args:
        logits: [N, S], float32, or bfloat16 seen as uint16.
        scale: of the gradients, float32.
        losses: written: the sum of each row's log(1 + exp(logit)), [N] float32.
    """
    size = logits.shape[1]
    values = np.empty(_LANES, np.float32)
    above, products = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    for n in range(logits.shape[0]):
        row = logits[n]
        above[:] = _ZERO
        products[:] = _ONE
        loss = np.float64(0)
        for begin in range(0, size, _LANES):
            _read_block(row, begin, values)
            for lane in range(_LANES):
                x = values[lane]
                small = exp(-abs(x))
                factor = _ONE + small
                above[lane] += max(x, _ZERO)  # log(1 + e^x) is max(x, 0) + log(1 + e^-|x|)
                products[lane] *= factor
                values[lane] = (scale if x >= _ZERO else scale * small) / factor
            _write_block(row, begin, values)
            if begin % (_LANES * _FACTORS) == _LANES * (_FACTORS - 1):
                for lane in range(_LANES):
                    loss += np.log(products[lane])
                    products[lane] = _ONE
        for lane in range(_LANES):
            loss += above[lane] + np.log(products[lane])
        losses[n] = loss


def _read_block(row: Any, begin: Any, values: Any) -> None:
    raise NotImplementedError  # in kernels only


def _write_block(row: Any, begin: Any, values: Any) -> None:
    raise NotImplementedError  # in kernels only


@numba.extending.overload(_read_block, inline="always")
def _read(row: Any, begin: Any, values: Any) -> Any:  # noqa: ARG001
    """Copy logits from a place on as float32, padded at the row's end."""
    if row.dtype == types.uint16:

        def read_bfloat16(row: Any, begin: Any, values: Any) -> None:
            length = min(len(values), len(row) - begin)
            for i in range(length):
                values[i] = from_bfloat16(row[begin + i])
            values[length:] = _NO_LOGIT

        return read_bfloat16

    def read_float32(row: Any, begin: Any, values: Any) -> None:
        length = min(len(values), len(row) - begin)
        for i in range(length):
            values[i] = row[begin + i]
        values[length:] = _NO_LOGIT

    return read_float32


@numba.extending.overload(_write_block, inline="always")
def _write(row: Any, begin: Any, values: Any) -> Any:  # noqa: ARG001
    """Write values over the row from a place on, as far as it goes."""
    if row.dtype == types.uint16:

        def write_bfloat16(row: Any, begin: Any, values: Any) -> None:
            for i in range(min(len(values), len(row) - begin)):
                row[begin + i] = to_bfloat16(values[i])

        return write_bfloat16

    def write_float32(row: Any, begin: Any, values: Any) -> None:
        for i in range(min(len(values), len(row) - begin)):
            row[begin + i] = values[i]

    return write_float32
