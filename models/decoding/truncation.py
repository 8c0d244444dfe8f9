"""Compiled truncation of distributions: top-k, typical, top-p, min-p.

The first three keep the entries with the smallest keys whose weights reach a target: the k greatest
scores, the tokens nearest to the entropy, the most probable tokens. The last key kept is found in a
histogram of the keys' bits, eleven at a time, so nothing is sorted.
"""

from typing import Any

import numba
import numpy as np

from models.decoding.rules import MIN_P, TOP_K, TOP_P, TYPICAL_P

SHARE_TOLERANCE = 1e-6
"""A share counts as reached so little below it, as probabilities come from single precision."""

_LOW_BITS = np.uint32(9)
_MIDDLE_BITS = np.uint32(20)
_LOW_MASK = np.uint32(511)
_MIDDLE_MASK = np.uint32(2047)
_ONE = np.float32(1)


@numba.njit(nogil=True)
def truncate(row: Any, rules: Any, room: Any, width: Any) -> Any:
    """Keep what a row's rules leave.

    Args:
        row: its number.
        rules: of all rows.
        room: `Room` with the scores over the temperature, the greatest of them 0, and their exponentials as weights.
        width: V.

    Returns:
        How many tokens are left, at least one; the beginnings of `room.ids`, in order of id, and of
        `room.weights` hold them.
    """
    count = _compact_possible(room, width)
    top_k = rules[row, TOP_K]
    if 0 < top_k < count:
        _negate(room.scores, room.keys, count)
        count = _keep_smallest(room, count, top_k, _ONE)
    if rules[row, TYPICAL_P] < 1:
        count = _keep_typical(room, count, rules[row, TYPICAL_P])
    if rules[row, TOP_P] < 1:
        _negate(room.scores, room.keys, count)
        count = _keep_smallest_share(room, count, rules[row, TOP_P])
    if rules[row, MIN_P] > 0:
        count = _keep_min_p(room, count, rules[row, MIN_P])
    return count


@numba.njit(nogil=True)
def _compact_possible(room: Any, width: Any) -> Any:
    """Move what has a weight to the front; how many."""
    scores, weights, ids = room.scores, room.weights, room.ids
    count = 0
    for token in range(width):
        scores[count], weights[count], ids[count] = scores[token], weights[token], token
        count += weights[token] > 0
    return count


@numba.njit(nogil=True)
def _negate(scores: Any, keys: Any, count: Any) -> None:
    """Keys of which the least are those of the greatest scores, which are at most 0."""
    for place in range(count):
        keys[place] = abs(scores[place])  # and not -0, whose bits are the greatest


@numba.njit(nogil=True)
def _keep_typical(room: Any, count: Any, share: Any) -> Any:
    """Keep the tokens whose surprisal differs least from the entropy; logarithms of the total cancel in that."""
    scores, weights, keys = room.scores, room.weights, room.keys
    total, moment = 0.0, 0.0
    for place in range(count):
        total += weights[place]
        moment += np.float64(weights[place]) * scores[place]
    mean = moment / total
    for place in range(count):
        keys[place] = abs(scores[place] - mean)
    return _keep_smallest_share(room, count, share)


@numba.njit(nogil=True)
def _keep_smallest_share(room: Any, count: Any, share: Any) -> Any:
    """Keep the tokens with the least keys that together have a share of the weight."""
    weights, total = room.weights, 0.0
    for place in range(count):
        total += weights[place]
    return _keep_smallest(room, count, share * total * (1 - SHARE_TOLERANCE), np.float32(0))


@numba.njit(nogil=True)
def _keep_min_p(room: Any, count: Any, share: Any) -> Any:
    """Keep the tokens with at least a share of the greatest weight."""
    scores, weights, ids = room.scores, room.weights, room.ids
    highest = np.float32(0)
    for place in range(count):
        highest = max(highest, weights[place])
    least = share * (1 - SHARE_TOLERANCE) * highest
    kept = 0
    for place in range(count):
        weight = weights[place]
        scores[kept], weights[kept], ids[kept] = scores[place], weight, ids[place]
        kept += weight >= least
    return kept


@numba.njit(nogil=True)
def _keep_smallest(room: Any, count: Any, target: Any, each: Any) -> Any:
    """Keep the tokens with the least keys, as few as reach a target; of equal ones those that come first.

    Args:
        room: with `count` scores, weights, ids and keys of at least 0.
        count: how many there are.
        target: that the weights of those kept reach.
        each: what every token weighs instead, if it is not 0.

    Returns:
        How many are kept.
    """
    scores, weights, ids, places, histogram = (
        room.scores,
        room.weights,
        room.ids,
        room.indices,
        room.histogram,
    )
    keys = room.keys.view(np.uint32)  # floats of at least 0 are ordered as their bits are
    below = 0.0
    histogram[:] = 0
    for place in range(count):
        histogram[keys[place] >> _MIDDLE_BITS] += each or weights[place]
    high, below = _find_bucket(histogram, below, target)
    unsure = 0  # those in the bucket in which the last key kept lies
    for place in range(count):
        places[unsure] = place
        unsure += keys[place] >> _MIDDLE_BITS == high
    histogram[:] = 0
    for place in places[:unsure]:
        histogram[(keys[place] >> _LOW_BITS) & _MIDDLE_MASK] += each or weights[place]
    middle, below = _find_bucket(histogram, below, target)
    upper = (high << np.uint32(11)) | middle
    histogram[:] = 0
    for place in places[:unsure]:
        if keys[place] >> _LOW_BITS == upper:
            histogram[keys[place] & _LOW_MASK] += each or weights[place]
    low, below = _find_bucket(histogram, below, target)
    last = (upper << _LOW_BITS) | low
    ties = 0  # keys equal to the last that are kept
    for place in places[:unsure]:
        if keys[place] == last and below < target:
            ties += 1
            below += each or weights[place]
    kept = 0
    for place in range(count):
        tie = keys[place] == last
        scores[kept], weights[kept], ids[kept] = scores[place], weights[place], ids[place]
        kept += (keys[place] < last) | (
            tie & (ties > 0)
        )  # without a branch, which would often be guessed wrong
        ties -= tie
    return kept


@numba.njit(nogil=True)
def _find_bucket(histogram: Any, below: Any, target: Any) -> Any:
    """The first bucket that reaches the target, else the last that is not empty; and the weight before it."""
    found, before = 0, below
    for bucket in range(len(histogram)):
        if histogram[bucket] > 0:
            found, before = bucket, below
            below += histogram[bucket]
            if below >= target:
                break
    return np.uint32(found), before
