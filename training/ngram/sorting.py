"""A text sorted by the words that follow each position, a share of it a core.

Shares are stretches of first words, so that each is sorted by itself and n-grams of two
shares have nothing in common.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.ngram.threads import run_slices
from models.vocabulary import EOS
from training.progress import Progress

IntArray: TypeAlias = npt.NDArray[np.int32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]


class SortedText(NamedTuple):
    """Positions in the order of the N words that start at each; equal words, as they stand in the text.

    Attributes:
        text: words, and N more than there are positions [L + N], int32.
        positions: in order [L], int32.
        shared: how many words each shares with the one before, up to the end of its sentence [L], uint8.
        extents: how many words each has left in its sentence, N at most [L], uint8.
        shares: where the positions of each share begin, and L at the end [M + 1].
    """

    text: IntArray
    positions: IntArray
    shared: ByteArray
    extents: ByteArray
    shares: Sequence[int]


def sort_text(text: IntArray, vocab_size: int, *, order: int, progress: Progress) -> SortedText:
    """Sort by the first `order` words, which every position but the last `order` has.

    Args:
        text: words [L + order], each in [0, V).
        vocab_size: V.
        order: N.
        progress: told of as many steps.
    """
    length = len(text) - order
    bounds, shares = _equal_partitions(text[:length], vocab_size)

    def sort(share: slice) -> IntArray:
        low, high = bounds[share.start], bounds[share.stop]
        positions = members = np.flatnonzero((text[:length] >= low) & (text[:length] < high)).astype(np.int32)
        for offset in reversed(range(order)):
            positions = _sorted_by_word(
                text, positions, offset, _smaller_words(text, members, offset, vocab_size)
            )
            if share.start == 0:
                progress.advance()
        return positions

    positions = np.concatenate(run_slices(sort, list(range(len(bounds)))))
    shared, extents = np.empty(length, np.uint8), np.empty(length, np.uint8)
    run_slices(
        lambda share: _share_prefixes(text, positions, order, share.start, share.stop, shared, extents),
        shares,
    )
    return SortedText(text, positions, shared, extents, shares)


def _equal_partitions(text: IntArray, vocab_size: int) -> tuple[list[int], list[int]]:
    """First words that part the positions in shares of about the same size, one a core; and where those begin."""
    smaller = np.concatenate([[0], np.cumsum(np.bincount(text, minlength=vocab_size))])
    wanted = np.linspace(0, len(text), (os.cpu_count() or 1) + 1)
    bounds = np.unique([0, *np.searchsorted(smaller, wanted[1:-1]), vocab_size])
    return bounds.tolist(), smaller[bounds].tolist()


@numba.njit(nogil=True, cache=True)
def _smaller_words(
    text: IntArray, positions: IntArray, offset: int, vocab_size: int
) -> npt.NDArray[np.int64]:
    """How many positions have a smaller word, by the word `offset` further on [V]."""
    smaller = np.zeros(vocab_size + 1, np.int64)
    for position in positions:
        smaller[text[position + offset] + 1] += 1
    for word in range(vocab_size):
        smaller[word + 1] += smaller[word]
    return smaller


@numba.njit(nogil=True, cache=True)
def _sorted_by_word(
    text: IntArray, positions: IntArray, offset: int, first: npt.NDArray[np.int64]
) -> IntArray:
    """Sort positions, stably, by the word `offset` further on: one pass of a radix sort.

    `first` [V] holds how many words are smaller than each; it is used up.
    """
    out = np.empty_like(positions)
    for position in positions:
        word = text[position + offset]
        out[first[word]] = position
        first[word] += 1
    return out


@numba.njit(nogil=True, cache=True)
def _share_prefixes(
    text: IntArray,
    positions: IntArray,
    order: int,
    begin: int,
    end: int,
    shared: ByteArray,
    extents: ByteArray,
) -> None:
    """What the sorted positions from `begin` to `end` share with the one before, and have left in their sentence."""
    for i in range(begin, end):
        here, before = positions[i], positions[i - 1]
        extent = 1
        while extent < order and text[here + extent - 1] != EOS:
            extent += 1
        common = 0
        while i > begin and common < extent and text[here + common] == text[before + common]:
            common += 1
        shared[i] = common
        extents[i] = extent
