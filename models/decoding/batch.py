"""Sequences of requests decoded together (an immutable value), and their random numbers.

A row's random number at a position is a function of its seed and the position. It does not depend on
the other rows of a batch, and there is no generator state. Source: SplitMix64, Steele, Lea and Flood
2014.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numba import types

from models.arrays import AnyArray, Float64s, FloatArray, Int32s, Int64s, TokenIds, UInt64s
from models.decoding.rules import KernelRows, Rules, RuleTable, TokenBias
from models.kernels.compilation import kernel

_MASK = (1 << 64) - 1
_GAMMA, _MULTIPLIER_1, _MULTIPLIER_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

_INITIAL_CAPACITY = 16


def row_seed(seed: int, *numbers: int) -> int:
    """Derive a row's seed from the request's and numbers such as indices of prompt and choice."""
    mixed = _mix_bits(seed + _GAMMA)
    for number in numbers:
        mixed = _mix_bits(mixed + (number + 1) * _GAMMA)
    return mixed


def uniform_numbers(seeds: UInt64s, num_drawn: Int64s) -> Float64s:
    """Compute a random number in [0, 1) for each of R rows.

    Args:
        seeds: seeds of the rows [R].
        num_drawn: number of earlier draws of each row [R].
    """
    numbers = np.empty(len(seeds))
    _fill_uniforms(seeds, num_drawn, numbers)
    return numbers


def _mix_bits(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * _MULTIPLIER_1 & _MASK
    value = (value ^ (value >> 27)) * _MULTIPLIER_2 & _MASK
    return value ^ (value >> 31)


@kernel(types.void(types.uint64[::1], types.int64[::1], types.float64[::1]))
def _fill_uniforms(seeds: Any, num_drawn: Any, numbers: Any) -> None:
    for row in range(len(seeds)):
        value = seeds[row] + np.uint64(num_drawn[row] + 1) * np.uint64(_GAMMA)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
        numbers[row] = np.float64((value ^ (value >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBatch:
    """Rows with their rules and generated tokens.

    A batch and its `append` share memory past the end of the shorter one. A row may therefore be
    continued only once, unless it is selected first, which copies.

    Attributes:
        table: rules of the rows.
        seeds: random seeds of the rows [R].
        history: generated tokens [R, at least the maximum length].
        log_probs: the model's own log-probabilities of the tokens, in the same shape.
        lengths: number of generated tokens of each row [R].
        nodes: nodes of each row in its `TokenBias` [R, 2].
    """

    table: RuleTable
    seeds: UInt64s
    history: Int32s
    log_probs: FloatArray
    lengths: Int64s
    nodes: Int64s

    @classmethod
    def of(cls, rules: Sequence[Rules], seeds: Sequence[int] | None = None) -> Self:
        """Create rows without generated tokens.

        Args:
            rules: rules of each row [R].
            seeds: seeds from `row_seed` [R]; None if no row is sampled.
        """
        count = len(rules)
        return cls(
            table=RuleTable(rules),
            seeds=np.array([0] * count if seeds is None else seeds, np.uint64),
            history=np.zeros((count, 0), np.int32),
            log_probs=np.zeros((count, 0), np.float32),
            lengths=np.zeros(count, np.int64),
            nodes=np.tile(np.array(TokenBias.START, np.int64), (count, 1)),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self) -> KernelRows:
        """Return the arrays for the compiled choice of the next token."""
        table, biases = self.table, self.table.biases(self.nodes)
        return KernelRows(table.numbers, *biases, *table.prompt_ids, self.history, self.lengths)

    def last(self, row: int, count: int) -> tuple[list[int], list[float]]:
        """Return a row's last generated tokens, and the model's own log-probabilities of them."""
        end = int(self.lengths[row])
        cut = slice(end - count, end)
        return self.history[row, cut].tolist(), self.log_probs[row, cut].tolist()

    def append(self, tokens: TokenIds, log_probs: FloatArray) -> Self:
        """Append one token to each row.

        Args:
            tokens: ids [R].
            log_probs: the model's own log-probabilities of them [R].
        """
        history, own, everyone = self.history, self.log_probs, np.arange(len(self))
        if self.lengths.max(initial=0) == history.shape[1]:
            width = max(_INITIAL_CAPACITY, 2 * history.shape[1])
            history, own = _pad_columns(history, width), _pad_columns(own, width)
        history[everyone, self.lengths] = tokens
        own[everyone, self.lengths] = log_probs
        nodes = self.nodes
        if self.table.has_sequences:
            rows = zip(self.table.row_rules, nodes.tolist(), tokens.tolist(), strict=True)
            moved = [rules.biases.advance(before, token) for rules, before, token in rows]
            nodes = np.array(moved, np.int64)
        return replace(self, history=history, log_probs=own, lengths=self.lengths + 1, nodes=nodes)

    def select(self, rows: TokenIds) -> Self:
        """Select rows by index; an index may repeat."""
        arrays: tuple[AnyArray, ...] = (self.seeds, self.history, self.log_probs, self.lengths, self.nodes)
        return type(self)(self.table.select(rows), *(array[rows] for array in arrays))

    def concatenate(self, others: Sequence[Self]) -> Self:
        """Join these rows and those of each of `others`."""
        every = [self, *others]
        width = max(batch.history.shape[1] for batch in every)
        return replace(
            self,
            table=RuleTable([rules for batch in every for rules in batch.table.row_rules]),
            seeds=np.concatenate([batch.seeds for batch in every]),
            history=np.concatenate([_pad_columns(batch.history, width) for batch in every]),
            log_probs=np.concatenate([_pad_columns(batch.log_probs, width) for batch in every]),
            lengths=np.concatenate([batch.lengths for batch in every]),
            nodes=np.concatenate([batch.nodes for batch in every]),
        )

    def taken_back(self) -> list[float]:
        """Return the change of each row's total that `TokenBias` takes back [R]."""
        rows = zip(self.table.row_rules, self.nodes.tolist(), strict=True)
        return [rules.biases.taken_back(nodes) for rules, nodes in rows]


def _pad_columns(array: AnyArray, width: int) -> AnyArray:
    """Widen [R, T] to [R, width]."""
    return np.pad(array, ((0, 0), (0, width - array.shape[1])))
