"""Compiled truncation of distributions: top-k, typical, top-p, min-p.

The first three keep the entries with the smallest keys whose weights reach a target: the k largest
scores, the tokens closest to the entropy, the most probable ones. The last key kept is found
by a histogram of the keys' bits, eleven at a time, without sorting.
"""

from typing import Any

import numba
import numpy as np

from models.decoding.rules import MIN_P, TOP_K, TOP_P, TYPICAL_P

SHARE_TOLERANCE = 1e-6
"""Relative tolerance for reaching a share, as probabilities are in single precision."""

_LOW_BITS = np.uint32(9)
_MIDDLE_BITS = np.uint32(20)
_LOW_MASK = np.uint32(511)
_MIDDLE_MASK = np.uint32(2047)
_ONE = np.float32(1)


@numba.njit(nogil=True)
def truncate(row: Any, rules: Any, buffers: Any, width: Any) -> Any:
    """Truncate a row's distribution by its rules.

    Args:
        row: index of the row.
        rules: rules of all rows.
        buffers: scores over the temperature, with maximum 0, and their exponentials as weights.
        width: V.

    Returns:
        Number of remaining tokens, at least one; they start `buffers.ids`, by id, with
        their weights in `buffers.weights`.
    """
    count = _compact_possible(buffers, width)
    top_k = rules[row, TOP_K]
    if 0 < top_k < count:
        _negate(buffers.scores, buffers.keys, count)
        count = _keep_smallest(buffers, count, top_k, _ONE)
    if rules[row, TYPICAL_P] < 1:
        count = _keep_typical(buffers, count, rules[row, TYPICAL_P])
    if rules[row, TOP_P] < 1:
        _negate(buffers.scores, buffers.keys, count)
        count = _keep_smallest_share(buffers, count, rules[row, TOP_P])
    if rules[row, MIN_P] > 0:
        count = _keep_min_p(buffers, count, rules[row, MIN_P])
    return count


@numba.njit(nogil=True)
def _compact_possible(buffers: Any, width: Any) -> Any:
    """Move tokens with a weight to the front; return their number."""
    scores, weights, ids = buffers.scores, buffers.weights, buffers.ids
    count = 0
    for token in range(width):
        scores[count], weights[count], ids[count] = scores[token], weights[token], token
        count += weights[token] > 0
    return count


@numba.njit(nogil=True)
def _negate(scores: Any, keys: Any, count: Any) -> None:
    """Write keys whose order is the reverse of the scores, which are at most 0."""
    for index in range(count):
        keys[index] = abs(scores[index])  # not -0, whose bits would be the largest


@numba.njit(nogil=True)
def _keep_typical(buffers: Any, count: Any, share: Any) -> Any:
    """Keep tokens with surprisal closest to the entropy; the log of the total cancels."""
    scores, weights, keys = buffers.scores, buffers.weights, buffers.keys
    total, moment = 0.0, 0.0
    for index in range(count):
        total += weights[index]
        moment += np.float64(weights[index]) * scores[index]
    mean = moment / total
    for index in range(count):
        keys[index] = abs(scores[index] - mean)
    return _keep_smallest_share(buffers, count, share)


@numba.njit(nogil=True)
def _keep_smallest_share(buffers: Any, count: Any, share: Any) -> Any:
    """Keep the tokens of smallest keys that have a share of the weight."""
    weights, total = buffers.weights, 0.0
    for index in range(count):
        total += weights[index]
    return _keep_smallest(buffers, count, share * total * (1 - SHARE_TOLERANCE), np.float32(0))


@numba.njit(nogil=True)
def _keep_min_p(buffers: Any, count: Any, share: Any) -> Any:
    """Keep the tokens with at least a share of the maximum weight."""
    scores, weights, ids = buffers.scores, buffers.weights, buffers.ids
    highest = np.float32(0)
    for index in range(count):
        highest = max(highest, weights[index])
    least = share * (1 - SHARE_TOLERANCE) * highest
    kept = 0
    for index in range(count):
        weight = weights[index]
        scores[kept], weights[kept], ids[kept] = scores[index], weight, ids[index]
        kept += weight >= least
    return kept


@numba.njit(nogil=True)
def _keep_smallest(buffers: Any, count: Any, target: Any, each: Any) -> Any:
    """Keep the fewest tokens of smallest keys that reach a target weight; return their number.

    Keys are not negative; among equal ones the first are kept. Unless 0, `each` is the weight of every token instead of
    its own.
    """
    scores, weights, ids = buffers.scores, buffers.weights, buffers.ids
    indices, bins = buffers.indices, buffers.histogram
    keys = buffers.keys.view(np.uint32)  # non-negative floats are ordered like their bits
    # radix select by the upper 11, middle 11, low 9 bits of keys: three passes, no sort
    below = 0.0
    bins[:] = 0
    for index in range(count):
        bins[keys[index] >> _MIDDLE_BITS] += each or weights[index]
    high, below = _find_bucket(bins, below, target)
    unsure = 0  # tokens in the bucket of the last key that is kept
    for index in range(count):
        indices[unsure] = index
        unsure += keys[index] >> _MIDDLE_BITS == high
    bins[:] = 0
    for index in indices[:unsure]:
        bins[(keys[index] >> _LOW_BITS) & _MIDDLE_MASK] += each or weights[index]
    middle, below = _find_bucket(bins, below, target)
    upper = (high << np.uint32(11)) | middle
    bins[:] = 0
    for index in indices[:unsure]:
        if keys[index] >> _LOW_BITS == upper:
            bins[keys[index] & _LOW_MASK] += each or weights[index]
    low, below = _find_bucket(bins, below, target)
    last = (upper << _LOW_BITS) | low
    ties = 0  # number of keys equal to the last one that are kept
    for index in indices[:unsure]:
        if keys[index] == last and below < target:
            ties += 1
            below += each or weights[index]
    kept = 0
    for index in range(count):
        tie = keys[index] == last
        scores[kept], weights[kept], ids[kept] = scores[index], weights[index], ids[index]
        # without a branch, which would often be mispredicted
        kept += (keys[index] < last) | (tie & (ties > 0))
        ties -= tie
    return kept


@numba.njit(nogil=True)
def _find_bucket(histogram: Any, below: Any, target: Any) -> Any:
    """Return the first bucket to reach the target, else the last filled, and the weight before."""
    found, before = 0, below
    for bucket in range(len(histogram)):
        if histogram[bucket] > 0:
            found, before = bucket, below
            below += histogram[bucket]
            if below >= target:
                break
    return np.uint32(found), before
