"""The softmax whose weights are packed: logits are summed up while they are in the nearest cache."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from models.arrays import FloatArray
from models.neural.elementary import bits_of_float, exp, float_of_bits, greater
from models.neural.output.layer import OutputLayer
from models.neural.output.softmax import Softmax
from models.neural.threads import share_rows
from models.neural.tiled.digits import Digits, room_for, split
from models.neural.tiled.matrix import TOGETHER, multiply_some, pack, packed_once
from models.neural.tiled.tiles import COLUMNS, ROWS
from models.shelf import Shelf

_LOWEST = np.float32(-3e38)
_LOWEST_KEY = np.int32(-(2**31))
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)


class TiledSoftmax(OutputLayer):
    """What `Softmax` is, without a gradient; in a batch, a row's numbers do not depend on the rows beside it.

    Args:
        layer: in single precision on a CPU; it is not changed.
        shelf: where packed weights lie.
    """

    def __init__(self, layer: Softmax, shelf: Shelf) -> None:
        super().__init__()
        self.layer = layer
        bias = (layer.bias + layer.never_predicted).detach().numpy()
        weight = layer.weight.detach().numpy()
        self.matrix = packed_once(shelf, "weight", lambda: pack(weight, bias, fill=-np.inf))

    def log_probs(self, features: Tensor) -> Tensor:
        """Natural-log probabilities [N, V] after vectors [N, E]; minus infinity for `<s>`."""
        if len(features) == 1:  # as long as the weights are read: no tiles are filled
            return self.layer.log_probs(features)
        log_probs = np.empty((len(features), len(self.layer.bias)), np.float32)

        def work(rows: slice) -> None:
            _distribute(self.matrix, _digits(features[rows]), log_probs[rows])

        share_rows(work, len(features))
        return torch.from_numpy(log_probs)

    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [N] of ids [N] after vectors [N, E]."""
        return self.choice_log_probs(features, torch.arange(len(ids)), ids)

    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [C] of ids [C] after vectors [N, E], by number in `rows` [C], never falling."""
        starts = np.searchsorted(rows.numpy(), np.arange(len(features) + 1))
        chosen, log_probs = ids.numpy(), np.empty(len(ids), np.float32)

        def work(some: slice) -> None:
            bounds = starts[some.start : some.stop + 1]
            cut = slice(bounds[0], bounds[-1])
            _choose(self.matrix, _digits(features[some]), bounds - bounds[0], chosen[cut], log_probs[cut])

        share_rows(work, len(features))
        return torch.from_numpy(log_probs)

    def target_logits(self, features: Tensor, ids: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N] of ids [N], at the cost of a dot product each."""
        return self.layer.target_logits(features, ids)

    def start_from_counts(self, counts: Tensor) -> None:
        """Nothing: what is packed is no longer trained."""


def _digits(features: Tensor) -> Digits:
    vectors: FloatArray = features.detach().contiguous().numpy()
    digits = room_for(*vectors.shape)
    split(vectors, digits, 0)
    return digits


@numba.njit(nogil=True, cache=True)
def _choose(matrix: Any, digits: Any, starts: Any, ids: Any, log_probs: Any) -> None:
    """Write log-probabilities [C] of ids [C]; those after vector n, of N, are from starts[n] to below starts[n + 1]."""
    count = len(starts) - 1
    highest, sums = np.full(count, _LOWEST), np.zeros(count, np.float32)
    logits = np.empty((ROWS, TOGETHER * COLUMNS), np.float32)
    blocks = len(matrix.bias) // COLUMNS
    for first in range(0, blocks, TOGETHER):
        last = min(first + TOGETHER, blocks)
        begin, width = first * COLUMNS, (last - first) * COLUMNS
        for row in range(0, count, ROWS):
            end = min(row + ROWS, count)
            multiply_some(matrix, digits, row, first, last, logits[: end - row], 0)
            for number in range(row, end):
                some = logits[number - row, :width]
                for choice in range(starts[number], starts[number + 1]):
                    if begin <= ids[choice] < begin + width:
                        log_probs[choice] = some[ids[choice] - begin]
                _sum_up(some, highest, sums, number)
    for number in range(count):
        log_sum = np.log(sums[number]) + highest[number]
        for choice in range(starts[number], starts[number + 1]):
            log_probs[choice] -= log_sum


@numba.njit(nogil=True, cache=True)
def _distribute(matrix: Any, digits: Any, log_probs: Any) -> None:
    """Write log-probabilities [N, V]."""
    count, size = log_probs.shape
    highest, sums = np.full(count, _LOWEST), np.zeros(count, np.float32)
    logits = np.empty((ROWS, TOGETHER * COLUMNS), np.float32)
    blocks = len(matrix.bias) // COLUMNS
    for first in range(0, blocks, TOGETHER):
        last = min(first + TOGETHER, blocks)
        begin, width = first * COLUMNS, (last - first) * COLUMNS
        for row in range(0, count, ROWS):
            end = min(row + ROWS, count)
            multiply_some(matrix, digits, row, first, last, logits[: end - row], 0)
            for number in range(row, end):
                some = logits[number - row, :width]
                log_probs[number, begin : begin + width] = some[: size - begin]
                _sum_up(some, highest, sums, number)
    for number in range(count):
        log_probs[number] -= np.log(sums[number]) + highest[number]


@numba.njit(nogil=True, cache=True)
def _sum_up(logits: Any, highest: Any, sums: Any, row: Any) -> None:
    """Add the exponentials of some logits, which are written over, to a row's sum relative to the highest."""
    top = greater(highest[row], _largest(logits))
    for place in range(len(logits)):
        logits[place] = exp(logits[place] - top)
    sums[row] = sums[row] * exp(highest[row] - top) + _sum(logits)
    highest[row] = top


@numba.njit(nogil=True, cache=True)
def _largest(values: Any) -> Any:
    """The largest, found as an integer of the same order: the compiler finds the vectors in that only."""
    found = _LOWEST_KEY
    for place in range(len(values)):
        bits = np.int32(bits_of_float(values[place]))
        key = np.int32(bits ^ np.int32((bits >> _SIGN) & _MAGNITUDE))
        found = greater(key, found)
    return float_of_bits(np.uint32(found ^ ((found >> _SIGN) & _MAGNITUDE)))


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def _sum(values: Any) -> Any:
    """The sum, in an order that depends on their number alone."""
    total = np.float32(0)
    for place in range(len(values)):
        total += values[place]
    return total
