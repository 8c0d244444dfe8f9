"""Compiled top-k of next words without computing full distributions.

Top-k merges lists of arcs ranked by probability, one per context length. The ranking of states with
many arcs is in the file (`Automaton.ranked_states`); arcs of other states are put into a heap on
demand.
"""

from typing import Any

import numba
import numpy as np
from numba import types

from models.arrays import Float32s, Float64s, Int32s, Int64s, UInt32s, UInt64s
from models.ngram.automaton import LN_10, Automaton
from models.ngram.build import MAX_UNRANKED_ARCS
from models.ngram.scoring import (
    U,
    arc_at,
    automaton_kernel,
    prefetch,
    ranked_index,
    readonly,
    value_at,
    word_at,
    write_suffix_chain,
)

_PREFETCH_DISTANCE = 8
"""Number of ranked arcs to prefetch."""


@numba.njit(nogil=True, forceinline=True)
def _shadowing_level(first_arcs: UInt32s, words: Any, chain: UInt64s, level: int, word: Any) -> Any:
    """Return the shortest longer context with its own arc of the word, or −1."""
    longer = level - 1
    while longer >= 0 and arc_at(first_arcs, words, chain[longer], word) == U(len(words)):
        longer -= 1
    return longer


@numba.njit(nogil=True, forceinline=True)
def _precedes(probs: Any, decoded: Any, first: np.uint32, second: np.uint32) -> np.bool_:
    """True if an arc precedes another of its state, by probability, then word id."""
    prob, other = value_at(probs, decoded, U(first)), value_at(probs, decoded, U(second))
    return np.bool_(prob > other or (prob == other and first < second))


@numba.njit(nogil=True, forceinline=True)
def _sift_down(probs: Any, decoded: Any, heaps: UInt32s, top: Any, position: Any, size: Any) -> None:
    """Move an arc down the heap that starts at `top` until it precedes its children."""
    arc = heaps[top + position]
    while 2 * position + 1 < size:
        child = 2 * position + 1
        if child + 1 < size and _precedes(probs, decoded, heaps[top + child + 1], heaps[top + child]):
            child += 1
        if not _precedes(probs, decoded, heaps[top + child], arc):
            break
        heaps[top + position] = heaps[top + child]
        position = child
    heaps[top + position] = arc


@numba.njit(nogil=True)
def _heapify_arcs(
    first_arcs: Any, probs: Any, decoded: Any, state: np.uint64, heaps: UInt32s, top: Any
) -> Any:
    """Write an unranked state's arcs as a heap from `top` on; return their number."""
    begin = np.int64(first_arcs[state])
    size = np.int64(first_arcs[state + U(1)]) - begin
    for n in range(size):
        heaps[top + n] = begin + n
    # bottom up: O(arcs) (Floyd 1964)
    for position in range(size // 2 - 1, -1, -1):
        _sift_down(probs, decoded, heaps, top, position, size)
    return size


@numba.njit(nogil=True)
def _natural_log_prob(probs: Any, decoded: Any, arc: np.uint64, backoff: float) -> np.float32:
    """Return an arc's log-probability after a back-off, as in `write_distributions`."""
    return np.float32((value_at(probs, decoded, arc) + backoff) * LN_10)


@numba.njit(nogil=True, forceinline=True)
def _prefetch_arc(probs: Any, words: Any, ranked_arcs: UInt32s, position: Any) -> None:
    """Prefetch the arc at a position of `ranked_arcs`, which are scattered."""
    prefetch(probs, U(ranked_arcs[position]))
    prefetch(words, U(ranked_arcs[position]))


@numba.njit(nogil=True, forceinline=True)
def _best_arc(
    ranked_arcs: UInt32s, level: int, heaps: UInt32s, nexts: Int64s, stops: Int64s, missing: np.uint64
) -> Any:
    """Return a level's most probable remaining arc, or A if there is none."""
    if nexts[level] >= stops[level] or stops[level] == 0:
        return missing
    if nexts[level] >= 0:
        return U(ranked_arcs[nexts[level]])
    return U(heaps[level * MAX_UNRANKED_ARCS])


@numba.njit(nogil=True)
def _lower_arc_ties(probs: Any, decoded: Any, arc: np.uint64, backoff: float) -> np.bool_:
    """True if a less probable arc of the state may have the same rounded value."""
    lower = np.nextafter(value_at(probs, decoded, arc), np.float32(-np.inf))
    return np.bool_(np.float32((lower + backoff) * LN_10) == _natural_log_prob(probs, decoded, arc, backoff))


@numba.njit(nogil=True)
def _insert_sorted(ids: Int64s, row: int, begin: int, column: int, word: np.int32) -> None:
    """Insert a word into the ascending ids of a row in [begin, column)."""
    while column > begin and ids[row, column - 1] > word:
        ids[row, column] = ids[row, column - 1]
        column -= 1
    ids[row, column] = word


@numba.njit(nogil=True)
def _fill_with_impossible(
    automaton: Automaton,
    chain: UInt64s,
    backoffs: Float64s,
    depth: int,
    ids: Int64s,
    log_probs: Float32s,
    column: int,
) -> None:
    """Fill a row from `column` on with words of probability 0, by id."""
    first_arcs, words, word = automaton.first_arcs, automaton.words, np.int64(0)
    while column < len(ids):
        level, arc = 0, arc_at(first_arcs, words, chain[0], word)
        while arc == U(len(words)) and level + 1 < depth:
            level += 1
            arc = arc_at(first_arcs, words, chain[level], word)
        value = _natural_log_prob(automaton.log10_probs, automaton.prob_values, arc, backoffs[level])
        if value == -np.inf:
            ids[column], log_probs[column] = word, -np.inf
            column += 1
        word += 1


@automaton_kernel(types.void, readonly("int32"), types.int64[:, ::1], types.float32[:, ::1])
def top_k_words(  # noqa: C901, PLR0912, PLR0915 - one merge
    automaton: Automaton, states: Int32s, ids: Int64s, log_probs: Float32s
) -> None:
    """Write the k most probable words [B, k] in states [B] to `ids`, and their log-probabilities.

    Merges the arcs of the state and its suffixes by descending probability, and skips words that a
    longer context has. Words that tie in single precision are by id, as if the full
    distribution were sorted, so those that tie with the k-th are considered too. k must not
    exceed V.
    """
    order, k, missing = len(automaton.order_starts) - 1, ids.shape[1], U(len(automaton.words))
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    # [order · 128], one heap per level
    heaps = np.empty(order * MAX_UNRANKED_ARCS, np.uint32)
    # local names: reading the tuple would double the loop's cost
    first_arcs, words, ranked = automaton.first_arcs, automaton.words, automaton.ranked_arcs
    probs, decoded = automaton.log10_probs, automaton.prob_values
    # [order]: next index into ranked_arcs and its end by level; or −1 and the heap's size
    nexts, stops = np.empty(order, np.int64), np.empty(order, np.int64)
    # [order]: best remaining arc of each level, and its value
    arcs, values = np.empty(order, np.uint64), np.empty(order, np.float32)
    for row in range(len(states)):
        depth = write_suffix_chain(automaton, states[row], chain, backoffs)
        for level in range(depth):
            rank = ranked_index(automaton, chain[level])
            if rank >= 0:
                nexts[level] = automaton.ranked_starts[rank]
                stops[level] = automaton.ranked_starts[rank + 1]
                for position in range(nexts[level], min(nexts[level] + _PREFETCH_DISTANCE, stops[level])):
                    _prefetch_arc(probs, words, ranked, position)
            else:
                nexts[level] = -1
                stops[level] = _heapify_arcs(
                    first_arcs, probs, decoded, chain[level], heaps, level * MAX_UNRANKED_ARCS
                )
            arcs[level] = _best_arc(ranked, level, heaps, nexts, stops, missing)
            if arcs[level] != missing:
                values[level] = _natural_log_prob(probs, decoded, arcs[level], backoffs[level])
        # column of the next word; first column with the last word's value
        column, begin = 0, 0
        # merge of `depth` sorted lists: at most `order`, so a scan is faster than a heap
        while True:
            best, word = -1, np.int32(0)
            for level in range(depth):
                if arcs[level] == missing or (best >= 0 and values[level] < values[best]):
                    continue
                shown = word_at(words, arcs[level])
                if best < 0 or values[level] > values[best] or shown < word:
                    best, word = level, shown
            if best < 0 or (column == k and values[best] < log_probs[row, k - 1]):
                break
            if values[best] == -np.inf:
                _fill_with_impossible(automaton, chain, backoffs, depth, ids[row], log_probs[row], column)
                break
            if column == k and word > ids[row, k - 1]:
                if not _lower_arc_ties(probs, decoded, arcs[best], backoffs[best]):
                    arcs[best] = missing  # all ties have larger ids
                    continue
            elif _shadowing_level(first_arcs, words, chain, best, word) < 0:
                if column == 0 or values[best] < log_probs[row, column - 1]:
                    begin = column
                _insert_sorted(ids, row, begin, min(column, k - 1), word)
                if column < k:
                    log_probs[row, column] = values[best]
                    column += 1
            if nexts[best] >= 0:
                nexts[best] += 1
                if nexts[best] + _PREFETCH_DISTANCE < stops[best]:
                    _prefetch_arc(probs, words, ranked, nexts[best] + _PREFETCH_DISTANCE)
            else:
                stops[best] -= 1
                top = best * MAX_UNRANKED_ARCS
                heaps[top] = heaps[top + stops[best]]
                _sift_down(probs, decoded, heaps, top, 0, stops[best])
            arcs[best] = _best_arc(ranked, best, heaps, nexts, stops, missing)
            if arcs[best] != missing:
                values[best] = _natural_log_prob(probs, decoded, arcs[best], backoffs[best])
