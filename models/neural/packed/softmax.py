"""Softmax with packed weights: logits are summed while they are in the nearest cache."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

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
    """What `Softmax` is, without a gradient; in a batch, a row's numbers do not depend on the rows beside it.

    Args:
        layer: in single precision on a CPU; it is not changed.
        packing: how.
        shelf: where packed weights lie.
    """

    streams_logits = True

    def __init__(self, layer: Softmax, packing: Packing, shelf: PackedWeightCache) -> None:
        super().__init__()
        self.layer = layer
        bias = (layer.bias + layer.never_predicted).detach().numpy()
        weight = layer.weight.detach().numpy()
        self.matrix = load_or_pack(shelf, "weight", packing, lambda: weight, lambda: bias, fill=-np.inf)

    def log_probs(self, features: Tensor) -> Tensor:
        """Natural-log probabilities [N, V] after vectors [N, E]; minus infinity for `<s>`."""
        if len(features) < self.matrix.fewest:
            return self.layer.log_probs(features)
        vectors, log_probs = _array(features), np.empty((len(features), len(self.layer.bias)), np.float32)

        def work(rows: slice) -> None:
            _write_log_probs(self.matrix, self._room(vectors[rows]), self._piece(), log_probs[rows])

        run_row_slices(work, len(features))
        return torch.from_numpy(log_probs)

    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [N] of ids [N] after vectors [N, E]."""
        return self.choice_log_probs(features, torch.arange(len(ids)), ids)

    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [C] of ids [C] after vectors [N, E], by number in `rows` [C], never falling."""
        starts = np.searchsorted(rows.numpy(), np.arange(len(features) + 1))
        vectors, chosen, log_probs = _array(features), ids.numpy(), np.empty(len(ids), np.float32)

        def work(some: slice) -> None:
            bounds = starts[some.start : some.stop + 1]
            cut, room = slice(bounds[0], bounds[-1]), self._room(vectors[some])
            _score_choices(self.matrix, room, self._piece(), bounds - bounds[0], chosen[cut], log_probs[cut])

        run_row_slices(work, len(features))
        return torch.from_numpy(log_probs)

    def target_logits(self, features: Tensor, ids: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N] of ids [N], at the cost of a dot product each."""
        return self.layer.target_logits(features, ids)

    def block_sums(self, features: Tensor, temperatures: FloatArray) -> BlockSums:
        """What the next tokens after vectors [N, E] are drawn by, at temperatures [N]."""
        vectors, count = _array(features), len(features)
        highest, log_sums = np.empty(count, np.float32), np.empty(count, np.float32)
        sums = np.empty((count, self.matrix.size // BLOCK_TOKENS), np.float32)
        first = np.empty((count, BLOCK_TOKENS), np.float32)

        def work(some: slice) -> None:
            parts = temperatures[some], highest[some], log_sums[some], sums[some], first[some]
            _write_block_sums(self.matrix, self._room(vectors[some]), self._piece(), *parts)

        run_row_slices(work, count)
        return BlockSums(log_sums, highest, sums, first, vectors)

    def logits(self, vectors: FloatArray, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """The logits [N, 64] of blocks of tokens [N] after vectors [M, E] by number [N]."""
        logits, apart = np.empty((len(rows), BLOCK_TOKENS), np.float32), self.matrix.apart
        room = self.matrix.buffer_for(len(rows) * apart)
        _write_block_logits(self.matrix, room, apart, vectors, rows, blocks, logits)
        return logits

    def initialise_from_counts(self, counts: Tensor) -> None:
        """Nothing: what is packed is no longer trained."""

    def _room(self, vectors: FloatArray) -> Any:
        room = self.matrix.buffer_for(len(vectors))
        write(self.matrix, vectors, room, 0)
        return room

    def _piece(self) -> FloatArray:
        return np.empty(self.matrix.piece, np.float32)


def _array(features: Tensor) -> FloatArray:
    vectors: FloatArray = features.detach().contiguous().numpy()
    return vectors


@numba.njit(nogil=True)  # not cached: numba cannot use a generator it has read; it is part of what uses it
def _logit_blocks(matrix: Any, room: Any, piece: Any, count: Any) -> Any:
    """Compute the logits of N vectors, some of them and some columns at a time.

    Args:
        matrix: `PackedMatrix`.
        room: for the vectors.
        piece: logits, written over each time: a vector a row, from the first column on.
        count: N.

    Yields:
        The first column, the one after the last, the first vector and the one after the last.
    """
    size, (together, columns) = len(matrix.bias), piece.shape
    for begin in range(0, size, columns):
        end = min(begin + columns, size)
        for row in range(0, count, together):
            last = min(row + together, count)
            multiply_some(matrix, room, row, begin, end, piece[: last - row], 0)
            yield begin, end, row, last


@numba.njit(nogil=True, cache=True)
def _score_choices(matrix: Any, room: Any, piece: Any, starts: Any, ids: Any, log_probs: Any) -> None:
    """Write log-probabilities [C] of ids [C]; those after vector n, of N, are from starts[n] to below starts[n + 1]."""
    count = len(starts) - 1
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    for begin, end, row, last in _logit_blocks(matrix, room, piece, count):
        for number in range(row, last):
            logits = piece[number - row, : end - begin]
            for choice in range(starts[number], starts[number + 1]):
                if begin <= ids[choice] < end:
                    log_probs[choice] = logits[ids[choice] - begin]
            highest[number] = accumulate_exp(logits, highest[number], lanes[number], tops)
    for number in range(count):
        log_sum = log_sum_of_lanes(lanes[number], highest[number])
        for choice in range(starts[number], starts[number + 1]):
            log_probs[choice] -= log_sum


@numba.njit(nogil=True, cache=True)
def _write_log_probs(matrix: Any, room: Any, piece: Any, log_probs: Any) -> None:
    """Write log-probabilities [N, V]."""
    count, num_tokens = log_probs.shape
    highest, lanes = np.full(count, LOWEST_LOGIT), np.zeros((count, ROW_LANES), np.float32)
    tops = np.empty(ROW_LANES, np.float32)
    for begin, end, row, last in _logit_blocks(matrix, room, piece, count):
        for number in range(row, last):
            logits = piece[number - row, : end - begin]
            log_probs[number, begin:end] = logits[: num_tokens - begin]
            highest[number] = accumulate_exp(logits, highest[number], lanes[number], tops)
    for number in range(count):
        log_probs[number] -= log_sum_of_lanes(lanes[number], highest[number])


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _write_block_sums(
    matrix: Any,
    room: Any,
    piece: Any,
    temperatures: Any,
    highest: Any,
    log_sums: Any,
    sums: Any,
    first: Any,
) -> None:
    """Write what `Weighed` has of N vectors."""
    count = len(temperatures)
    highest[:] = LOWEST_LOGIT
    lanes, tops = np.zeros((count, ROW_LANES), np.float32), np.empty(ROW_LANES, np.float32)
    for begin, end, row, last in _logit_blocks(matrix, room, piece, count):
        for number in range(row, last):
            logits, inverse = piece[number - row, : end - begin], _ONE / temperatures[number]
            if begin == 0:
                first[number] = logits[:ROW_LANES]
            place = begin // ROW_LANES
            highest[number] = accumulate_block_sums(
                logits, place, inverse, highest[number], lanes[number], sums[number], tops
            )
    for number in range(count):
        log_sums[number] = log_sum_of_lanes(lanes[number], highest[number])


@numba.njit(nogil=True, cache=True)
def _write_block_logits(
    matrix: Any, room: Any, apart: Any, vectors: Any, rows: Any, blocks: Any, logits: Any
) -> None:
    """Write the logits [N, 64] of one block of tokens each [N] after vectors by number [N].

    Args:
        matrix: `PackedMatrix`.
        room: for N vectors that far apart.
        apart: rows from one that products can begin at to the next.
        vectors: [M, E].
        rows: of them [N].
        blocks: of 64 tokens [N].
        logits: written.
    """
    for place in range(len(rows)):
        row, begin = place * apart, blocks[place] * ROW_LANES
        write(matrix, vectors[rows[place] : rows[place] + 1], room, row)
        multiply_some(matrix, room, row, begin, begin + ROW_LANES, logits[place : place + 1], 0)
