"""Int8 output layers: softmax over the full vocabulary, adaptive softmax, their kernels.

Logits are summed while in the processor's cache. Sampling stores no full distribution: it
computes sums of blocks of 64 tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numba import types
from typing_extensions import override

from models.arrays import FloatArray, TokenIds
from models.kernels.compilation import kernel
from models.kernels.log_sum_exp import ROW_LANES, add_exp_in_lanes, block_sums_in_lanes, max_in_lanes
from models.kernels.math import copy_values, exp, fold_lanes, greater
from models.kernels.threads import run_row_slices
from models.language_model import BLOCK_TOKENS, BOS, BlockSums
from models.neural.config import NetworkConfig
from models.neural.constants import ROWS_PER_PRODUCT
from models.neural.int8.matrix import (
    FLOATS,
    FLOATS_2D,
    IDS,
    INT8_MATRIX_TYPE,
    INT8_ROWS_TYPE,
    ROW_PADDING,
    SPARE_ROWS,
    Int8Linear,
    Int8Matrix,
    Int8Rows,
    Parameters,
    multiply_blocks,
    multiply_row_pairs,
    multiply_rows,
    pad_bias,
    quantise_rows,
    take_rows,
    zero_int8_rows,
)

LOWEST_LOGIT = np.float32(-3e38)
_ZERO, _ONE_ROW = np.int64(0), np.int64(1)  # numba would compile a version per literal

BLOCKS_PER_PASS = 16
"""Number of 64-token blocks per pass: logits stay in the cache until summed."""

_ONE = np.float32(1)


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, types.int64, FLOATS_2D, FLOATS))
def write_logits(matrix: Any, bias: Any, rows: Any, first: Any, logits: Any, log_sums: Any) -> None:
    """Write the logits of rows and their log-sum-exp.

    Args:
        matrix: `Int8Matrix` of V rows.
        bias: [V rounded up], float32; minus infinity for tokens that are never predicted.
        rows: `Int8Rows`.
        first: index of the first of the N rows.
        logits: written, [N, V rounded up].
        log_sums: written, [N].
    """
    count = len(logits)
    # running maxima [N] and sums in lanes [N, 64]: one pass reads each logit once
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        multiply_blocks(matrix, bias, rows, first, count, begin, end, logits, begin * ROW_LANES)
        for row in range(count):
            part = logits[row, begin * ROW_LANES : end * ROW_LANES]
            highest[row] = accumulate_exp(part, highest[row], lanes[row], tops)
    for row in range(count):
        log_sums[row] = log_sum_of_lanes(lanes[row], highest[row])


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, types.int64, IDS, FLOATS))
def score_targets(matrix: Any, bias: Any, rows: Any, first: Any, ids: Any, log_probs: Any) -> None:
    """Write log-probabilities [N] of ids [N] after rows from `first` on; see `write_logits`."""
    count = len(ids)
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    logits = np.empty((count, BLOCKS_PER_PASS * ROW_LANES + ROW_PADDING), np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        size = (end - begin) * ROW_LANES
        multiply_blocks(matrix, bias, rows, first, count, begin, end, logits, _ZERO)
        for row in range(count):
            highest[row] = accumulate_exp(logits[row, :size], highest[row], lanes[row], tops)
            column = ids[row] - begin * ROW_LANES
            if 0 <= column < size:
                log_probs[row] = logits[row, column]
    for row in range(count):
        log_probs[row] -= log_sum_of_lanes(lanes[row], highest[row])


@numba.njit(nogil=True)
def accumulate_exp(logits: Any, highest: Any, lanes: Any, tops: Any) -> Any:
    """Add exp(logit - highest) of a multiple of 64 logits to sums in 64 lanes.

    The rounding depends on a row's segments, so use always the same. `tops` is scratch.

    Returns:
        The new highest logit, to which the lanes are rescaled.
    """
    top = max_logit(logits, highest, tops)
    if top > highest:
        _scale(lanes, exp(highest - top))
    add_exp_in_lanes(logits, len(logits), top, lanes)
    return top


@numba.njit(nogil=True)
def max_logit(logits: Any, highest: Any, tops: Any) -> Any:
    """Return the maximum of `highest` and 64 n logits; `tops` [64] is scratch."""
    for lane in range(ROW_LANES):
        tops[lane] = highest
    max_in_lanes(logits, len(logits), tops)
    for lane in range(32):  # constant bounds, so the compiler unrolls these loops
        tops[lane] = greater(tops[lane], tops[lane + 32])
    for lane in range(16):
        tops[lane] = greater(tops[lane], tops[lane + 16])
    for lane in range(8):
        tops[lane] = greater(tops[lane], tops[lane + 8])
    for lane in range(8):
        highest = greater(highest, tops[lane])
    return highest


@numba.njit(nogil=True)
def log_sum_of_lanes(lanes: Any, highest: Any) -> Any:
    """Return the log-sum-exp from 64 lanes, overwritten, and the highest logit."""
    return np.log(fold_lanes(lanes)) + highest


@kernel(
    types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, types.int64, *[FLOATS] * 3, *[FLOATS_2D] * 2),
    error_model="numpy",
)
def write_block_sums(
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
    """Write block sums of rows from `start` on, no full distribution; see `write_logits`.

    Args:
        matrix: `Int8Matrix` of V rows.
        bias: [V rounded up], float32.
        rows: `Int8Rows`.
        start: index of the first of the N rows.
        temperatures: [N], float32, above 0.
        highest: written, the highest logit of each row [N].
        log_sums: written, log-sum-exp of the logits [N].
        sums: written, sum of exp((logit - highest) / temperature) of each block of 64 [N, V / 64 rounded up].
        first: written, the logits of the first block [N, 64].
    """
    count = len(temperatures)
    highest[:] = LOWEST_LOGIT
    lanes, scratch = np.zeros((count, ROW_LANES), np.float32), np.empty(ROW_LANES, np.float32)
    logits = np.empty((count, BLOCKS_PER_PASS * ROW_LANES + ROW_PADDING), np.float32)
    for begin in range(0, len(matrix.weights), BLOCKS_PER_PASS):
        end = min(begin + BLOCKS_PER_PASS, len(matrix.weights))
        multiply_blocks(matrix, bias, rows, start, count, begin, end, logits, _ZERO)
        for row in range(count):
            if begin == 0:
                copy_values(logits[row, :ROW_LANES], first[row])
            part, inverse = logits[row, : (end - begin) * ROW_LANES], _ONE / temperatures[row]
            top = max_logit(part, highest[row], scratch)
            if top > highest[row]:
                _scale(lanes[row], exp(highest[row] - top))
                _scale(sums[row, :begin], exp((highest[row] - top) * inverse))
                highest[row] = top
            block_sums_in_lanes(part, len(part), top, inverse, lanes[row], sums[row, begin:end])
    for row in range(count):
        log_sums[row] = log_sum_of_lanes(lanes[row], highest[row])


@kernel(types.void(INT8_MATRIX_TYPE, FLOATS, INT8_ROWS_TYPE, IDS, IDS, FLOATS_2D))
def write_block_logits(matrix: Any, bias: Any, rows: Any, numbers: Any, blocks: Any, logits: Any) -> None:
    """Write the logits [N, 64] of N pairs of a row's number [N] and a block of tokens [N]."""
    for index in range(len(numbers)):
        block = blocks[index]
        multiply_blocks(
            matrix, bias, rows, numbers[index], _ONE_ROW, block, block + 1, logits[index : index + 1], _ZERO
        )


@numba.njit(nogil=True)
def _scale(values: Any, factor: Any) -> None:
    for index in range(len(values)):
        values[index] *= factor


class Int8Output(ABC):
    """Layer from vectors to distributions over V tokens, each by its row only."""

    @abstractmethod
    def log_probs(self, features: Int8Rows) -> FloatArray:
        """Return log-probabilities [N, V] after vectors [N, E]."""

    @abstractmethod
    def target_log_probs(self, features: Int8Rows, ids: TokenIds) -> FloatArray:
        """Return log-probabilities [N] of ids [N] after vectors [N, E]."""

    def choice_log_probs(self, features: Int8Rows, rows: TokenIds, ids: TokenIds) -> FloatArray:
        """Return log-probabilities [C] of ids [C] after vectors [N, E], by ascending index `rows` [C]."""
        return self.log_probs(features)[rows, ids]

    def target_logits(self, features: Int8Rows, ids: TokenIds) -> FloatArray:
        """Return unnormalised log-probabilities [N] of ids [N], if possible without a sum over V."""
        return self.target_log_probs(features, ids)

    def block_sums(self, features: Int8Rows, temperatures: FloatArray) -> BlockSums:
        """Return sums after vectors [N, E] at temperatures [N]; see `BlockSampler`."""
        log_probs = self.log_probs(features)
        padding = -log_probs.shape[1] % BLOCK_TOKENS
        log_probs = np.pad(log_probs, ((0, 0), (0, padding)), constant_values=-np.inf)
        highest = log_probs.max(axis=1)
        weights = np.exp((log_probs - highest[:, None]) / temperatures[:, None])
        sums = weights.reshape(len(weights), -1, BLOCK_TOKENS).sum(axis=2)
        first = log_probs[:, :BLOCK_TOKENS].copy()
        return BlockSums(np.zeros_like(highest), highest, sums, first, log_probs)

    def block_logits(self, features: Any, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """Return logits [N, 64] of blocks of tokens [N] after rows [N] of `block_sums`' features."""
        logits: FloatArray = features.reshape(len(features), -1, BLOCK_TOKENS)[rows, blocks]
        return logits


class Int8Softmax(Int8Output):
    """`Softmax` in int8.

    Args:
        matrix: vectors of the tokens.
        bias: biases of the tokens [V].
    """

    def __init__(self, matrix: Int8Matrix, bias: FloatArray) -> None:
        self.vocab_size = len(bias)
        self.matrix, self.bias = matrix, pad_bias(bias)  # padding is never predicted
        self.bias[BOS] = -np.inf

    @override
    def log_probs(self, features: Int8Rows) -> FloatArray:
        return _log_softmax(Int8Linear(self.matrix, self.bias, self.vocab_size), features)

    @override
    def target_log_probs(self, features: Int8Rows, ids: TokenIds) -> FloatArray:
        log_probs = np.empty(len(ids), np.float32)
        for cut in row_slices(slice(0, len(ids))):
            score_targets(self.matrix, self.bias, features, cut.start, ids[cut], log_probs[cut])
        return log_probs

    @override
    def choice_log_probs(self, features: Int8Rows, rows: TokenIds, ids: TokenIds) -> FloatArray:
        log_probs = np.empty(len(ids), np.float32)
        for cut in row_slices(slice(0, num_rows(features))):
            size = cut.stop - cut.start
            logits, log_sums = np.empty((size, len(self.bias)), np.float32), np.empty(size, np.float32)
            write_logits(self.matrix, self.bias, features, cut.start, logits, log_sums)
            first, end = np.searchsorted(rows, [cut.start, cut.stop])
            here = rows[first:end] - cut.start
            log_probs[first:end] = logits[here, ids[first:end]] - log_sums[here]
        return log_probs

    @override
    def target_logits(self, features: Int8Rows, ids: TokenIds) -> FloatArray:
        logits = np.empty(len(ids), np.float32)
        multiply_row_pairs(self.matrix, self.bias, features, ids, logits)
        return logits

    @override
    def block_sums(self, features: Int8Rows, temperatures: FloatArray) -> BlockSums:
        count = num_rows(features)
        highest, log_sums = np.empty(count, np.float32), np.empty(count, np.float32)
        sums = np.empty((count, len(self.bias) // BLOCK_TOKENS), np.float32)
        first = np.empty((count, BLOCK_TOKENS), np.float32)

        def work(share: slice) -> None:
            for cut in row_slices(share):
                parts = temperatures[cut], highest[cut], log_sums[cut], sums[cut], first[cut]
                write_block_sums(self.matrix, self.bias, features, cut.start, *parts)

        run_row_slices(work, count)
        return BlockSums(log_sums, highest, sums, first, features)

    @override
    def block_logits(self, features: Any, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        logits = np.empty((len(rows), BLOCK_TOKENS), np.float32)
        write_block_logits(self.matrix, self.bias, features, rows, blocks, logits)
        return logits


class Int8AdaptiveSoftmax(Int8Output):
    """`AdaptiveSoftmax` in int8."""

    def __init__(self, config: NetworkConfig, vocab_size: int, parameters: Parameters) -> None:
        vectors, output = token_clusters(config, parameters), parameters.part("output")
        self._rank = vectors["rank"].copy()
        self._bounds = (0, *config.cutoffs, vocab_size)
        bias = output["biases.0"].copy()
        bias[0] = -np.inf  # the rank of <s>, which is never predicted
        head = output.matrix("head", lambda: np.concatenate([vectors["tables.0"], output["clusters"]]))
        self._head = Int8Linear(head, pad_bias(bias), len(bias))
        tails = range(1, len(config.cutoffs) + 1)
        self._narrow = [vectors.linear(f"projections.{tail - 1}") for tail in tails]
        self._inside = [vectors.linear(f"tables.{tail}", output[f"biases.{tail}"]) for tail in tails]

    @override
    def log_probs(self, features: Int8Rows) -> FloatArray:
        head, size = _log_softmax(self._head, features), self._bounds[1]
        tails = [
            self._log_probs_inside(tail, features) + head[:, size + tail, None]
            for tail in range(len(self._inside))
        ]
        return np.concatenate([head[:, :size], *tails], axis=1).take(self._rank, axis=1)

    @override
    def target_log_probs(self, features: Int8Rows, ids: TokenIds) -> FloatArray:
        ranks, size = self._rank[ids], self._bounds[1]
        tails = np.searchsorted(self._bounds[1:-1], ranks, side="right") - 1  # -1 for the head's tokens
        head = _log_softmax(self._head, features)
        log_probs = head[np.arange(len(ids)), np.where(tails < 0, ranks, size + tails)]
        for tail in range(len(self._inside)):
            rows = np.flatnonzero(tails == tail)
            if rows.size:
                inside = self._log_probs_inside(tail, take_rows(features, rows))
                log_probs[rows] += inside[np.arange(len(rows)), ranks[rows] - self._bounds[tail + 1]]
        return log_probs

    def _log_probs_inside(self, tail: int, features: Int8Rows) -> FloatArray:
        """Return log-probabilities [N, Vᵢ] of a cluster's tokens, given the cluster."""
        return _log_softmax(self._inside[tail], to_int8_rows(multiply(self._narrow[tail], features)))


def token_clusters(config: NetworkConfig, parameters: Parameters) -> Parameters:
    """Return the clusters of token vectors of an adaptive softmax."""
    return parameters.part("embedding" if config.tied else "output.vectors")


def _log_softmax(layer: Int8Linear, rows: Int8Rows) -> FloatArray:
    """Return the log-softmax [N, O] of a layer's products with N rows."""
    count = num_rows(rows)
    logits, log_sums = np.empty((count, len(layer.bias)), np.float32), np.empty(count, np.float32)

    def work(share: slice) -> None:
        for cut in row_slices(share):
            write_logits(layer.matrix, layer.bias, rows, cut.start, logits[cut], log_sums[cut])

    run_row_slices(work, count)
    if len(layer.bias) != layer.size:
        logits = logits[:, : layer.size].copy()
    logits -= log_sums[:, None]
    return logits


def row_slices(rows: slice) -> Iterator[slice]:
    """Yield slices of at most `ROWS_PER_PRODUCT` rows."""
    for start in range(rows.start, rows.stop, ROWS_PER_PRODUCT):
        yield slice(start, min(start + ROWS_PER_PRODUCT, rows.stop))


def num_rows(rows: Int8Rows) -> int:
    """Number of rows, without spare rows."""
    return len(rows.values) - SPARE_ROWS


def to_int8_rows(vectors: FloatArray) -> Int8Rows:
    """Quantise vectors [N, W]."""
    rows = zero_int8_rows(*vectors.shape)
    quantise_rows(np.ascontiguousarray(vectors), rows, 0)
    return rows


def multiply(layer: Int8Linear, rows: Int8Rows, *, first: int = 0) -> FloatArray:
    """Return the products [N, O] of a layer with N rows from `first` on, plus its bias."""
    products = np.empty((num_rows(rows) - first, len(layer.bias)), np.float32)
    multiply_rows(layer.matrix, layer.bias, rows, first, len(products), products)
    return products[:, : layer.size]
