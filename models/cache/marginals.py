"""Dynamic marginals: adapt a model's distributions to the frequency of words in the text so far.

Words that occurred more often than expected become more likely, in any context.
Source: Kneser, Peters and Klakow 1997, section 3, here with counts that decay and a Gamma prior of the rates.
"""

import numpy as np
from numba import types

from models.arrays import FloatArray, Int32s, TokenIds
from models.cache.config import MarginalsConfig
from models.cache.kernels import FLOATS, INDICES, MATRIX, SUM_LANES, TOKENS, SimilarityDecay
from models.kernels.compilation import kernel
from models.kernels.math import exp, fold_lanes, log


class DynamicMarginals:
    """Adaptation of distributions to the tokens of a window; see `MarginalsConfig`.

    Args:
        config: see `MarginalsConfig`.
        frequencies: expected frequency of each token of the vocabulary, u [V].
        window: number of tokens.
    """

    def __init__(self, config: MarginalsConfig, frequencies: FloatArray, *, window: int) -> None:
        self.frequencies = np.ascontiguousarray(frequencies, dtype=np.float32)
        self._decays = SimilarityDecay.of([0.0], [config.half_life], window=window).decays[0, :window]
        self._values = np.array([config.exponent, config.prior, config.floor], dtype=np.float32)

    def adapt(self, log_probs: FloatArray, tokens: Int32s, ends: TokenIds) -> FloatArray:
        """Return adapted natural-log probabilities [Q, V].

        Args:
            log_probs: natural-log probabilities at Q positions [Q, V].
            tokens: cached tokens, the newest last [N].
            ends: number of them before each position [Q]; the newest `window` count.
        """
        out = np.empty_like(log_probs)
        _adapt_rows(tokens, ends, self._decays, self.frequencies, self._values, log_probs, out)
        return out


@kernel(types.void(TOKENS, FLOATS, FLOATS, FLOATS, types.float32[::1]))
def _log_factors(
    tokens: Int32s, decays: FloatArray, frequencies: FloatArray, values: FloatArray, out: FloatArray
) -> None:
    """Write the logarithm of each token's factor, β log r, to `out` [V].

    Args:
        tokens: tokens of the window, the newest last [N].
        decays: decay of each token of a full window [at least N].
        frequencies: u [V].
        values: β, m and a [3].
        out: [V]; written.
    """
    out[:] = 0
    total, oldest = np.float32(0), len(decays) - len(tokens)
    for n in range(len(tokens)):
        decay = decays[oldest + n]
        out[tokens[n]] += decay
        total += decay
    exponent, prior, floor = values[0], values[1], values[2]
    for token in range(len(out)):
        expected = total * frequencies[token]
        base = prior * expected + floor
        out[token] = exponent * log((out[token] + base) / (expected + base))


@kernel(types.float32(FLOATS, FLOATS))
def _log_sum(log_probs: FloatArray, log_factors: FloatArray) -> float:
    """Return the log of the sum of products of probabilities and factors, both as logarithms [V]."""
    lanes, size = np.zeros(SUM_LANES, np.float32), len(log_probs)
    whole = size // SUM_LANES * SUM_LANES
    for start in range(0, whole, SUM_LANES):
        for lane in range(SUM_LANES):
            lanes[lane] += exp(log_probs[start + lane] + log_factors[start + lane])
    for rest in range(whole, size):
        lanes[rest - whole] += exp(log_probs[rest] + log_factors[rest])
    total: float = log(fold_lanes(lanes))
    return total


@kernel(types.void(TOKENS, INDICES, FLOATS, FLOATS, FLOATS, MATRIX, types.float32[:, ::1]))
def _adapt_rows(
    tokens: Int32s,
    ends: TokenIds,
    decays: FloatArray,
    frequencies: FloatArray,
    values: FloatArray,
    log_probs: FloatArray,
    out: FloatArray,
) -> None:
    for q in range(len(ends)):
        row = out[q]
        _log_factors(tokens[max(ends[q] - len(decays), 0) : ends[q]], decays, frequencies, values, row)
        total = _log_sum(log_probs[q], row) if ends[q] > 0 else np.float32(0)
        for token in range(len(row)):
            row[token] = (log_probs[q, token] + row[token]) - total
