"""The output layer: logits, and the logarithm of what they are divided by."""

from typing import Any

import numba
import numpy as np

from models.neural.elementary import exp, greater
from models.neural.quantized.dot_products import LANES
from models.neural.quantized.matrix import multiply

_LOWEST = np.float32(-3e38)


@numba.njit(nogil=True, cache=True)
def score_rows(matrix: Any, bias: Any, rows: Any, first: Any, logits: Any, log_sums: Any) -> None:
    """Logits of some rows and the logarithms of the sums of their exponentials.

    Args:
        matrix: `PackedMatrix` of V rows.
        bias: [V rounded up], float32; minus infinity for what is never predicted.
        rows: `Rows`.
        first: of the rows.
        logits: written, [N, V rounded up].
        log_sums: written, [N].
    """
    multiply(matrix, bias, rows, first, len(logits), logits)
    for row in range(len(logits)):
        log_sums[row] = log_sum(logits[row])


@numba.njit(nogil=True, cache=True)
def log_sum(logits: Any) -> Any:
    """The logarithm of the sum of exponentials of logits, as many as a multiple of 64.

    They are summed in 64 lanes and these by halves, however wide the machine computes.
    """
    blocks = logits.reshape(-1, LANES)
    lanes = np.full(LANES, _LOWEST)
    for block in range(len(blocks)):
        for lane in range(LANES):
            lanes[lane] = greater(lanes[lane], blocks[block, lane])
    highest = lanes.max()
    lanes[:] = 0
    for block in range(len(blocks)):
        for lane in range(LANES):
            lanes[lane] += exp(blocks[block, lane] - highest)
    width = LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return np.log(lanes[0]) + highest


@numba.njit(nogil=True, cache=True)
def subtract(logits: Any, log_sums: Any, log_probs: Any) -> None:
    """Write log-probabilities [N, V], the first V of each row of logits less the logarithm of the sum."""
    for row in range(len(log_probs)):
        log_sum = log_sums[row]
        for token in range(log_probs.shape[1]):
            log_probs[row, token] = logits[row, token] - log_sum


@numba.njit(nogil=True, cache=True)
def pick(logits: Any, log_sums: Any, ids: Any, log_probs: Any) -> None:
    """Write the log-probability of one token a row, ids [N], into [N]."""
    for row in range(len(ids)):
        log_probs[row] = logits[row, ids[row]] - log_sums[row]
