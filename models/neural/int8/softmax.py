"""Int8 output layer: logits, log-probabilities and sums of blocks of 64 tokens.

Logits are summed while they are in the processor's cache. Sampling stores no full distribution.
"""

from typing import Any

import numba
import numpy as np
from numba import types

from models.kernels.compilation import kernel
from models.kernels.log_sum_exp import ROW_LANES, add_exp_in_lanes, block_sums_in_lanes, max_in_lanes
from models.kernels.math import copy_values, exp, fold_lanes, greater
from models.neural.int8.matrix import (
    FLOATS,
    FLOATS_2D,
    IDS,
    INT8_MATRIX_TYPE,
    INT8_ROWS_TYPE,
    ROW_PADDING,
    multiply_blocks,
)

LOWEST_LOGIT = np.float32(-3e38)
_ZERO, _ONE_ROW = np.int64(0), np.int64(1)  # numba would compile a further version for each literal

BLOCKS_PER_PASS = 16
"""Number of 64-token blocks per pass: their logits stay in the cache until they are summed."""


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, types.int64, FLOATS_2D, FLOATS))
def write_logits(matrix: Any, bias: Any, rows: Any, first: Any, logits: Any, log_sums: Any) -> None:
    """Write the logits of rows and their log-sum-exp.

    Args:
        matrix: `Int8Matrix` of V rows.
        bias: [V rounded up], float32; minus infinity for tokens that are never predicted.
        rows: `Int8Rows`.
        first: index of the first of the N rows.
        logits: written, [N, V rounded up].
        log_sums: written, [N].
    """
    count = len(logits)
    # running maxima [N] and sums in lanes [N, 64]: one pass over the vocabulary reads each logit once
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


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, types.int64, IDS, FLOATS))
def score_targets(matrix: Any, bias: Any, rows: Any, first: Any, ids: Any, log_probs: Any) -> None:
    """Write the log-probabilities [N] of ids [N] after rows from `first` on; see `write_logits`."""
    count = len(ids)
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    logits = np.empty((count, BLOCKS_PER_PASS * ROW_LANES + ROW_PADDING), np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        size = (end - begin) * ROW_LANES
        multiply_blocks(matrix, bias, rows, first, count, begin, end, logits, _ZERO)
        for row in range(count):
            highest[row] = accumulate_exp(logits[row, :size], highest[row], lanes[row], tops)
            column = ids[row] - begin * ROW_LANES
            if 0 <= column < size:
                log_probs[row] = logits[row, column]
    for row in range(count):
        log_probs[row] -= log_sum_of_lanes(lanes[row], highest[row])


@numba.njit(nogil=True)
def accumulate_exp(logits: Any, highest: Any, lanes: Any, tops: Any) -> Any:
    """Add exp(logit - highest) of a multiple of 64 logits to sums in 64 lanes.

    The rounding depends on the segments of a row, so a caller must always use the same segments. `tops` is scratch.

    Returns:
        The new highest logit, to which the lanes are rescaled.
    """
    new_highest = max_logit(logits, highest, tops)
    if new_highest > highest:
        _scale(lanes, exp(highest - new_highest))
    add_exp_in_lanes(logits, len(logits), new_highest, lanes)
    return new_highest


@numba.njit(nogil=True)
def max_logit(logits: Any, highest: Any, tops: Any) -> Any:
    """Return the maximum of a multiple of 64 logits and `highest`; `tops` [64] is scratch."""
    for lane in range(ROW_LANES):
        tops[lane] = highest
    max_in_lanes(logits, len(logits), tops)
    for lane in range(32):  # constant bounds, so the compiler unrolls these loops
        tops[lane] = greater(tops[lane], tops[lane + 32])
    for lane in range(16):
        tops[lane] = greater(tops[lane], tops[lane + 16])
    for lane in range(8):
        tops[lane] = greater(tops[lane], tops[lane + 8])
    for lane in range(8):
        highest = greater(highest, tops[lane])
    return highest


@numba.njit(nogil=True)
def log_sum_of_lanes(lanes: Any, highest: Any) -> Any:
    """Return the log-sum-exp from 64 lanes, which are overwritten, and the highest logit."""
    return np.log(fold_lanes(lanes)) + highest


@kernel(types.void(FLOATS_2D, FLOATS))
def normalise_logits(logits: Any, log_sums: Any) -> None:
    """Convert logits [N, V] to log-probabilities in place."""
    for row in range(len(logits)):
        log_sum = log_sums[row]
        for token in range(logits.shape[1]):
            logits[row, token] -= log_sum


_ONE = np.float32(1)


@kernel(
    types.void(
        INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, types.int64, FLOATS, FLOATS, FLOATS, FLOATS_2D, FLOATS_2D
    ),
    error_model="numpy",
)
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
    """Write the block sums of rows, reading the output layer once and storing no full distribution.

    Args:
        matrix: `Int8Matrix` of V rows.
        bias: [V rounded up], float32; minus infinity for tokens that are never predicted.
        rows: `Int8Rows`.
        start: index of the first of the N rows.
        temperatures: [N], float32, above 0.
        highest: written, the highest logit of each row [N].
        log_sums: written, log-sum-exp of the logits [N].
        sums: written, sum of exp((logit - highest) / temperature) of each block of 64 [N, V / 64 rounded up].
        first: written, the logits of the first block [N, 64].
    """
    count = len(temperatures)
    highest[:] = LOWEST_LOGIT
    lanes, scratch = np.zeros((count, ROW_LANES), np.float32), np.empty(ROW_LANES, np.float32)
    logits = np.empty((count, BLOCKS_PER_PASS * ROW_LANES + ROW_PADDING), np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        multiply_blocks(matrix, bias, rows, start, count, begin, end, logits, _ZERO)
        for row in range(count):
            if begin == 0:
                copy_values(logits[row, :ROW_LANES], first[row])
            part = logits[row, : (end - begin) * ROW_LANES]
            inverse = _ONE / temperatures[row]
            highest[row] = accumulate_block_sums(
                part, begin, inverse, highest[row], lanes[row], sums[row], scratch
            )
    for row in range(count):
        log_sums[row] = log_sum_of_lanes(lanes[row], highest[row])


@numba.njit(nogil=True, error_model="numpy")
def accumulate_block_sums(
    logits: Any, begin: Any, inverse: Any, highest: Any, lanes: Any, sums: Any, scratch: Any
) -> Any:
    """Add a segment of a row's logits to its block sums.

    Args:
        logits: a multiple of 64.
        begin: index of their first block of 64.
        inverse: inverse of the row's temperature.
        highest: the highest logit of earlier segments.
        lanes: sums of exponentials in 64 lanes; overwritten.
        sums: sums of the row's blocks; written for the segment, rescaled for earlier segments.
        scratch: [64].

    Returns:
        The new highest logit.
    """
    new_highest = max_logit(logits, highest, scratch)
    if new_highest > highest:
        _scale(lanes, exp(highest - new_highest))
        _scale(sums[:begin], exp((highest - new_highest) * inverse))
    block_sums_in_lanes(
        logits, len(logits), new_highest, inverse, lanes, sums[begin : begin + len(logits) // ROW_LANES]
    )
    return new_highest


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, IDS, IDS, FLOATS_2D))
def write_block_logits(matrix: Any, bias: Any, rows: Any, numbers: Any, blocks: Any, logits: Any) -> None:
    """Write the logits [N, 64] of N pairs of a row, given by number [N], and a block of tokens [N]."""
    for index in range(len(numbers)):
        block = blocks[index]
        multiply_blocks(
            matrix, bias, rows, numbers[index], _ONE_ROW, block, block + 1, logits[index : index + 1], _ZERO
        )


@numba.njit(nogil=True)
def _scale(values: Any, factor: Any) -> None:
    for index in range(len(values)):
        values[index] *= factor
