"""Compiled passes over remembered tokens: how alike two places are, and what that makes probable.

Products of feature vectors are computed by the same machine code, four at a time, whatever else is in
the batch, and sums over a window are taken in double precision, the oldest token first. So answers are
the same bits alone, in company, step by step and whole.
"""

import math

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.arrays import FloatArray

NOTHING_REMEMBERED = -1.0
"""The share of a token where the window is empty."""

_KEY_BLOCK = 64  # feature vectors that stay near while all queries meet them
_NEGLIGIBLE = -40.0  # e^−40 is below the rounding of a sum in double precision

_VECTORS = types.Array(types.float32, 2, "C", readonly=True)
_ALIKE = types.float32[:, ::1]
_TOKENS = types.Array(types.int32, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_NUMBERS = types.Array(types.float64, 1, "C", readonly=True)
_LOG_PROBS = types.Array(types.float32, 1, "C", readonly=True)


@numba.njit(
    [types.void(_VECTORS, _VECTORS, types.int64, _ALIKE)],
    nogil=True,
    cache=True,
    fastmath={"reassoc", "contract", "nsz"},  # else sums would be taken one by one
)
def products(queries: FloatArray, keys: FloatArray, column: int, out: FloatArray) -> None:
    """Inner products of queries [Q, W] and keys [N, W], into `out[:, column : column + N]`.

    The last queries stand in for those that four do not divide, so every product is made in the same loop.
    """
    rows, width, last = len(queries), queries.shape[1], len(queries) - 1
    for begin in range(0, len(keys), _KEY_BLOCK):
        end = min(begin + _KEY_BLOCK, len(keys))
        for first in range(0, rows, 4):
            second, third, fourth = min(first + 1, last), min(first + 2, last), min(first + 3, last)
            a, b, c, d = queries[first], queries[second], queries[third], queries[fourth]
            for n in range(begin, end):
                key = keys[n]
                s, t, u, v = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
                for i in range(width):
                    s += a[i] * key[i]
                    t += b[i] * key[i]
                    u += c[i] * key[i]
                    v += d[i] * key[i]
                out[first, column + n], out[second, column + n] = s, t
                out[third, column + n], out[fourth, column + n] = u, v


@numba.njit(
    [
        types.void(
            types.Array(types.float32, 2, "C", readonly=True),
            _TOKENS,
            _PLACES,
            _PLACES,
            _PLACES,
            _NUMBERS,
            types.float64[:, ::1],
        )
    ],
    nogil=True,
    cache=True,
)
def target_shares(
    likeness: FloatArray,
    tokens: npt.NDArray[np.int32],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    flatnesses: npt.NDArray[np.float64],
    out: npt.NDArray[np.float64],
) -> None:
    """p_cache of Q given tokens, each after a window of its own, for K values of θ.

    Args:
        likeness: s of each query and remembered token [Q, N].
        tokens: remembered [N].
        begins: where each query's window begins in `tokens` [Q].
        ends: where it ends [Q].
        targets: the token that follows each query [Q].
        flatnesses: θ [K].
        out: [Q, K]; written. `NOTHING_REMEMBERED` where the window is empty.
    """
    for q in range(len(targets)):
        peak = -np.inf
        for n in range(begins[q], ends[q]):
            peak = max(peak, likeness[q, n])
        for k in range(len(flatnesses)):
            total, hit = 0.0, 0.0
            for n in range(begins[q], ends[q]):
                exponent = flatnesses[k] * (np.float64(likeness[q, n]) - peak)
                if exponent > _NEGLIGIBLE:
                    weight = math.exp(exponent)
                    total += weight
                    if tokens[n] == targets[q]:
                        hit += weight
            out[q, k] = hit / total if total > 0 else NOTHING_REMEMBERED


@numba.njit([types.float64(types.float64, types.float64, types.float64)], nogil=True, cache=True)
def mixed(log_prob: float, share: float, weight: float) -> float:
    """log((1 − λ) p + λ p_cache)."""
    if share <= 0.0:
        return log_prob + math.log1p(-weight)
    return math.log((1.0 - weight) * math.exp(log_prob) + weight * share)


@numba.njit([types.void(_LOG_PROBS, _NUMBERS, types.float64, types.float32[::1])], nogil=True, cache=True)
def mix_targets(
    log_probs: FloatArray, shares: npt.NDArray[np.float64], weight: float, out: FloatArray
) -> None:
    """Log-probabilities [T] mixed with shares [T] as `target_shares` tells them, into `out` [T]."""
    for t in range(len(shares)):
        out[t] = log_probs[t] if shares[t] < 0 else mixed(log_probs[t], shares[t], weight)


@numba.njit(
    [
        types.void(
            types.Array(types.float32, 1, "C", readonly=True),
            _TOKENS,
            types.float64,
            types.float64,
            _LOG_PROBS,
            types.float32[::1],
        )
    ],
    nogil=True,
    cache=True,
)
def mix_row(
    likeness: FloatArray,
    tokens: npt.NDArray[np.int32],
    flatness: float,
    weight: float,
    log_probs: FloatArray,
    out: FloatArray,
) -> None:
    """A whole distribution mixed with what its window, not empty, makes probable.

    Args:
        likeness: s of each remembered token [N].
        tokens: remembered [N].
        flatness: θ.
        weight: λ.
        log_probs: of every token of the vocabulary [V].
        out: [V]; written.
    """
    peak, total = np.float64(likeness.max()), 0.0
    masses = np.zeros(len(log_probs), np.float64)
    for n in range(len(tokens)):
        exponent = flatness * (np.float64(likeness[n]) - peak)
        if exponent > _NEGLIGIBLE:
            mass = math.exp(exponent)
            total += mass
            masses[tokens[n]] += mass
    for token in range(len(log_probs)):
        out[token] = mixed(log_probs[token], masses[token] / total, weight)
