"""How often each n-gram occurs in each of a few texts, and how many of them texts share.

N-grams are numbered exactly: that of order n by the number of its first n - 1 units and its last one, in a
hash table of the order. Numbers start again nowhere, so one array by number holds the counts of all orders.
The kernels release the interpreter lock.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
from numba import types

IntArray: TypeAlias = npt.NDArray[np.int64]
UnitArray: TypeAlias = npt.NDArray[np.int32]

_FREE = np.int64(-1)
_HASH_MIX = np.uint64(0x9E3779B97F4A7C15)
_UNITS = types.Array(types.int32, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_PLACES_BY_ORDER = types.Array(types.int64, 2, "C", readonly=True)


class NgramCounts(NamedTuple):
    """The n-grams of T texts, of orders 1 to N.

    Attributes:
        grams: the number of each n-gram, once a text; by order, then by text [E].
        counts: how often it occurs there [E].
        starts: where the entries of an order and a text begin, and where those of the order end [N, T + 1].
        num_grams: numbers are below this.
        lengths: units of each text [T].
    """

    grams: UnitArray
    counts: UnitArray
    starts: IntArray
    num_grams: int
    lengths: IntArray

    def totals(self, texts: IntArray) -> IntArray:
        """How many n-grams of each order the texts have, by their numbers [..., N]."""
        totals: IntArray = np.maximum(self.lengths[texts][..., None] - np.arange(len(self.starts)), 0)
        return totals

    def matches(self, texts: IntArray, references: IntArray, groups: IntArray) -> IntArray:
        """N-grams that texts share with groups of references, each as often as one of the group has it.

        Args:
            texts: numbers of texts [C].
            references: numbers of texts, group by group [M].
            groups: where each group begins in `references`, and the end [G + 1].

        Returns:
            Σ min(count in the text, largest count in the group) by order [C, G, N].
        """
        shared = np.empty((len(texts), len(groups) - 1, len(self.starts)), np.int64)
        _match(self.grams, self.counts, self.starts, self.num_grams, texts, references, groups, shared)
        return shared


def count_ngrams(units: UnitArray, lengths: IntArray, order: int) -> NgramCounts:
    """Count the n-grams of some texts, of orders 1 to `order`.

    Args:
        units: the texts' units one after the other, from 0 up [Σ lengths].
        lengths: units of each text [T].
        order: the highest, N.
    """
    ends = np.concatenate(([0], np.cumsum(lengths)))
    grams, counts = np.empty((2, len(units) * order), np.int32)
    starts = np.empty((order, len(lengths) + 1), np.int64)
    num_grams = _count(units, ends, grams, counts, starts)
    entries = int(starts[-1, -1])
    return NgramCounts(grams[:entries], counts[:entries], starts, num_grams, lengths)


def characters(texts: Sequence[str]) -> tuple[UnitArray, IntArray]:
    """Code points of texts one after the other, and how many each has."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.int32)
    return points, np.fromiter(map(len, texts), np.int64, len(texts))


def words(texts: Sequence[Sequence[str]]) -> tuple[UnitArray, IntArray]:
    """Words of texts one after the other, numbered from 0 up, and how many each has."""
    all_words = list(chain.from_iterable(texts))
    distinct = dict.fromkeys(all_words)
    number_of = dict(zip(distinct, range(len(distinct)), strict=True))
    numbers = np.fromiter(map(number_of.__getitem__, all_words), np.int32, len(all_words))
    return numbers, np.fromiter(map(len, texts), np.int64, len(texts))


@numba.njit(
    types.int64(_UNITS, _PLACES, types.int32[::1], types.int32[::1], types.int64[:, ::1]),
    nogil=True,
    cache=True,
)
def _count(units: UnitArray, ends: IntArray, grams: UnitArray, counts: UnitArray, starts: IntArray) -> int:
    """Fill in an `NgramCounts`' arrays for texts that end at `ends`; returns `num_grams`."""
    bits = 1
    while 1 << bits < 2 * len(units):
        bits += 1
    keys, number_of = np.empty(1 << bits, np.int64), np.empty(1 << bits, np.int32)
    shift, wrap = np.uint64(64 - bits), np.int64((1 << bits) - 1)
    num_units = np.int64(1) if len(units) == 0 else np.int64(units.max()) + 1
    beginning_at = np.zeros(len(units), np.int32)  # the (n - 1)-gram that begins at each place
    held = np.zeros(len(units) * len(starts) + 1, np.int32)  # counts of the text under way, by number
    known, entries = 1, 0  # number 0 is the empty n-gram
    for n in range(len(starts)):
        keys[:] = _FREE
        for text in range(len(ends) - 1):
            starts[n, text] = entries
            for place in range(ends[text], ends[text + 1] - n):
                key = np.int64(beginning_at[place]) * num_units + np.int64(units[place + n])
                slot = np.int64((np.uint64(key) * _HASH_MIX) >> shift)
                while keys[slot] not in (_FREE, key):
                    slot = (slot + 1) & wrap
                if keys[slot] == _FREE:
                    keys[slot], number_of[slot] = key, known
                    known += 1
                gram = number_of[slot]
                beginning_at[place] = gram
                if held[gram] == 0:
                    grams[entries] = gram
                    entries += 1
                held[gram] += 1
            for entry in range(starts[n, text], entries):
                counts[entry] = held[grams[entry]]
                held[grams[entry]] = 0
        starts[n, len(ends) - 1] = entries
    return known


@numba.njit(
    types.void(
        _UNITS, _UNITS, _PLACES_BY_ORDER, types.int64, _PLACES, _PLACES, _PLACES, types.int64[:, :, ::1]
    ),
    nogil=True,
    cache=True,
)
def _match(
    grams: UnitArray,
    counts: UnitArray,
    starts: IntArray,
    num_grams: int,
    texts: IntArray,
    references: IntArray,
    groups: IntArray,
    shared: IntArray,
) -> None:
    """Fill in what `NgramCounts.matches` returns."""
    held = np.zeros(num_grams, np.int32)  # the group's counts of the order under way, by number
    for n in range(len(starts)):
        for group in range(len(groups) - 1):
            members = references[groups[group] : groups[group + 1]]
            for member in members:
                for entry in range(starts[n, member], starts[n, member + 1]):
                    held[grams[entry]] = max(held[grams[entry]], counts[entry])
            for row in range(len(texts)):
                total = 0
                for entry in range(starts[n, texts[row]], starts[n, texts[row] + 1]):
                    total += min(counts[entry], held[grams[entry]])
                shared[row, group, n] = total
            for member in members:
                for entry in range(starts[n, member], starts[n, member + 1]):
                    held[grams[entry]] = 0
