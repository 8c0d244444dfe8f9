"""Int8 output layer: logits, log-probabilities and sums of blocks of 64 tokens.

Logits are summed while they are in the cache. For sampling, nothing as large as the vocabulary is
kept.
"""

from typing import Any

import numba
import numpy as np

from models.kernels.log_sum_exp import ROW_LANES, add_exp_in_lanes, block_sums_in_lanes, max_in_lanes
from models.kernels.math import exp, greater
from models.neural.int8.matrix import ROW_PADDING, multiply_blocks

LOWEST_LOGIT = np.float32(-3e38)

BLOCKS_PER_PASS = 16
"""Of 64 tokens, computed together: their logits stay in the cache until they are summed."""


@numba.njit(nogil=True, cache=True)
def write_logits(matrix: Any, bias: Any, rows: Any, first: Any, logits: Any, log_sums: Any) -> None:
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
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        multiply_blocks(matrix, bias, rows, first, count, begin, end, logits, begin * ROW_LANES)
        for row in range(count):
            part = logits[row, begin * ROW_LANES : end * ROW_LANES]
            highest[row] = accumulate_exp(part, highest[row], lanes[row], tops)
    for row in range(count):
        log_sums[row] = log_sum_of_lanes(lanes[row], highest[row])


@numba.njit(nogil=True, cache=True)
def score_targets(matrix: Any, bias: Any, rows: Any, first: Any, ids: Any, log_probs: Any) -> None:
    """Write the log-probabilities of given tokens, ids [N], after rows from one on, into [N]; see `write_logits`."""
    count = len(ids)
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    logits = np.empty((count, BLOCKS_PER_PASS * ROW_LANES + ROW_PADDING), np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        size = (end - begin) * ROW_LANES
        multiply_blocks(matrix, bias, rows, first, count, begin, end, logits, 0)
        for row in range(count):
            highest[row] = accumulate_exp(logits[row, :size], highest[row], lanes[row], tops)
            place = ids[row] - begin * ROW_LANES
            if 0 <= place < size:
                log_probs[row] = logits[row, place]
    for row in range(count):
        log_probs[row] -= log_sum_of_lanes(lanes[row], highest[row])


@numba.njit(nogil=True, cache=True)
def accumulate_exp(logits: Any, highest: Any, lanes: Any, tops: Any) -> Any:
    """Add the exponentials of logits, as many as a multiple of 64, less the highest so far, to sums in 64 lanes.

    The sum depends on the pieces in which a row is given: a caller always gives the same. `tops` is scratch.

    Returns:
        The highest now; what was in the lanes was made less in proportion.
    """
    found = max_logit(logits, highest, tops)
    if found > highest:
        shrink = exp(highest - found)
        for lane in range(ROW_LANES):
            lanes[lane] *= shrink
    add_exp_in_lanes(logits, len(logits), found, lanes)
    return found


@numba.njit(nogil=True, cache=True)
def max_logit(logits: Any, highest: Any, tops: Any) -> Any:
    """The highest of logits, as many as a multiple of 64, and one more; `tops` [64] is scratch."""
    for lane in range(ROW_LANES):
        tops[lane] = highest
    max_in_lanes(logits, len(logits), tops)
    for lane in range(32):  # constants: the compiler leaves no loop
        tops[lane] = greater(tops[lane], tops[lane + 32])
    for lane in range(16):
        tops[lane] = greater(tops[lane], tops[lane + 16])
    for lane in range(8):
        tops[lane] = greater(tops[lane], tops[lane + 8])
    for lane in range(8):
        highest = greater(highest, tops[lane])
    return highest


@numba.njit(nogil=True, cache=True)
def sum_lanes(lanes: Any) -> Any:
    """The sum of 64 numbers, which are added by halves, however wide the machine computes; they are written over."""
    for lane in range(32):
        lanes[lane] += lanes[lane + 32]
    for lane in range(16):
        lanes[lane] += lanes[lane + 16]
    for lane in range(8):
        lanes[lane] += lanes[lane + 8]
    for lane in range(4):
        lanes[lane] += lanes[lane + 4]
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


@numba.njit(nogil=True, cache=True)
def log_sum_of_lanes(lanes: Any, highest: Any) -> Any:
    """The logarithm of a sum in 64 lanes, which are written over."""
    return np.log(sum_lanes(lanes)) + highest


@numba.njit(nogil=True, cache=True)
def normalise_logits(logits: Any, log_sums: Any) -> None:
    """Turn logits [N, V] into log-probabilities."""
    for row in range(len(logits)):
        log_sum = log_sums[row]
        for token in range(logits.shape[1]):
            logits[row, token] -= log_sum


_ONE = np.float32(1)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def write_block_sums(
    matrix: Any,
    bias: Any,
    rows: Any,
    start: Any,
    temperatures: Any,
    highest: Any,
    log_sums: Any,
    sums: Any,
    first: Any,
) -> None:
    """Read the output layer once for some rows; nothing as large as a vocabulary is kept.

    Args:
        matrix: `PackedMatrix` of V rows.
        bias: [V rounded up], float32; minus infinity for what is never predicted.
        rows: `Rows`.
        start: the first of the rows.
        temperatures: [N], float32, above 0.
        highest: written, the highest logit of each [N].
        log_sums: written, the logarithm of the sum of exponentials of logits [N].
        sums: written, of each block of 64 the sum of exp((logit - highest) / temperature) [N, V / 64 rounded up].
        first: written, the logits of the first block [N, 64].
    """
    count = len(temperatures)
    highest[:] = LOWEST_LOGIT
    lanes, scratch = np.zeros((count, ROW_LANES), np.float32), np.empty(ROW_LANES, np.float32)
    logits = np.empty((count, BLOCKS_PER_PASS * ROW_LANES + ROW_PADDING), np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        multiply_blocks(matrix, bias, rows, start, count, begin, end, logits, 0)
        if begin == 0:
            first[:] = logits[:, :ROW_LANES]
        for row in range(count):
            part = logits[row, : (end - begin) * ROW_LANES]
            inverse = _ONE / temperatures[row]
            highest[row] = accumulate_block_sums(
                part, begin, inverse, highest[row], lanes[row], sums[row], scratch
            )
    for row in range(count):
        log_sums[row] = log_sum_of_lanes(lanes[row], highest[row])


@numba.njit(nogil=True, cache=True, error_model="numpy")
def accumulate_block_sums(
    logits: Any, begin: Any, inverse: Any, highest: Any, lanes: Any, sums: Any, scratch: Any
) -> Any:
    """Weigh some more of a row's logits.

    Args:
        logits: a multiple of 64.
        begin: of their blocks of 64.
        inverse: of the row's temperature.
        highest: of the logits before.
        lanes: sums of exponentials in 64 lanes; written over.
        sums: of the row's blocks; theirs are written, and those before made less in proportion.
        scratch: [64].

    Returns:
        The highest logit now.
    """
    found = max_logit(logits, highest, scratch)
    if found > highest:
        _scale(lanes, exp(highest - found))
        _scale(sums[:begin], exp((highest - found) * inverse))
    block_sums_in_lanes(
        logits, len(logits), found, inverse, lanes, sums[begin : begin + len(logits) // ROW_LANES]
    )
    return found


@numba.njit(nogil=True, cache=True)
def write_block_logits(matrix: Any, bias: Any, rows: Any, numbers: Any, blocks: Any, logits: Any) -> None:
    """Write the logits [N, 64] of one block of tokens each [N] after rows by number [N]."""
    for place in range(len(numbers)):
        block = blocks[place]
        multiply_blocks(matrix, bias, rows, numbers[place], 1, block, block + 1, logits[place : place + 1], 0)


@numba.njit(nogil=True, cache=True)
def _scale(values: Any, factor: Any) -> None:
    for place in range(len(values)):
        values[place] *= factor
