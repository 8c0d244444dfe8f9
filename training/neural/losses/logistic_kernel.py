"""Logistic losses and gradients of rows of logits in one pass over them, in place."""

from typing import Any

import numba
import numpy as np

from models.neural.elementary import exp
from training.neural.losses.logits import as_float32, as_type_of

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
            length = min(_LANES, size - begin)
            for lane in range(length):
                values[lane] = as_float32(row[begin + lane])
            values[length:] = _NO_LOGIT
            for lane in range(_LANES):
                x = values[lane]
                small = exp(-abs(x))
                factor = _ONE + small
                above[lane] += max(x, _ZERO)  # log(1 + e^x) is max(x, 0) + log(1 + e^-|x|)
                products[lane] *= factor
                values[lane] = (scale if x >= _ZERO else scale * small) / factor
            for lane in range(length):
                row[begin + lane] = as_type_of(values[lane], row[begin + lane])
            if begin % (_LANES * _FACTORS) == _LANES * (_FACTORS - 1):
                for lane in range(_LANES):
                    loss += np.log(products[lane])
                    products[lane] = _ONE
        for lane in range(_LANES):
            loss += above[lane] + np.log(products[lane])
        losses[n] = loss
