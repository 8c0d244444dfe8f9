"""What a token is drawn by, without a distribution: weights of blocks of 64 tokens, and logits of single blocks."""

from typing import Any

import numba
import numpy as np

from models.neural.elementary import exp
from models.neural.quantized.dot_products import ROW_LANES
from models.neural.quantized.lanes import block_sums_in_lanes
from models.neural.quantized.matrix import ROW_PADDING, multiply_blocks
from models.neural.quantized.output import BLOCKS_PER_PASS, LOWEST_LOGIT, log_sum_of_lanes, max_logit

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
