"""Compiled kernels of a cache: cosines, weights of remembered tokens, mixing of probabilities.

The weight of a remembered token is exp(θ cos) · 2^(−age / half-life) in single precision. Weights
are summed over segments that begin where the window does, in lanes, and the segments in double
precision, the oldest token first. Cosines are inner products of unit vectors, summed in sixteen
lanes that are folded by halves; their inner loop is LLVM code, since BLAS sums in an order that
depends on the number of vectors. Results are therefore the same bits for one row and for many, step
by step and for a whole text.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from models.arrays import FloatArray
from models.kernels.math import exp

SEGMENT_TOKENS = 2_048
"""Tokens of a window that are weighed together; a multiple of `LANES`."""

SUM_LANES = 64
"""Weights that are summed side by side."""

_SMALLEST_NORMAL = 2.0**-126  # below it, numbers are slow and say nothing


class SimilarityDecay(NamedTuple):
    """F values of θ and H half-lives, and what each half-life leaves of a token.

    Attributes:
        flatnesses: values of θ [F], float32.
        decays: 2^(−age / half-life) of the tokens in a full window, the oldest first, then `LANES` zeros
            [H, window + LANES], float32.
    """

    flatnesses: FloatArray
    decays: FloatArray

    @classmethod
    def of(
        cls, flatnesses: Sequence[float], half_lives: Sequence[float | None], *, window: int
    ) -> "SimilarityDecay":
        """The weighing of the last tokens.

        Args:
            flatnesses: values of θ [F].
            half_lives: in tokens [H]; None where nothing is forgotten.
            window: how many tokens are remembered.
        """
        decays = np.zeros((len(half_lives), window + SUM_LANES), dtype=np.float32)
        for row, half_life in zip(decays, half_lives, strict=True):
            _write_decays(np.inf if half_life is None else half_life, row[:window])
        return cls(np.array(flatnesses, dtype=np.float32), decays)


@numba.njit([types.void(types.float64, types.float32[::1])], nogil=True, cache=True, error_model="numpy")
def _write_decays(half_life: float, decays: FloatArray) -> None:
    """Write 2^(−age / half-life) for the ages N − 1, …, 1, 0 into [N]; the newest token has age 0."""
    for place in range(len(decays)):
        decay = 2.0 ** ((place + 1 - len(decays)) / half_life)
        decays[place] = decay if decay >= _SMALLEST_NORMAL else 0.0


@numba.njit(nogil=True, cache=True)
def similarity_weights(likeness: Any, flatness: Any, out: Any) -> Any:
    """Write exp(θ cos) of up to `SEGMENT_TOKENS` tokens [N], then zeros.

    Returns:
        Where the zeros end, the next multiple of `LANES`.
    """
    size = len(likeness)
    for place in range(size):
        out[place] = exp(flatness * likeness[place])
    end = (size + SUM_LANES - 1) // SUM_LANES * SUM_LANES
    out[size:end] = 0
    return end


@numba.njit(nogil=True, cache=True)
def sum_weights(alike: Any, decays: Any, lanes: Any) -> Any:
    """The sum of alike[i] · decays[i] over as many as a multiple of `LANES`, in double precision.

    Args:
        alike: what `similarity_weights` wrote [N].
        decays: of the same tokens [N]; what stands beside zeros does not count.
        lanes: [LANES]; written over.
    """
    lanes[:] = 0
    some, others = alike.reshape(-1, SUM_LANES), decays.reshape(-1, SUM_LANES)
    for block in range(len(some)):
        for lane in range(SUM_LANES):
            lanes[lane] += some[block, lane] * others[block, lane]
    width = SUM_LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return np.float64(lanes[0])


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


VECTOR_LANES = 16
"""What the vectors' width must be a multiple of."""

_TILE_SIDE = 4  # queries and keys that meet at once: their products' sums fill the registers
_KEYS_PER_BLOCK = 32  # keys that stay near while all queries meet them

_codegen: Any = _cgutils
_LANE_VECTOR = ir.VectorType(ir.FloatType(), VECTOR_LANES)
_FMA_TYPE = ir.FunctionType(_LANE_VECTOR, [_LANE_VECTOR] * 3)
_ROWS = types.Array(types.float32, 2, "C", readonly=True)


def _shuffle(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    index = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
    return builder.shuffle_vector(one, other, index)


def _fold_lanes(builder: Any, sums: list[Any]) -> Any:
    """The totals of up to sixteen vectors of lanes, side by side in one vector."""
    width = VECTOR_LANES  # of what a sum takes in a vector, so far
    while width > 1:
        halves = [
            [place for place in range(2 * VECTOR_LANES) if (place % width < width // 2) == lower]
            for lower in (True, False)
        ]
        pairs = zip(sums[::2], sums[1::2], strict=True) if len(sums) > 1 else [(sums[0], sums[0])]
        sums = [
            builder.fadd(*(_shuffle(builder, one, other, half) for half in halves)) for one, other in pairs
        ]
        width //= 2
    return sums[0]


def _tile_intrinsic(rows: int, columns: int) -> Any:
    """An intrinsic that writes the products of some queries with some keys into `out`."""

    @intrinsic
    def fill(
        _typing_context: Any, queries: Any, query: Any, keys: Any, key: Any, out: Any, column: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            index = arguments[1].type
            fused = _codegen.get_or_insert_function(builder.module, _FMA_TYPE, "llvm.fma.v16f32")

            def constant(value: int) -> Any:
                return ir.Constant(index, value)

            def vectors(position: int, count: int) -> list[Any]:
                array = context.make_array(signature.args[position])(context, builder, arguments[position])
                width = builder.extract_value(array.shape, 1)
                numbers = [builder.add(arguments[position + 1], constant(i)) for i in range(count)]
                return [builder.gep(array.data, [builder.mul(number, width)]) for number in numbers]

            def lanes(vector: Any, offset: Any) -> Any:
                place = builder.bitcast(builder.gep(vector, [offset]), _LANE_VECTOR.as_pointer())
                return builder.load(place, align=4)

            some, others = vectors(0, rows), vectors(2, columns)
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            steps = builder.udiv(builder.extract_value(array.shape, 1), constant(VECTOR_LANES))
            sums = [
                _codegen.alloca_once_value(builder, ir.Constant(_LANE_VECTOR, None))
                for _ in range(rows * columns)
            ]
            with _codegen.for_range(builder, steps, intp=index) as loop:
                offset = builder.mul(loop.index, constant(VECTOR_LANES))
                met = [lanes(other, offset) for other in others]
                for row, one in enumerate(some):
                    here = lanes(one, offset)
                    for there, total in zip(met, sums[row * columns : (row + 1) * columns], strict=True):
                        builder.store(builder.call(fused, [here, there, builder.load(total)]), total)
            totals = _fold_lanes(builder, [builder.load(total) for total in sums])
            # the first product's place in `out` is told as its row, the query's, and its column
            target = context.make_array(signature.args[4])(context, builder, arguments[4])
            stride = builder.extract_value(target.shape, 1)
            for row in range(rows):
                begin = builder.mul(builder.add(arguments[1], constant(row)), stride)
                place = builder.gep(target.data, [builder.add(begin, arguments[5])])
                chosen = _shuffle(builder, totals, totals, list(range(row * columns, (row + 1) * columns)))
                builder.store(chosen, builder.bitcast(place, chosen.type.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(queries, query, keys, key, out, column), generate

    return fill


_tile_1x1: Any = _tile_intrinsic(1, 1)
_tile_1x4: Any = _tile_intrinsic(1, _TILE_SIDE)
_tile_4x4: Any = _tile_intrinsic(_TILE_SIDE, _TILE_SIDE)


@numba.njit([types.void(_ROWS, _ROWS, types.int64, types.float32[:, ::1])], nogil=True, cache=True)
def inner_products(queries: FloatArray, keys: FloatArray, column: int, out: FloatArray) -> None:
    """Inner products of queries [Q, W] and keys [N, W], into `out[:, column : column + N]`.

    Where four do not divide what there is, the last four are computed from the end: some of them twice.

    Args:
        queries: W is a multiple of `LANES`.
        keys: of the same width.
        column: where in `out` the first key's products are.
        out: [Q, at least column + N]; written.
    """
    rows, count = len(queries), len(keys)
    for begin in range(0, count, _KEYS_PER_BLOCK):
        end = min(begin + _KEYS_PER_BLOCK, count)
        if count < _TILE_SIDE:
            for row in range(rows):
                for key in range(count):
                    _tile_1x1(queries, row, keys, key, out, column + key)
        elif rows < _TILE_SIDE:
            for row in range(rows):
                for first in range(begin, end, _TILE_SIDE):
                    key = min(first, count - _TILE_SIDE)
                    _tile_1x4(queries, row, keys, key, out, column + key)
        else:
            for number in range(0, rows, _TILE_SIDE):
                row = min(number, rows - _TILE_SIDE)
                for first in range(begin, end, _TILE_SIDE):
                    key = min(first, count - _TILE_SIDE)
                    _tile_4x4(queries, row, keys, key, out, column + key)


_FEATURES = types.Array(types.float32, 2, "C", readonly=True)


def padded_width(width: int) -> int:
    """Numbers in a unit vector of features of a width: the next multiple of `LANES`."""
    return -(-width // VECTOR_LANES) * VECTOR_LANES


def to_unit_vectors(features: FloatArray) -> FloatArray:
    """Vectors [N, W] at length 1, with zeros behind up to a multiple of `LANES`; what has no length stays zero.

    Each depends on its own features alone, to the last bit.
    """
    count, width = features.shape
    units = np.zeros((count, padded_width(width)), dtype=np.float32)
    _normalise_rows(np.ascontiguousarray(features, dtype=np.float32), units)
    return units


@numba.njit([types.void(_FEATURES, types.float32[:, ::1])], nogil=True, cache=True)
def _normalise_rows(features: FloatArray, units: FloatArray) -> None:
    for row in range(len(features)):
        square = 0.0
        for place in range(features.shape[1]):
            square += np.float64(features[row, place]) * np.float64(features[row, place])
        if square > 0.0:
            inverse = 1.0 / math.sqrt(square)
            for place in range(features.shape[1]):
                units[row, place] = features[row, place] * inverse
