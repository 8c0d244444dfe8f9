"""Compiled work on whole next-word distributions: all of one, its top, a draw from it.

A state's distribution is that of its suffix, scaled by the back-off weight, with its own arcs
written over it. So the whole of it costs O(V + arcs); and its top, or a draw from it, needs
only what lies at the top of a few lists ranked by probability. States with many arcs have
their rank in the file (`Automaton.ranked_states`); the few arcs of the others are ranked
when they are needed.
"""

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.ngram.access import (
    AUTOMATON_TYPES,
    U,
    arc_of,
    log10_backoff_of,
    log10_prob_of,
    readonly,
    word_of,
)
from models.ngram.automaton import Automaton
from models.ngram.ranked import RANKED_ARCS
from models.ngram.walking import LN_10

_DRAWS = 64
"""Words drawn for one row before its whole distribution is made."""


@numba.njit(nogil=True)
def _chain(
    automaton: Automaton, state: np.int32, states: npt.NDArray[np.uint64], backoffs: npt.NDArray[np.float64]
) -> int:
    """A state and its suffixes down to the empty context, and the log10 charged on the way to each; their number."""
    depth, backoff, here = 0, 0.0, U(state)
    while here != U(0):
        states[depth], backoffs[depth] = here, backoff
        depth += 1
        backoff += log10_backoff_of(automaton, here)
        here = U(automaton.suffixes[here])
    states[depth], backoffs[depth] = here, backoff
    return depth + 1


@numba.njit(
    [types.void(automaton, readonly("int32"), types.float32[:, ::1]) for automaton in AUTOMATON_TYPES],
    nogil=True,
    cache=True,
)
def distribution(automaton: Automaton, states: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    """Natural-log probabilities [B, V] of every word in states [B], into `out`.

    Writes the unigrams with the whole back-off, then overwrites the arcs of ever longer
    contexts: O(V + arcs) a row, not V look-ups.
    """
    order = len(automaton.order_starts) - 1
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    for row in range(len(states)):
        last = _chain(automaton, states[row], chain, backoffs) - 1
        for word in range(out.shape[1]):
            out[row, word] = (log10_prob_of(automaton, word) + backoffs[last]) * LN_10
        for level in range(last - 1, -1, -1):
            state = chain[level]
            for arc in range(U(automaton.first_arcs[state]), U(automaton.first_arcs[state + U(1)])):
                value = (log10_prob_of(automaton, U(arc)) + backoffs[level]) * LN_10
                out[row, word_of(automaton, U(arc))] = value


@numba.njit(nogil=True)
def _known_before(automaton: Automaton, chain: npt.NDArray[np.uint64], level: int, word: np.int32) -> bool:
    """Whether a longer context of the chain has the word, so that this level does not count for it."""
    missing = U(len(automaton.words))
    for longer in range(level):  # noqa: SIM110 - kernels know no any()
        if arc_of(automaton, chain[longer], word) != missing:
            return True
    return False


@numba.njit(nogil=True)
def _rank_of(automaton: Automaton, state: np.uint64) -> Any:
    """The place of a state among `ranked_states`, else −1."""
    begin, end = 0, len(automaton.ranked_states)
    while begin < end:
        middle = (begin + end) // 2
        if automaton.ranked_states[middle] < np.int32(state):
            begin = middle + 1
        else:
            end = middle
    found = begin < len(automaton.ranked_states) and automaton.ranked_states[begin] == np.int32(state)
    return begin if found else -1


@numba.njit(nogil=True)
def _precedes(automaton: Automaton, one: np.uint32, other: np.uint32) -> np.bool_:
    """Whether an arc is more probable than another of the same state, or as probable and its word's id smaller."""
    prob, other_prob = log10_prob_of(automaton, U(one)), log10_prob_of(automaton, U(other))
    return np.bool_(prob > other_prob or (prob == other_prob and one < other))


@numba.njit(nogil=True)
def _sink(automaton: Automaton, heap: npt.NDArray[np.uint32], place: int, size: Any) -> None:
    """Move the arc at a place of a heap down until it precedes those below it."""
    arc = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _precedes(automaton, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(automaton, heap[child], arc):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = arc


@numba.njit(nogil=True)
def _heap_arcs(automaton: Automaton, state: np.uint64, heap: npt.NDArray[np.uint32]) -> Any:
    """The arcs of a state that has few, as a heap with the most probable on top; their number."""
    begin = np.int64(automaton.first_arcs[state])
    size = np.int64(automaton.first_arcs[state + U(1)]) - begin
    for n in range(size):
        heap[n] = begin + n
    for place in range(size // 2 - 1, -1, -1):
        _sink(automaton, heap, place, size)
    return size


@numba.njit(nogil=True)
def _show(
    automaton: Automaton,
    level: int,
    backoffs: npt.NDArray[np.float64],
    heaps: npt.NDArray[np.uint32],
    nexts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    arcs: npt.NDArray[np.uint64],
    values: npt.NDArray[np.float64],
) -> None:
    """Put a level's most probable arc that is left, A if there is none, into `arcs`; its log10 value into `values`."""
    if nexts[level] >= stops[level] or stops[level] == 0:
        arcs[level] = U(len(automaton.words))
        return
    arcs[level] = U(automaton.ranked_arcs[nexts[level]]) if nexts[level] >= 0 else U(heaps[level, 0])
    values[level] = log10_prob_of(automaton, arcs[level]) + backoffs[level]


@numba.njit(
    [
        types.void(automaton, readonly("int32"), types.int64[:, ::1], types.float32[:, ::1])
        for automaton in AUTOMATON_TYPES
    ],
    nogil=True,
    cache=True,
)
def top_k(
    automaton: Automaton,
    states: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int64],
    log_probs: npt.NDArray[np.float32],
) -> None:
    """The k most probable words [B, k] in states [B] and their natural-log probabilities, into `ids` and `log_probs`.

    Merges the arcs of the state and its suffixes, each from its most probable down, and passes
    over words that a longer context has already; k must not exceed V.
    """
    order, k, missing = len(automaton.order_starts) - 1, ids.shape[1], U(len(automaton.words))
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    heaps = np.empty((order, RANKED_ARCS), np.uint32)
    nexts, stops = np.empty(order, np.int64), np.empty(order, np.int64)  # places in ranked_arcs, or −1 and
    arcs, values = (
        np.empty(order, np.uint64),
        np.empty(order, np.float64),
    )  # the heap's size; and what is there
    for row in range(len(states)):
        depth = _chain(automaton, states[row], chain, backoffs)
        for level in range(depth):
            rank = _rank_of(automaton, chain[level])
            if rank >= 0:
                nexts[level] = automaton.ranked_starts[rank]
                stops[level] = automaton.ranked_starts[rank + 1]
            else:
                nexts[level], stops[level] = -1, _heap_arcs(automaton, chain[level], heaps[level])
            _show(automaton, level, backoffs, heaps, nexts, stops, arcs, values)
        column = 0
        while column < k:
            best, word = -1, np.int32(0)
            for level in range(depth):
                if arcs[level] == missing or (best >= 0 and values[level] < values[best]):
                    continue
                shown = word_of(automaton, arcs[level])
                if best < 0 or values[level] > values[best] or shown < word:
                    best, word = level, shown
            if not _known_before(automaton, chain, best, word):
                ids[row, column], log_probs[row, column] = word, values[best] * LN_10
                column += 1
            if nexts[best] >= 0:
                nexts[best] += 1
            else:
                stops[best] -= 1
                heaps[best, 0] = heaps[best, stops[best]]
                _sink(automaton, heaps[best], 0, stops[best])
            _show(automaton, best, backoffs, heaps, nexts, stops, arcs, values)


@numba.njit(nogil=True)
def _next_point(seed: np.uint64) -> tuple[np.uint64, float]:
    """A number of [0, 1) and the seed for the one after it.

    Source: Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators" (SplitMix64).
    """
    seed += U(0x9E3779B97F4A7C15)
    mixed = (seed ^ (seed >> U(30))) * U(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> U(27))) * U(0x94D049BB133111EB)
    mixed ^= mixed >> U(31)
    return seed, np.float64(mixed >> U(11)) * 2.0**-53


@numba.njit(nogil=True)
def _arc_at(automaton: Automaton, state: np.uint64, point: float) -> Any:
    """The arc at a point of the cumulative probabilities of a state's own arcs, or A past the last of them."""
    rank = _rank_of(automaton, state)
    if rank < 0:
        for arc in range(U(automaton.first_arcs[state]), U(automaton.first_arcs[state + U(1)])):
            point -= 10.0 ** np.float64(log10_prob_of(automaton, U(arc)))
            if point < 0:
                return U(arc)
    elif point < automaton.ranked_masses[rank]:
        for place in range(automaton.ranked_starts[rank], automaton.ranked_starts[rank + 1]):
            arc = U(automaton.ranked_arcs[place])
            point -= 10.0 ** np.float64(log10_prob_of(automaton, arc))
            if point < 0:
                return arc
    return U(len(automaton.words))


@numba.njit(nogil=True)
def _draw_from_all(automaton: Automaton, states: npt.NDArray[np.int32], point: float) -> np.int64:
    """The word at a point of the cumulative probabilities of the whole vocabulary after the one state [1]."""
    log_probs = np.empty((1, np.int64(automaton.first_arcs[1])), np.float32)
    distribution(automaton, states, log_probs)
    total = 0.0
    for word in range(log_probs.shape[1]):
        total += math.exp(log_probs[0, word])
    point, last = point * total, np.int64(0)
    for word in range(log_probs.shape[1]):
        prob = math.exp(log_probs[0, word])
        if prob > 0:
            point, last = point - prob, np.int64(word)
            if point < 0:
                break
    return last


@numba.njit(
    [
        types.void(automaton, readonly("int32"), readonly("uint64"), types.int64[::1])
        for automaton in AUTOMATON_TYPES
    ],
    nogil=True,
    cache=True,
)
def sample(
    automaton: Automaton,
    states: npt.NDArray[np.int32],
    seeds: npt.NDArray[np.uint64],
    words: npt.NDArray[np.int64],
) -> None:
    """Draw a word for each row, into `words` [B], by its state [B] and its seed [B].

    A point falls on one of the state's own arcs, or past them. Past them, the word is drawn
    from the suffix's distribution, again and again until it is none that the state itself
    has. Should that take too often, the whole distribution is made after all.
    """
    order, missing = len(automaton.order_starts) - 1, U(len(automaton.words))
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    for row in range(len(states)):
        depth = _chain(automaton, states[row], chain, backoffs)
        seed, start, words[row] = seeds[row], 0, -1
        for _ in range(_DRAWS):
            level, arc = start, missing
            while level < depth:  # a row that sums to less than 1 may have nothing at the point
                seed, point = _next_point(seed)
                arc = _arc_at(automaton, chain[level], point)
                if arc != missing or level + 1 == depth or backoffs[level + 1] == -np.inf:
                    break
                level += 1
            if arc == missing:
                continue
            word = word_of(automaton, arc)
            refused = level - 1
            while refused >= 0 and arc_of(automaton, chain[refused], word) == missing:
                refused -= 1
            if refused < 0:
                words[row] = word
                break
            start = refused + 1
        if words[row] < 0:
            seed, point = _next_point(seed)
            words[row] = _draw_from_all(automaton, states[row : row + 1], point)
