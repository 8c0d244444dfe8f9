"""What a token is drawn by, without a distribution: weights of blocks of 64 tokens, and logits of single blocks."""

from typing import Any

import numba
import numpy as np

from models.neural.elementary import exp
from models.neural.quantized.dot_products import LANES
from models.neural.quantized.lanes import weigh_in_lanes
from models.neural.quantized.matrix import APART, multiply_some
from models.neural.quantized.output import BLOCKS, LOWEST, highest_of, log_of_sum

_ONE = np.float32(1)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def weigh_rows(
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
    highest[:] = LOWEST
    lanes, scratch = np.zeros((count, LANES), np.float32), np.empty(LANES, np.float32)
    logits = np.empty((count, BLOCKS * LANES + APART), np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS):
        end = min(begin + BLOCKS, len(matrix.weights))
        multiply_some(matrix, bias, rows, start, count, begin, end, logits, 0)
        if begin == 0:
            first[:] = logits[:, :LANES]
        for row in range(count):
            part = logits[row, : (end - begin) * LANES]
            inverse, before = _ONE / temperatures[row], highest[row]
            highest[row] = highest_of(part, before, scratch)
            if highest[row] > before:
                _shrink(lanes[row], exp(before - highest[row]))
                _shrink(sums[row, :begin], exp((before - highest[row]) * inverse))
            weigh_in_lanes(part, len(part), highest[row], inverse, lanes[row], sums[row, begin:end])
    for row in range(count):
        log_sums[row] = log_of_sum(lanes[row], highest[row])


@numba.njit(nogil=True, cache=True)
def logits_of_blocks(matrix: Any, bias: Any, rows: Any, numbers: Any, blocks: Any, logits: Any) -> None:
    """Write the logits [N, 64] of one block of tokens each [N] after rows by number [N]."""
    for place in range(len(numbers)):
        block = blocks[place]
        multiply_some(matrix, bias, rows, numbers[place], 1, block, block + 1, logits[place : place + 1], 0)


@numba.njit(nogil=True, cache=True)
def _shrink(values: Any, factor: Any) -> None:
    for place in range(len(values)):
        values[place] *= factor
