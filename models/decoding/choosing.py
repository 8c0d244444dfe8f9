"""Choosing a token a row, compiled, from log-probabilities [R, V] and each row's own rules.

A row's answer depends on that row alone: sums run over fixed blocks in a fixed order. The
exponentials are of single precision, with a relative error below 3e-7; sums are of double precision.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.arrays import FloatArray, TokenIds
from models.decoding.adjusting import adjust
from models.decoding.rows import BLOCK, MIN_P, TEMPERATURE, TOP_K, TOP_P, TYPICAL_P, Room, Rows, room_for
from models.decoding.truncating import truncate
from models.neural.elementary import exp, greater

IMPOSSIBLE = -1
"""Chosen where no token is possible."""

_LANES = 16
_LOWEST = np.float32(-np.inf)
_NEGLIGIBLE = np.float32(-87)  # beside a score of 0, in single precision
_LEAST_TEMPERATURE = 1e-30

ROWS = types.NamedTuple(  # type: ignore[no-untyped-call]  # numba ships no annotations for it
    [
        types.float64[:, ::1],
        types.int32[::1],
        types.float32[::1],
        types.int64[:, ::1],
        types.int32[::1],
        types.int64[:, ::1],
        types.int32[:, ::1],
        types.int64[::1],
    ],
    Rows,
)
ROOM = types.NamedTuple(  # type: ignore[no-untyped-call]
    [types.float32[::1]] * 3 + [types.int32[::1]] * 3 + [types.float64[::1]] * 2, Room
)
LOG_PROBS = types.Array(types.float32, 2, "C", readonly=True)


def choose(log_probs: FloatArray, rows: Rows, draws: npt.NDArray[np.float64]) -> TokenIds:
    """One token a row: the most probable where the temperature is 0, else drawn.

    Args:
        log_probs: a model's own [R, V]; they are not changed.
        rows: their rules.
        draws: a number in [0, 1) a row [R], read where one is drawn.

    Returns:
        Ids [R]; `IMPOSSIBLE` where nothing is left. Of equally probable tokens the smallest id is chosen.
    """
    chosen = np.empty(len(log_probs), np.int64)
    _choose(np.ascontiguousarray(log_probs), rows, draws, room_for(log_probs.shape[1]), chosen)
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
def _place_of(scores: Any, score: Any) -> Any:
    """Where a score first stands."""
    for place in range(len(scores)):
        if scores[place] == score:
            return place
    return IMPOSSIBLE


@numba.njit(nogil=True, error_model="numpy")
def _weigh(scores: Any, peak: Any, temperature: Any, weights: Any) -> None:
    """Divide scores less their peak by the temperature, in place, and write their exponentials."""
    divisor = np.float32(max(temperature, _LEAST_TEMPERATURE))
    for place in range(len(scores)):
        score = (scores[place] - peak) / divisor
        scores[place] = score
        weights[place] = exp(score) if score > _NEGLIGIBLE else np.float32(0)


@numba.njit(nogil=True)
def _drawn(weights: Any, count: Any, sums: Any, draw: Any) -> Any:
    """The place, of the first `count`, where the running sum of weights first exceeds a share of it."""
    blocks = (count + BLOCK - 1) // BLOCK
    weights[count : blocks * BLOCK] = 0
    total = 0.0
    for block in range(blocks):
        sums[block] = _sum(weights, block * BLOCK)
        total += sums[block]
    target, running, found, block = draw * total, 0.0, IMPOSSIBLE, 0
    while block < blocks - 1 and running + sums[block] <= target:
        running += sums[block]
        block += 1
    for place in range(block * BLOCK, min((block + 1) * BLOCK, count)):
        if weights[place] > 0:
            found = place
            running += weights[place]
            if running > target:
                return found
    if found == IMPOSSIBLE:  # rounding has carried the target past the last possible token
        found = block * BLOCK - 1
        while weights[found] == 0:
            found -= 1
    return found


@numba.njit(nogil=True)
def _sum(weights: Any, first: Any) -> Any:
    """The sum of a block of weights, in lanes and these by halves, however wide the machine computes."""
    lanes = np.zeros(_LANES)
    for begin in range(first, first + BLOCK, _LANES):
        for lane in range(_LANES):
            lanes[lane] += weights[begin + lane]
    width = _LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return lanes[0]


@numba.njit(types.void(LOG_PROBS, ROWS, types.float64[::1], ROOM, types.int64[::1]), nogil=True, cache=True)
def _choose(log_probs: Any, rows: Any, draws: Any, room: Any, chosen: Any) -> None:
    rules, scores, width = rows.rules, room.scores, log_probs.shape[1]
    for row in range(len(chosen)):
        scores[:width] = log_probs[row]
        scores[width:] = _LOWEST
        adjust(scores, row, rows, room.counts)
        peak = _highest(scores)
        if peak == _LOWEST:
            chosen[row] = IMPOSSIBLE
        elif rules[row, TEMPERATURE] == 0:
            chosen[row] = _place_of(scores, peak)
        else:
            _weigh(scores, peak, rules[row, TEMPERATURE], room.weights)
            if _truncates(rules, row):
                count = truncate(row, rules, room, width)
                chosen[row] = room.ids[_drawn(room.weights, count, room.sums, draws[row])]
            else:
                chosen[row] = _drawn(room.weights, width, room.sums, draws[row])
