"""Compiled passes over remembered tokens: what they make probable.

Weights are added up as `weighing` says, those of one token in double precision, the oldest first. So
answers are the same bits alone, in company, step by step and whole.
"""

import math

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.arrays import FloatArray
from models.caching.weighing import SEGMENT_TOKENS, SUM_LANES, similarity_weights, sum_weights

_MATRIX = types.Array(types.float32, 2, "C", readonly=True)
_FLOATS = types.Array(types.float32, 1, "C", readonly=True)
_TOKENS = types.Array(types.int32, 1, "C", readonly=True)
_INDICES = types.Array(types.int64, 1, "C", readonly=True)


@numba.njit(
    [
        types.void(
            _MATRIX,
            _TOKENS,
            _INDICES,
            _INDICES,
            _INDICES,
            _FLOATS,
            _MATRIX,
            types.float32[:, :, ::1],
            types.float32[:, :, ::1],
        )
    ],
    nogil=True,
    cache=True,
)
def cache_shares(
    likeness: FloatArray,
    tokens: npt.NDArray[np.int32],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    flatnesses: FloatArray,
    decays: FloatArray,
    out: FloatArray,
    evidence: FloatArray,
) -> None:
    """What Q windows make of the token after each, for F values of θ and H half-lives.

    Args:
        likeness: cosine of each query and remembered token [Q, N].
        tokens: remembered [N].
        begins: where each query's window begins in `tokens` [Q].
        ends: where it ends [Q].
        targets: the token that follows each query [Q].
        flatnesses: θ [F].
        decays: as `SimilarityDecay` has them [H, window + LANES].
        out: the token's share of the weights [Q, F, H]; written. 0 where the window is empty.
        evidence: their sum [Q, F, H], of which a place just alike has 1; written.
    """
    alike, lanes = np.empty(SEGMENT_TOKENS, np.float32), np.empty(SUM_LANES, np.float32)
    places = np.empty(SEGMENT_TOKENS + 1, np.int64)
    totals, hits = np.empty((2, len(flatnesses), len(decays)), np.float64)
    for q in range(len(targets)):
        totals[:] = 0
        hits[:] = 0
        oldest = decays.shape[1] - SUM_LANES - (ends[q] - begins[q])
        for begin in range(begins[q], ends[q], SEGMENT_TOKENS):
            end = min(begin + SEGMENT_TOKENS, ends[q])
            found = 0
            for n in range(begin, end):
                places[found] = n - begin
                found += tokens[n] == targets[q]
            for f in range(len(flatnesses)):
                size = similarity_weights(likeness[q, begin:end], flatnesses[f], alike)
                for h in range(len(decays)):
                    decay = decays[h, oldest : oldest + size]
                    totals[f, h] += sum_weights(alike[:size], decay, lanes)
                    for number in range(found):
                        place = places[number]
                        hits[f, h] += np.float64(alike[place] * decay[place])
            oldest += SEGMENT_TOKENS
        for f in range(len(flatnesses)):
            for h in range(len(decays)):
                total = totals[f, h]
                out[q, f, h] = hits[f, h] / total if total > 0 else 0.0
                evidence[q, f, h] = total * math.exp(-float(flatnesses[f]))


@numba.njit([types.float64(types.float64, types.float64, types.float64)], nogil=True, cache=True)
def effective_weight(weight: float, evidence: float, prior: float) -> float:
    """λ n / (n + μ): what λ comes to with so much evidence n; 0 without any."""
    return weight * (evidence / (evidence + prior)) if evidence > 0.0 else 0.0


@numba.njit([types.float64(types.float64, types.float64, types.float64)], nogil=True, cache=True)
def mix_log_prob(log_prob: float, share: float, weight: float) -> float:
    """log((1 − λ) p + λ p_cache)."""
    if share <= 0.0:
        return log_prob + math.log1p(-weight)
    return math.log((1.0 - weight) * math.exp(log_prob) + weight * share)


@numba.njit(
    [types.void(_FLOATS, _FLOATS, _FLOATS, types.float64, types.float64, types.float32[::1])],
    nogil=True,
    cache=True,
)
def mix_targets(
    log_probs: FloatArray,
    shares: FloatArray,
    evidence: FloatArray,
    weight: float,
    prior: float,
    out: FloatArray,
) -> None:
    """Log-probabilities [T] mixed with shares and their evidence [T] as `cache_shares` tells them, into `out` [T]."""
    for t in range(len(shares)):
        out[t] = mix_log_prob(log_probs[t], shares[t], effective_weight(weight, evidence[t], prior))


@numba.njit(
    [
        types.void(
            _FLOATS,
            _TOKENS,
            types.float32,
            _FLOATS,
            types.float64,
            types.float64,
            _FLOATS,
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
    decays: FloatArray,
    weight: float,
    prior: float,
    log_probs: FloatArray,
    out: FloatArray,
) -> None:
    """A whole distribution mixed with what its window, not empty, makes probable.

    Args:
        likeness: cosine of each remembered token [N].
        tokens: remembered [N].
        flatness: θ.
        decays: of a full window's tokens, then zeros [window + LANES].
        weight: λ.
        prior: μ.
        log_probs: of every token of the vocabulary [V].
        out: [V]; written.
    """
    alike, lanes = np.empty(SEGMENT_TOKENS, np.float32), np.empty(SUM_LANES, np.float32)
    masses, total = np.zeros(len(log_probs), np.float64), 0.0
    oldest = len(decays) - SUM_LANES - len(tokens)
    for begin in range(0, len(tokens), SEGMENT_TOKENS):
        end = min(begin + SEGMENT_TOKENS, len(tokens))
        size = similarity_weights(likeness[begin:end], flatness, alike)
        decay = decays[oldest + begin : oldest + begin + size]
        total += sum_weights(alike[:size], decay, lanes)
        for n in range(begin, end):
            masses[tokens[n]] += np.float64(alike[n - begin] * decay[n - begin])
    # as `cache_shares` writes evidence and shares
    weight = effective_weight(weight, float(np.float32(total * math.exp(-float(flatness)))), prior)
    for token in range(len(log_probs)):
        share = float(np.float32(masses[token] / total)) if total > 0.0 else 0.0
        out[token] = mix_log_prob(log_probs[token], share, weight)
