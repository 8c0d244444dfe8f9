"""Softmax with packed weights: logits are summed while they are in the nearest cache."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from models.arrays import FloatArray, TokenIds
from models.kernels.log_sum_exp import ROW_LANES
from models.language_model import BLOCK_TOKENS, BlockSums
from models.neural.int8.softmax import LOWEST_LOGIT, accumulate_block_sums, accumulate_exp, log_sum_of_lanes
from models.neural.packed.matrix import Packing, load_or_pack, multiply_some, write
from models.neural.softmax import OutputLayer, Softmax
from models.neural.threads import run_row_slices
from models.tensor_files import PackedWeightCache

_ONE = np.float32(1)


class PackedSoftmax(OutputLayer):
    """A packed `Softmax` without gradients; a row's results do not depend on the rest of the batch.

    Args:
        layer: in single precision on a CPU; it is not changed.
        packing: of the weights.
        weight_cache: cache of packed weights.
    """

    streams_logits = True

    def __init__(self, layer: Softmax, packing: Packing, weight_cache: PackedWeightCache) -> None:
        super().__init__()
        self.layer = layer
        bias = (layer.bias + layer.never_predicted).detach().numpy()
        weight = layer.weight.detach().numpy()
        self.matrix = load_or_pack(
            weight_cache, "weight", packing, lambda: weight, lambda: bias, fill=-np.inf
        )

    @override
    def log_probs(self, features: Tensor) -> Tensor:
        if len(features) < self.matrix.fewest:
            return self.layer.log_probs(features)
        vectors, log_probs = _array(features), np.empty((len(features), len(self.layer.bias)), np.float32)

        def work(rows: slice) -> None:
            _write_log_probs(self.matrix, self._to_buffer(vectors[rows]), self._empty_tile(), log_probs[rows])

        run_row_slices(work, len(features))
        return torch.from_numpy(log_probs)

    @override
    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        return self.choice_log_probs(features, torch.arange(len(ids)), ids)

    @override
    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        starts = np.searchsorted(rows.numpy(), np.arange(len(features) + 1))
        vectors, chosen, log_probs = _array(features), ids.numpy(), np.empty(len(ids), np.float32)

        def work(share: slice) -> None:
            bounds = starts[share.start : share.stop + 1]
            cut, buffer = slice(bounds[0], bounds[-1]), self._to_buffer(vectors[share])
            _score_choices(
                self.matrix, buffer, self._empty_tile(), bounds - bounds[0], chosen[cut], log_probs[cut]
            )

        run_row_slices(work, len(features))
        return torch.from_numpy(log_probs)

    def target_logits(self, features: Tensor, ids: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N] of ids [N], at the cost of a dot product each."""
        return self.layer.target_logits(features, ids)

    def block_sums(self, features: Tensor, temperatures: FloatArray) -> BlockSums:
        """Sums for sampling the next tokens after vectors [N, E], at temperatures [N]."""
        vectors, count = _array(features), len(features)
        highest, log_sums = np.empty(count, np.float32), np.empty(count, np.float32)
        sums = np.empty((count, self.matrix.size // BLOCK_TOKENS), np.float32)
        first = np.empty((count, BLOCK_TOKENS), np.float32)

        def work(share: slice) -> None:
            parts = temperatures[share], highest[share], log_sums[share], sums[share], first[share]
            _write_block_sums(self.matrix, self._to_buffer(vectors[share]), self._empty_tile(), *parts)

        run_row_slices(work, count)
        return BlockSums(log_sums, highest, sums, first, vectors)

    def logits(self, vectors: FloatArray, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """The logits [N, 64] of blocks of tokens [N] after vectors [M, E], rows [N]."""
        logits, apart = np.empty((len(rows), BLOCK_TOKENS), np.float32), self.matrix.apart
        buffer = self.matrix.buffer_for(len(rows) * apart)
        _write_block_logits(self.matrix, buffer, apart, vectors, rows, blocks, logits)
        return logits

    def initialise_from_counts(self, counts: Tensor) -> None:
        """Do nothing: a packed layer is not trained."""

    def _to_buffer(self, vectors: FloatArray) -> Any:
        buffer = self.matrix.buffer_for(len(vectors))
        write(self.matrix, vectors, buffer, 0)
        return buffer

    def _empty_tile(self) -> FloatArray:
        return np.empty(self.matrix.piece, np.float32)


def _array(features: Tensor) -> FloatArray:
    vectors: FloatArray = features.detach().contiguous().numpy()
    return vectors


@numba.njit(nogil=True)  # not cached: numba cannot call a generator from its cache; compiled into its callers
def _logit_blocks(matrix: Any, buffer: Any, tile: Any, count: Any) -> Any:
    """Compute the logits of N vectors in tiles of rows and columns.

    Args:
        matrix: `PackedMatrix`.
        buffer: of the vectors.
        tile: logits of a tile [rows, columns], written over each time.
        count: N.

    Yields:
        The first column, the one after the last, the first vector and the one after the last.
    """
    size, (together, columns) = len(matrix.bias), tile.shape
    # columns outside: a tile of weights stays in the cache for all vectors
    for begin in range(0, size, columns):
        end = min(begin + columns, size)
        for row in range(0, count, together):
            last = min(row + together, count)
            multiply_some(matrix, buffer, row, begin, end, tile[: last - row], 0)
            yield begin, end, row, last


@numba.njit(nogil=True, cache=True)
def _score_choices(matrix: Any, buffer: Any, tile: Any, starts: Any, ids: Any, log_probs: Any) -> None:
    """Write log-probabilities [C] of ids [C]; those after vector n, of N, are from starts[n] to below starts[n + 1]."""
    count = len(starts) - 1
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    for begin, end, row, last in _logit_blocks(matrix, buffer, tile, count):
        for number in range(row, last):
            logits = tile[number - row, : end - begin]
            for choice in range(starts[number], starts[number + 1]):
                if begin <= ids[choice] < end:
                    log_probs[choice] = logits[ids[choice] - begin]
            highest[number] = accumulate_exp(logits, highest[number], lanes[number], tops)
    for number in range(count):
        log_sum = log_sum_of_lanes(lanes[number], highest[number])
        for choice in range(starts[number], starts[number + 1]):
            log_probs[choice] -= log_sum


@numba.njit(nogil=True, cache=True)
def _write_log_probs(matrix: Any, buffer: Any, tile: Any, log_probs: Any) -> None:
    """Write log-probabilities [N, V]."""
    count, num_tokens = log_probs.shape
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    for begin, end, row, last in _logit_blocks(matrix, buffer, tile, count):
        for number in range(row, last):
            logits = tile[number - row, : end - begin]
            log_probs[number, begin:end] = logits[: num_tokens - begin]
            highest[number] = accumulate_exp(logits, highest[number], lanes[number], tops)
    for number in range(count):
        log_probs[number] -= log_sum_of_lanes(lanes[number], highest[number])


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _write_block_sums(
    matrix: Any,
    buffer: Any,
    tile: Any,
    temperatures: Any,
    highest: Any,
    log_sums: Any,
    sums: Any,
    first: Any,
) -> None:
    """Write the arrays of `BlockSums` for N vectors."""
    count = len(temperatures)
    highest[:] = LOWEST_LOGIT
    lanes, tops = np.zeros((count, ROW_LANES), np.float32), np.empty(ROW_LANES, np.float32)
    for begin, end, row, last in _logit_blocks(matrix, buffer, tile, count):
        for number in range(row, last):
            logits, inverse = tile[number - row, : end - begin], _ONE / temperatures[number]
            if begin == 0:
                first[number] = logits[:ROW_LANES]
            block = begin // ROW_LANES
            highest[number] = accumulate_block_sums(
                logits, block, inverse, highest[number], lanes[number], sums[number], tops
            )
    for number in range(count):
        log_sums[number] = log_sum_of_lanes(lanes[number], highest[number])


@numba.njit(nogil=True, cache=True)
def _write_block_logits(
    matrix: Any, buffer: Any, apart: Any, vectors: Any, rows: Any, blocks: Any, logits: Any
) -> None:
    """Write the logits [N, 64] of one block of tokens each [N] after vectors, rows [N].

    Args:
        matrix: `PackedMatrix`.
        buffer: for N vectors at a distance of `apart` rows.
        apart: a multiple of it is the first row of a product.
        vectors: [M, E].
        rows: of them [N].
        blocks: of 64 tokens [N].
        logits: written.
    """
    for index in range(len(rows)):
        row, begin = index * apart, blocks[index] * ROW_LANES
        write(matrix, vectors[rows[index] : rows[index] + 1], buffer, row)
        multiply_some(matrix, buffer, row, begin, begin + ROW_LANES, logits[index : index + 1], 0)
