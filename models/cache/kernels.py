"""Compiled kernels of a cache: cosines, weights of tokens, mixing, dynamic marginals.

The weight of a cached token is exp(θ cos) · 2^(−age / half-life) in single precision. Weights are
summed in lanes within segments that are aligned to the start of the window, and segments in double
precision, the oldest first. Cosines are inner products of unit vectors, summed in sixteen lanes that
are folded by halves; their inner loop is LLVM IR, because BLAS's summation order depends on the
number of vectors. Results are therefore bitwise equal for one row and many, step by step and for
a whole text.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types

from models.arrays import Float64s, FloatArray, Int32s, Int64s, TokenIds
from models.cache.config import MarginalsConfig
from models.kernels.compilation import kernel
from models.kernels.math import (
    FLOAT_VECTOR,
    VECTOR_WIDTH,
    call_llvm,
    codegen,
    exp,
    fold_lanes,
    log,
    procedure,
)

SEGMENT_TOKENS = 2_048
"""Number of tokens of a window per segment sum; a multiple of `SUM_LANES`."""

SUM_LANES = 64
"""Number of lanes of a sum of weights."""

_MAX_LOGIT = 30.0
_SMALLEST_NORMAL = 2.0**-126  # smaller numbers are slow and negligible

_DOUBLES = types.Array(types.float64, 1, "C", readonly=True)
MATRIX = types.Array(types.float32, 2, "C", readonly=True)
FLOATS = types.Array(types.float32, 1, "C", readonly=True)
TOKENS = types.Array(types.int32, 1, "C", readonly=True)
INDICES = types.Array(types.int64, 1, "C", readonly=True)
"""Types of arguments that kernels only read."""

_TILE_SIDE = 4  # queries and keys per tile: its 4 x 4 sums fill the registers
_KEYS_PER_BLOCK = 32  # keys that fit into the L1 cache while all queries are processed


class SimilarityDecay(NamedTuple):
    """F values of θ, and the decay by age for H half-lives.

    Attributes:
        flatnesses: values of θ [F], float32.
        decays: 2^(−age / half-life) for a full window, the oldest first, then `SUM_LANES` zeros
            [H, window + SUM_LANES], float32.
    """

    flatnesses: FloatArray
    decays: FloatArray

    @classmethod
    def of(
        cls, flatnesses: Sequence[float], half_lives: Sequence[float | None], *, window: int
    ) -> "SimilarityDecay":
        """Tabulate the decay of a window.

        Args:
            flatnesses: values of θ [F].
            half_lives: in tokens [H]; None for no decay.
            window: number of cached tokens.
        """
        decays = np.zeros((len(half_lives), window + SUM_LANES), np.float32)
        for row, half_life in zip(decays, half_lives, strict=True):
            _write_decays(np.inf if half_life is None else half_life, row[:window])
        return cls(np.array(flatnesses, np.float32), decays)


@kernel(types.void(types.float64, types.float32[::1]), error_model="numpy")
def _write_decays(half_life: float, decays: FloatArray) -> None:
    """Write 2^(−age / half-life) for the ages N − 1, …, 1, 0 to `decays` [N]; the newest has age 0."""
    for index in range(len(decays)):
        decay = 2.0 ** ((index + 1 - len(decays)) / half_life)
        decays[index] = decay if decay >= _SMALLEST_NORMAL else 0.0


@numba.njit(nogil=True)
def similarity_weights(cosines: Any, flatness: Any, out: Any) -> Any:
    """Write exp(θ cos) of up to `SEGMENT_TOKENS` tokens [N], then zeros.

    Returns:
        The end of the zeros, the next multiple of `SUM_LANES`.
    """
    size = len(cosines)
    for index in range(size):
        out[index] = exp(flatness * cosines[index])
    end = (size + SUM_LANES - 1) // SUM_LANES * SUM_LANES
    out[size:end] = 0
    return end


@numba.njit(nogil=True)
def sum_weights(weights: Any, decays: Any, lanes: Any) -> Any:
    """Return Σ weights[i] · decays[i], a multiple of `SUM_LANES` long, in double precision.

    Args:
        weights: from `similarity_weights` [N].
        decays: decays of the same tokens [N]; entries with a weight of zero are ignored.
        lanes: [SUM_LANES]; overwritten.
    """
    # 64 independent sums: a fixed order of additions, and an inner loop that vectorises
    lanes[:] = 0
    blocks, decay_blocks = weights.reshape(-1, SUM_LANES), decays.reshape(-1, SUM_LANES)
    for block in range(len(blocks)):
        for lane in range(SUM_LANES):
            lanes[lane] += blocks[block, lane] * decay_blocks[block, lane]
    return np.float64(fold_lanes(lanes))


@numba.njit(nogil=True)
def add_masses(tokens: Any, weights: Any, decays: Any, masses: Any) -> Any:
    """Add each token's weight times its decay [N] to its mass [V], unless that is empty."""
    if len(masses) > 0:
        for n in range(len(tokens)):
            masses[tokens[n]] += np.float64(weights[n] * decays[n])


@numba.njit(nogil=True)
def largest_share(tokens: Any, masses: Any, total: Any) -> Any:
    """Return the largest mass [V] of tokens [N] over the total of all; 0 without masses."""
    largest = 0.0
    if len(masses) > 0:
        for token in tokens:
            largest = max(largest, masses[token])
    return largest / total if total > 0.0 else 0.0


@kernel(
    types.void(
        MATRIX,
        TOKENS,
        INDICES,
        INDICES,
        INDICES,
        FLOATS,
        MATRIX,
        *[types.float32[:, :, ::1]] * 2,
        *[types.float64[::1]] * 2,
    )
)
def cache_shares(
    cosines: FloatArray,
    tokens: Int32s,
    begins: Int64s,
    ends: Int64s,
    targets: Int64s,
    flatnesses: FloatArray,
    decays: FloatArray,
    out: FloatArray,
    evidence: FloatArray,
    masses: Float64s,
    largest: Float64s,
) -> None:
    """Write the share of the token after each of Q windows, for F values of θ and H half-lives.

    Args:
        cosines: cosine of each query and cached token [Q, N].
        tokens: cached tokens [N].
        begins: start of each query's window in `tokens` [Q].
        ends: end of each query's window [Q].
        targets: token after each query [Q].
        flatnesses: θ [F].
        decays: see `SimilarityDecay` [H, window + SUM_LANES].
        out: written, share of the token in the weights [Q, F, H]; 0 if the window is empty.
        evidence: written, sum of the weights [Q, F, H]; a token with an equal context adds 1.
        masses: zeros [V], for the largest share with one θ and one half-life; else empty.
        largest: written, largest share of one token [Q]; 0 if the window or `masses` is empty.
    """
    weights, lanes = np.empty(SEGMENT_TOKENS, np.float32), np.empty(SUM_LANES, np.float32)
    matches = np.empty(SEGMENT_TOKENS + 1, np.int64)
    totals, hits = np.empty((2, len(flatnesses), len(decays)), np.float64)
    # a segment's weights [SEGMENT_TOKENS] stay in the nearest cache for all H half-lives
    for q in range(len(targets)):
        totals[:] = 0
        hits[:] = 0
        # column of `decays` for the window's first token
        oldest = decays.shape[1] - SUM_LANES - (ends[q] - begins[q])
        for begin in range(begins[q], ends[q], SEGMENT_TOKENS):
            end = min(begin + SEGMENT_TOKENS, ends[q])
            num_matches = 0
            for n in range(begin, end):
                matches[num_matches] = n - begin
                num_matches += tokens[n] == targets[q]
            for f in range(len(flatnesses)):
                size = similarity_weights(cosines[q, begin:end], flatnesses[f], weights)
                for h in range(len(decays)):
                    decay = decays[h, oldest : oldest + size]
                    totals[f, h] += sum_weights(weights[:size], decay, lanes)
                    for m in range(num_matches):
                        match = matches[m]
                        hits[f, h] += np.float64(weights[match] * decay[match])
                    add_masses(tokens[begin:end], weights, decay, masses)
            oldest += SEGMENT_TOKENS
        for f in range(len(flatnesses)):
            for h in range(len(decays)):
                total = totals[f, h]
                out[q, f, h] = hits[f, h] / total if total > 0 else 0.0
                evidence[q, f, h] = total * math.exp(-float(flatnesses[f]))
        largest[q] = largest_share(tokens[begins[q] : ends[q]], masses, totals[0, 0])
        masses[:] = 0


@kernel(types.float64(_DOUBLES, types.float64, types.float64))
def effective_weight(coefficients: Float64s, evidence: float, largest: float) -> float:
    """Return the weight of the cache; 0 without evidence.

    Args:
        coefficients: λ and μ, for λ n / (n + μ), or the three coefficients of a gate; see `CacheConfig`.
        evidence: n.
        largest: s; ignored without a gate.
    """
    if evidence <= 0.0 or (len(coefficients) == 3 and largest <= 0.0):
        return 0.0
    if len(coefficients) == 2:
        weight: float = coefficients[0] * (evidence / (evidence + coefficients[1]))
        return weight
    exponent = coefficients[0] + coefficients[1] * math.log(evidence) + coefficients[2] * math.log(largest)
    return 1.0 / (1.0 + math.exp(-min(max(exponent, -_MAX_LOGIT), _MAX_LOGIT)))


@kernel(types.float64(types.float64, types.float64, types.float64))
def mix_log_prob(log_prob: float, share: float, weight: float) -> float:
    """Return log((1 − λ) p + λ p_cache)."""
    if share <= 0.0:
        return log_prob + math.log1p(-weight)
    return math.log((1.0 - weight) * math.exp(log_prob) + weight * share)


@kernel(types.void(FLOATS, FLOATS, FLOATS, _DOUBLES, _DOUBLES, types.float32[::1]))
def mix_targets(
    log_probs: FloatArray,
    shares: FloatArray,
    evidence: FloatArray,
    largest: Float64s,
    coefficients: Float64s,
    out: FloatArray,
) -> None:
    """Mix log-probabilities [T] with results of `cache_shares` for one cache [T], into `out` [T].

    `largest` is ignored, and may be empty, if `effective_weight` ignores it.
    """
    for t in range(len(shares)):
        most = largest[t] if len(coefficients) == 3 else 0.0
        out[t] = mix_log_prob(log_probs[t], shares[t], effective_weight(coefficients, evidence[t], most))


@kernel(types.void(FLOATS, TOKENS, types.float32, FLOATS, _DOUBLES, FLOATS, types.float32[::1]))
def mix_row(
    cosines: FloatArray,
    tokens: Int32s,
    flatness: float,
    decays: FloatArray,
    coefficients: Float64s,
    log_probs: FloatArray,
    out: FloatArray,
) -> None:
    """Mix one row's distribution with the distribution of its window, which is not empty.

    Args:
        cosines: cosine of each cached token [N].
        tokens: cached tokens [N].
        flatness: θ.
        decays: decay of each token of a full window, then zeros [window + SUM_LANES].
        coefficients: see `effective_weight`.
        log_probs: log-probability of every token of the vocabulary [V].
        out: [V]; written.
    """
    weights, lanes = np.empty(SEGMENT_TOKENS, np.float32), np.empty(SUM_LANES, np.float32)
    masses, total = np.zeros(len(log_probs), np.float64), 0.0  # masses [V]
    oldest = len(decays) - SUM_LANES - len(tokens)
    for begin in range(0, len(tokens), SEGMENT_TOKENS):
        end = min(begin + SEGMENT_TOKENS, len(tokens))
        size = similarity_weights(cosines[begin:end], flatness, weights)
        decay = decays[oldest + begin : oldest + begin + size]
        total += sum_weights(weights[:size], decay, lanes)
        add_masses(tokens[begin:end], weights, decay, masses)
    # the same rounding as evidence and shares in `cache_shares`
    largest = largest_share(tokens, masses, total) if len(coefficients) == 3 else 0.0
    evidence = float(np.float32(total * math.exp(-float(flatness))))
    weight = effective_weight(coefficients, evidence, largest)
    for token in range(len(log_probs)):
        share = float(np.float32(masses[token] / total)) if total > 0.0 else 0.0
        out[token] = mix_log_prob(log_probs[token], share, weight)


def _shuffle(builder: Any, left: Any, right: Any, lanes: list[int]) -> Any:
    index = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(left, right, index)


def _fold_lanes(builder: Any, sums: list[Any]) -> Any:
    """Sum up to sixteen vectors by halves; return the totals in the lanes of one."""
    width = VECTOR_WIDTH  # number of lanes that one sum still occupies
    while width > 1:
        halves = [
            [lane for lane in range(2 * VECTOR_WIDTH) if (lane % width < width // 2) == lower]
            for lower in (True, False)
        ]
        pairs = zip(sums[::2], sums[1::2], strict=True) if len(sums) > 1 else [(sums[0], sums[0])]
        sums = [
            builder.fadd(*(_shuffle(builder, left, right, half) for half in halves)) for left, right in pairs
        ]
        width //= 2
    return sums[0]


def _tile_intrinsic(rows: int, columns: int) -> Any:
    """Return an intrinsic to write products of `rows` queries and `columns` keys to `out`."""

    @procedure
    def fill(
        builder: Any,
        queries: Any,
        query: Any,
        keys: Any,
        key: Any,
        width: Any,
        out: Any,
        column: Any,
        stride: Any,
    ) -> None:
        index = query.type

        def constant(value: int) -> Any:
            return ir.Constant(index, value)

        def vectors(array: Any, first: Any, count: int) -> list[Any]:
            numbers = [builder.add(first, constant(i)) for i in range(count)]
            return [builder.gep(array, [builder.mul(number, width)]) for number in numbers]

        def lanes(vector: Any, offset: Any) -> Any:
            address = builder.bitcast(builder.gep(vector, [offset]), FLOAT_VECTOR.as_pointer())
            return builder.load(address, align=4)

        query_rows, key_rows = vectors(queries, query, rows), vectors(keys, key, columns)
        steps = builder.udiv(width, constant(VECTOR_WIDTH))
        zeros = ir.Constant(FLOAT_VECTOR, None)
        sums = [codegen.alloca_once_value(builder, zeros) for _ in range(rows * columns)]
        with codegen.for_range(builder, steps, intp=index) as loop:
            offset = builder.mul(loop.index, constant(VECTOR_WIDTH))
            key_lanes = [lanes(key_row, offset) for key_row in key_rows]
            for row, query_row in enumerate(query_rows):
                query_lanes = lanes(query_row, offset)
                row_sums = sums[row * columns : (row + 1) * columns]
                for key_vector, total in zip(key_lanes, row_sums, strict=True):
                    product = call_llvm(builder, "fma", query_lanes, key_vector, builder.load(total))
                    builder.store(product, total)
        totals = _fold_lanes(builder, [builder.load(total) for total in sums])
        # the first product goes to row `query` and column `column` of `out`
        for row in range(rows):
            begin = builder.mul(builder.add(query, constant(row)), stride)
            address = builder.gep(out, [builder.add(begin, column)])
            chosen = _shuffle(builder, totals, totals, list(range(row * columns, (row + 1) * columns)))
            builder.store(chosen, builder.bitcast(address, chosen.type.as_pointer()), align=4)

    return fill


_tile_1x1: Any = _tile_intrinsic(1, 1)
_tile_1x4: Any = _tile_intrinsic(1, _TILE_SIDE)
_tile_4x4: Any = _tile_intrinsic(_TILE_SIDE, _TILE_SIDE)


@kernel(types.void(MATRIX, MATRIX, types.int64, types.float32[:, ::1]))
def inner_products(queries: FloatArray, keys: FloatArray, column: int, out: FloatArray) -> None:
    """Write products of queries [Q, W] and keys [N, W] to `out[:, column : column + N]`.

    If four does not divide a count, the last tile overlaps the previous tile.

    Args:
        queries: W is a multiple of `VECTOR_WIDTH`.
        keys: of the same width.
        column: column of the first key's products in `out`.
        out: [Q, at least column + N]; written.
    """
    rows, count, width, stride = len(queries), len(keys), queries.shape[1], out.shape[1]
    # outer loop over blocks of keys: each is read from memory once, then from the cache
    for begin in range(0, count, _KEYS_PER_BLOCK):
        end = min(begin + _KEYS_PER_BLOCK, count)
        if count < _TILE_SIDE:
            for row in range(rows):
                for key in range(count):
                    _tile_1x1(queries, row, keys, key, width, out, column + key, stride)
            continue
        side = _TILE_SIDE if rows >= _TILE_SIDE else 1
        for number in range(0, rows, side):
            row = min(number, rows - side)
            for first in range(begin, end, _TILE_SIDE):
                key = min(first, count - _TILE_SIDE)
                if side == 1:
                    _tile_1x4(queries, row, keys, key, width, out, column + key, stride)
                else:
                    _tile_4x4(queries, row, keys, key, width, out, column + key, stride)


def padded_width(width: int) -> int:
    """Return the length of unit vectors by feature width: the next multiple of `VECTOR_WIDTH`."""
    return -(-width // VECTOR_WIDTH) * VECTOR_WIDTH


def to_unit_vectors(features: FloatArray) -> FloatArray:
    """Scale vectors [N, W] to length 1, zero-padded to a multiple of `VECTOR_WIDTH`; 0 stays 0.

    Each result depends only on its own features, to the last bit.
    """
    count, width = features.shape
    units = np.zeros((count, padded_width(width)), np.float32)
    _normalise_rows(np.ascontiguousarray(features, np.float32), units)
    return units


@kernel(types.void(MATRIX, types.float32[:, ::1]))
def _normalise_rows(features: FloatArray, units: FloatArray) -> None:
    for row in range(len(features)):
        square = 0.0
        for column in range(features.shape[1]):
            square += np.float64(features[row, column]) * np.float64(features[row, column])
        if square > 0.0:
            inverse = 1.0 / math.sqrt(square)
            for column in range(features.shape[1]):
                units[row, column] = features[row, column] * inverse


class DynamicMarginals:
    """Adaptation of distributions to the words of a window; see `MarginalsConfig`.

    Words that occurred more often than expected become more likely, in any context.

    Args:
        config: see `MarginalsConfig`.
        frequencies: expected frequency of each token of the vocabulary, u [V].
        window: number of tokens.
    """

    def __init__(self, config: MarginalsConfig, frequencies: FloatArray, *, window: int) -> None:
        self.frequencies = np.ascontiguousarray(frequencies, np.float32)
        self._decays = SimilarityDecay.of([0.0], [config.half_life], window=window).decays[0, :window]
        self._values = np.array([config.exponent, config.prior, config.floor], np.float32)

    def adapt(self, log_probs: FloatArray, tokens: Int32s, ends: TokenIds) -> FloatArray:
        """Return adapted log-probabilities [Q, V].

        Args:
            log_probs: log-probabilities at Q positions [Q, V].
            tokens: cached tokens, the newest last [N].
            ends: number of them before each position [Q]; the newest `window` count.
        """
        out = np.empty_like(log_probs)
        _adapt_rows(tokens, ends, self._decays, self.frequencies, self._values, log_probs, out)
        return out


@kernel(types.float32(FLOATS, FLOATS))
def _log_sum(log_probs: FloatArray, log_factors: FloatArray) -> float:
    """Return log Σ p · factor, given the logarithms of both [V]."""
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
    """Write adapted log-probabilities [Q, V] to `out`; see `DynamicMarginals.adapt`.

    Args:
        tokens: cached tokens [N].
        ends: number of them before each position [Q].
        decays: decay of each token of a full window [window].
        frequencies: u [V].
        values: β, m and a [3].
        log_probs: to adapt [Q, V].
        out: written; first the logarithm of each token's factor, β log r.
    """
    exponent, prior, floor = values[0], values[1], values[2]
    for q in range(len(ends)):
        row, begin = out[q], max(ends[q] - len(decays), 0)
        row[:] = 0
        total, oldest = np.float32(0), len(decays) - ends[q]
        for n in range(begin, ends[q]):
            decay = decays[oldest + n]
            row[tokens[n]] += decay
            total += decay
        for token in range(len(row)):
            expected = total * frequencies[token]
            base = prior * expected + floor
            row[token] = exponent * log((row[token] + base) / (expected + base))
        normaliser = _log_sum(log_probs[q], row) if ends[q] > 0 else np.float32(0)
        for token in range(len(row)):
            row[token] = (log_probs[q, token] + row[token]) - normaliser
