"""The output layer: logits, and the logarithm of what they are divided by."""

from typing import Any

import numba
import numpy as np

from models.neural.elementary import exp, greater
from models.neural.quantized.dot_products import LANES
from models.neural.quantized.matrix import APART, multiply_some

_LOWEST = np.float32(-3e38)

_BLOCKS = 16
"""Of 64 tokens, computed together: their logits stay in the cache until they are summed."""


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
    count = len(logits)
    highest, lanes = np.full(count, _LOWEST), np.zeros((count, LANES), np.float32)
    tops = np.empty(LANES, np.float32)
    for begin in range(0, len(matrix.weights), _BLOCKS):
        end = min(begin + _BLOCKS, len(matrix.weights))
        multiply_some(matrix, bias, rows, first, count, begin, end, logits, begin * LANES)
        for row in range(count):
            part = logits[row, begin * LANES : end * LANES]
            highest[row] = _add_exponentials(part, highest[row], lanes[row], tops)
    for row in range(count):
        log_sums[row] = _log_of_sum(lanes[row], highest[row])


@numba.njit(nogil=True, cache=True)
def score_tokens(matrix: Any, bias: Any, rows: Any, first: Any, ids: Any, log_probs: Any) -> None:
    """Write the log-probabilities of given tokens, ids [N], after rows from one on, into [N]; see `score_rows`."""
    count = len(ids)
    highest, lanes = np.full(count, _LOWEST), np.zeros((count, LANES), np.float32)
    tops = np.empty(LANES, np.float32)
    logits = np.empty((count, _BLOCKS * LANES + APART), np.float32)
    for begin in range(0, len(matrix.weights), _BLOCKS):
        end = min(begin + _BLOCKS, len(matrix.weights))
        size = (end - begin) * LANES
        multiply_some(matrix, bias, rows, first, count, begin, end, logits, 0)
        for row in range(count):
            highest[row] = _add_exponentials(logits[row, :size], highest[row], lanes[row], tops)
            place = ids[row] - begin * LANES
            if 0 <= place < size:
                log_probs[row] = logits[row, place]
    for row in range(count):
        log_probs[row] -= _log_of_sum(lanes[row], highest[row])


@numba.njit(nogil=True, cache=True)
def _add_exponentials(logits: Any, highest: Any, lanes: Any, tops: Any) -> Any:
    """Add the exponentials of logits, as many as a multiple of 64, less the highest so far, to sums in 64 lanes.

    The sum depends on the pieces in which a row is given: these are always `_BLOCKS` of 64. `tops` is scratch.

    Returns:
        The highest now; what was in the lanes was made less in proportion.
    """
    blocks = logits.reshape(-1, LANES)
    for lane in range(LANES):
        tops[lane] = highest
    for block in range(len(blocks)):
        for lane in range(LANES):
            tops[lane] = greater(tops[lane], blocks[block, lane])
    width = LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            tops[lane] = greater(tops[lane], tops[lane + width])
    found = tops[0]
    if found > highest:
        shrink = exp(highest - found)
        for lane in range(LANES):
            lanes[lane] *= shrink
    for block in range(len(blocks)):
        for lane in range(LANES):
            lanes[lane] += exp(blocks[block, lane] - found)
    return found


@numba.njit(nogil=True, cache=True)
def _log_of_sum(lanes: Any, highest: Any) -> Any:
    """The logarithm of a sum in 64 lanes, which are added by halves, however wide the machine computes."""
    width = LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return np.log(lanes[0]) + highest


@numba.njit(nogil=True, cache=True)
def normalise_logits(logits: Any, log_sums: Any) -> None:
    """Turn logits [N, V] into log-probabilities."""
    for row in range(len(logits)):
        log_sum = log_sums[row]
        for token in range(logits.shape[1]):
            logits[row, token] -= log_sum
