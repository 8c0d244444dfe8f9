"""Choosing a token a row, compiled, from log-probabilities [R, V] and each row's own rules.

A row's answer depends on that row alone: sums run over fixed blocks in a fixed order. The exponentials
are of single precision, with a relative error below 3e-7, and so are sums within a block.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.arrays import FloatArray, TokenIds
from models.decoding.adjusting import adjust_scores
from models.decoding.rows import (
    MIN_P,
    SUM_BLOCK,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    TYPICAL_P,
    KernelBuffers,
    KernelRows,
    buffers_for,
)
from models.decoding.truncating import truncate
from models.neural.elementary import exp, greater
from models.vocabulary import EOS

_LANES = 64
_LOWEST = np.float32(-np.inf)
_ZERO = np.float32(0)
_NEGLIGIBLE = np.float32(-87)  # beside a score of 0, in single precision
_MIN_TEMPERATURE = 1e-30

ROWS_TYPE = types.NamedTuple(  # type: ignore[no-untyped-call]  # numba ships no annotations for it
    [
        types.float64[:, ::1],
        types.int32[::1],
        types.float32[::1],
        types.int64[:, ::1],
        types.int32[::1],
        types.int64[:, ::1],
        types.int32[::1],
        types.int64[:, ::1],
        types.int32[:, ::1],
        types.int64[::1],
    ],
    KernelRows,
)
BUFFERS_TYPE = types.NamedTuple(  # type: ignore[no-untyped-call]
    [types.float32[::1]] * 3 + [types.int32[::1]] * 3 + [types.float64[::1]] * 2, KernelBuffers
)
LOG_PROBS_TYPE = types.Array(types.float32, 2, "C", readonly=True)


class ChosenTokens(NamedTuple):
    """A token a row.

    Attributes:
        tokens: ids [R].
        log_probs: the model's own of them [R].
    """

    tokens: TokenIds
    log_probs: FloatArray


def choose_tokens(log_probs: FloatArray, rows: KernelRows, draws: npt.NDArray[np.float64]) -> ChosenTokens:
    """One token a row: the most probable where the temperature is 0, else drawn.

    Of equally probable tokens the smallest id is chosen; `</s>` where none is possible.

    Args:
        log_probs: a model's own [R, V]; they are not changed.
        rows: their rules.
        draws: a number in [0, 1) a row [R], read where one is drawn.
    """
    chosen = ChosenTokens(np.empty(len(log_probs), np.int64), np.empty(len(log_probs), np.float32))
    _choose_rows(np.ascontiguousarray(log_probs), rows, draws, buffers_for(log_probs.shape[1]), *chosen)
    return chosen


@numba.njit(nogil=True)
def _truncates(rules: Any, row: Any) -> Any:
    return (
        rules[row, TOP_K] > 0 or rules[row, TYPICAL_P] < 1 or rules[row, TOP_P] < 1 or rules[row, MIN_P] > 0
    )


@numba.njit(nogil=True)
def _highest(scores: Any) -> Any:
    """The greatest of scores, as many as a multiple of a block."""
    lanes = np.full(_LANES, _LOWEST)
    for first in range(0, len(scores), _LANES):
        for lane in range(_LANES):
            lanes[lane] = greater(lanes[lane], scores[first + lane])
    return lanes.max()


@numba.njit(nogil=True)
def _index_of(scores: Any, score: Any) -> Any:
    """Where a score first stands."""
    place = 0
    while scores[place] != score:
        place += 1
    return place


@numba.njit(nogil=True)
def _write_weights(scores: Any, peak: Any, scale: Any, weights: Any, sums: Any) -> None:
    """Write the exponentials of scores less their peak, times a scale, and the sum of each block of them."""
    for block in range(len(sums)):
        given = scores[block * SUM_BLOCK : (block + 1) * SUM_BLOCK]
        written = weights[block * SUM_BLOCK : (block + 1) * SUM_BLOCK]
        for place in range(SUM_BLOCK):
            score = (given[place] - peak) * scale
            weight = exp(score)  # of all, and then the choice: so the loop is vectorised
            written[place] = weight if score > _NEGLIGIBLE else _ZERO
        sums[block] = _sum_block(written)


@numba.njit(nogil=True)
def _write_block_sums(weights: Any, count: Any, sums: Any) -> None:
    """Write the sum of each block of the first `count` weights; what follows them in the last is cleared."""
    blocks = (count + SUM_BLOCK - 1) // SUM_BLOCK
    weights[count : blocks * SUM_BLOCK] = 0
    for block in range(blocks):
        sums[block] = _sum_block(weights[block * SUM_BLOCK : (block + 1) * SUM_BLOCK])


@numba.njit(nogil=True)
def _sum_block(weights: Any) -> Any:
    """The sum of a block, in lanes and these by halves, however wide the machine computes."""
    lanes = np.zeros(_LANES, np.float32)
    for first in range(0, SUM_BLOCK, _LANES):
        for lane in range(_LANES):
            lanes[lane] += weights[first + lane]
    width = _LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return lanes[0]


@numba.njit(nogil=True)
def _draw_index(weights: Any, count: Any, sums: Any, draw: Any) -> Any:
    """The place, of the first `count`, where the running sum of weights first exceeds a share of it."""
    blocks = (count + SUM_BLOCK - 1) // SUM_BLOCK
    total = 0.0
    for block in range(blocks):
        total += sums[block]
    target, running, block = draw * total, 0.0, 0
    while block < blocks - 1 and running + sums[block] <= target:
        running += sums[block]
        block += 1
    last = 0
    for place in range(block * SUM_BLOCK, min((block + 1) * SUM_BLOCK, count)):
        if weights[place] > 0:
            last = place
            running += weights[place]
            if running > target:
                return place
    while weights[last] == 0:  # rounding has carried the target past the last possible token
        last = block * SUM_BLOCK - 1 if last == 0 else last - 1
    return last


@numba.njit(nogil=True)
def _choose_row(scores: Any, row: Any, rules: Any, draw: Any, room: Any, width: Any) -> Any:
    """The token of one row, by its scores, which are written over."""
    peak = _highest(scores)
    if not peak > _LOWEST:  # nothing is possible, or the model gave no numbers: no place has such a score
        return EOS
    if rules[row, TEMPERATURE] == 0:
        return _index_of(scores, peak)
    scale = np.float32(1 / max(rules[row, TEMPERATURE], _MIN_TEMPERATURE))
    _write_weights(scores, peak, scale, room.weights, room.sums)
    if not _truncates(rules, row):
        return _draw_index(room.weights, width, room.sums, draw)
    for place in range(width):
        scores[place] = (scores[place] - peak) * scale
    count = truncate(row, rules, room, width)
    _write_block_sums(room.weights, count, room.sums)
    return room.ids[_draw_index(room.weights, count, room.sums, draw)]


@numba.njit(
    types.void(
        LOG_PROBS_TYPE, ROWS_TYPE, types.float64[::1], BUFFERS_TYPE, types.int64[::1], types.float32[::1]
    ),
    nogil=True,
    cache=True,
)
def _choose_rows(log_probs: Any, rows: Any, draws: Any, room: Any, tokens: Any, own: Any) -> None:
    scores, width = room.scores, log_probs.shape[1]
    for row in range(len(tokens)):
        for token in range(width):  # a slice would be copied more slowly
            scores[token] = log_probs[row, token]
        adjust_scores(scores, row, rows, room.counts)
        tokens[row] = _choose_row(scores, row, rows.rules, draws[row], room, width)
        own[row] = log_probs[row, tokens[row]]
