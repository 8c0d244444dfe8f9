"""How often each n-gram occurs in each of a few texts, and how many of them texts share.

N-grams are numbered exactly: that of order n by the number of its first n - 1 units and its last one, in a
hash table of the order. Numbers start again nowhere, so one array by number holds the counts of all orders.
The kernels release the interpreter lock.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.reranking.tuning.steps import Steps

IntArray: TypeAlias = npt.NDArray[np.int64]
UnitArray: TypeAlias = npt.NDArray[np.int32]

_NGRAMS_PER_STEP = 1 << 14
"""Counted in a step, which then takes a millisecond or so; a text of more is counted at once."""

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
        _match_ngrams(self.grams, self.counts, self.starts, self.num_grams, texts, references, groups, shared)
        return shared


def count_ngrams_in_steps(units: UnitArray, lengths: IntArray, order: int) -> Steps[NgramCounts]:
    """Count the n-grams of some texts, of orders 1 to `order`, with a stop after every bounded piece.

    Args:
        units: the texts' units one after the other, from 0 up [Σ lengths].
        lengths: units of each text [T].
        order: the highest, N.
    """
    ends = np.concatenate(([0], np.cumsum(lengths)))
    grams, counts = np.empty((2, len(units) * order), np.int32)
    starts = np.empty((order, len(lengths) + 1), np.int64)
    num_units = int(units.max(initial=0)) + 1
    slots = 1 << (2 * len(units)).bit_length()
    table = np.empty(slots, np.int64), np.empty(slots, np.int32)
    beginning_at = np.zeros(len(units), np.int32)  # the (n - 1)-gram that begins at each place
    held = np.zeros(len(units) * order + 1, np.int32)  # counts of the text under way, by number
    at = np.array(
        [0, 0, 1, 0]
    )  # order and text to go on with; numbers and entries given: 0 is the empty n-gram
    while _count_ngrams(units, num_units, ends, *table, beginning_at, held, at, grams, counts, starts):
        yield
    num_grams, entries = at[2:].tolist()
    return NgramCounts(grams[:entries], counts[:entries], starts, num_grams, lengths)


def character_units(texts: Sequence[str]) -> tuple[UnitArray, IntArray]:
    """Code points of texts one after the other, and how many each has."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.int32)
    return points, np.fromiter(map(len, texts), np.int64, len(texts))


def word_units(texts: Sequence[Sequence[str]]) -> tuple[UnitArray, IntArray]:
    """Words of texts one after the other, numbered from 0 up, and how many each has."""
    number_of: dict[str, int] = {}
    numbers = [number_of.setdefault(word, len(number_of)) for text in texts for word in text]
    return np.array(numbers, np.int32), np.fromiter(map(len, texts), np.int64, len(texts))


@numba.njit(
    types.boolean(
        _UNITS,
        types.int64,
        _PLACES,
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
        types.int64[:, ::1],
    ),
    nogil=True,
    cache=True,
)
def _count_ngrams(
    units: UnitArray,
    num_units: int,
    ends: IntArray,
    keys: IntArray,
    number_of: UnitArray,
    beginning_at: UnitArray,
    held: UnitArray,
    at: IntArray,
    grams: UnitArray,
    counts: UnitArray,
    starts: IntArray,
) -> bool:
    """Fill in some more of an `NgramCounts`' arrays for texts that end at `ends`; whether there is more to do.

    Keys and `number_of` are the hash table of the order under way [a power of two, above twice the units].
    """
    num_texts = len(ends) - 1
    shift, wrap = np.uint64(64), np.int64(len(keys) - 1)
    while np.int64(1) << np.int64(np.uint64(64) - shift) < len(keys):
        shift -= np.uint64(1)
    n, text, known, entries = at[0], at[1], at[2], at[3]
    read = 0
    while n < len(starts) and read < _NGRAMS_PER_STEP:
        if text == 0:
            keys[:] = _FREE
        if text == num_texts:
            starts[n, text] = entries
            n, text = n + 1, 0
            continue
        starts[n, text] = entries
        read += ends[text + 1] - ends[text] + 1
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
        text += 1
    at[0], at[1], at[2], at[3] = n, text, known, entries
    return bool(n < len(starts))


@numba.njit(
    types.void(
        _UNITS, _UNITS, _PLACES_BY_ORDER, types.int64, _PLACES, _PLACES, _PLACES, types.int64[:, :, ::1]
    ),
    nogil=True,
    cache=True,
)
def _match_ngrams(
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
