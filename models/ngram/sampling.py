"""Draws from next-word distributions without computing the whole of them, compiled."""

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.ngram.access import AUTOMATON_TYPES, U, arc_of, log10_prob_of, readonly, word_of
from models.ngram.automaton import Automaton
from models.ngram.distributions import ranked_index, write_distributions, write_suffix_chain

_MAX_DRAWS = 64
"""Words drawn for one row before its whole distribution is made."""


@numba.njit(nogil=True)
def _next_uniform(seed: np.uint64) -> tuple[np.uint64, float]:
    """A number of [0, 1) and the seed for the one after it.

    Source: Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators" (SplitMix64).
    """
    seed += U(0x9E3779B97F4A7C15)
    mixed = (seed ^ (seed >> U(30))) * U(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> U(27))) * U(0x94D049BB133111EB)
    mixed ^= mixed >> U(31)
    return seed, np.float64(mixed >> U(11)) * 2.0**-53


@numba.njit(nogil=True)
def _arc_at_point(automaton: Automaton, state: np.uint64, point: float) -> Any:
    """The arc at a point of the cumulative probabilities of a state's own arcs, or A past the last of them."""
    rank = ranked_index(automaton, state)
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
def _shadowing_level(automaton: Automaton, chain: npt.NDArray[np.uint64], level: int, word: np.int64) -> int:
    """The shortest context before this level that has the word itself, and so does not take it from here; or −1."""
    longer = level - 1
    while longer >= 0 and arc_of(automaton, chain[longer], word) == U(len(automaton.words)):
        longer -= 1
    return longer


@numba.njit(nogil=True)
def _draw_from_distribution(
    automaton: Automaton, chain: npt.NDArray[np.uint64], start: int, point: float
) -> np.int64:
    """The word at a point of a context's cumulative probabilities, without those that the longer one has; or −1."""
    state = np.empty(1, np.int32)
    state[0] = chain[start]
    log_probs = np.empty((1, np.int64(automaton.first_arcs[1])), np.float32)
    write_distributions(automaton, state, log_probs)
    if start > 0:
        longer = chain[start - 1]
        for arc in range(U(automaton.first_arcs[longer]), U(automaton.first_arcs[longer + U(1)])):
            log_probs[0, word_of(automaton, U(arc))] = -np.inf
    peak = np.float64(log_probs.max())  # a row may hold next to nothing
    if peak == -np.inf:
        return np.int64(-1)
    total = 0.0
    for word in range(log_probs.shape[1]):
        total += math.exp(log_probs[0, word] - peak)
    point, last = point * total, np.int64(0)
    for word in range(log_probs.shape[1]):
        prob = math.exp(log_probs[0, word] - peak)
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
def sample_words(
    automaton: Automaton,
    states: npt.NDArray[np.int32],
    seeds: npt.NDArray[np.uint64],
    words: npt.NDArray[np.int64],
) -> None:
    """Draw a word for each row, into `words` [B], by its state [B] and its seed [B].

    A point falls on one of the state's own arcs, or past them. Past them, the word is drawn
    from the suffix's distribution, again and again until it is none that the state itself
    has. Should that take too often, the suffix's whole distribution is made after all. Where a
    row does not sum to 1, its own arcs count by themselves, and the others share the rest; a
    word that is impossible is drawn only where all are.
    """
    order, missing = len(automaton.order_starts) - 1, U(len(automaton.words))
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    for row in range(len(states)):
        depth = write_suffix_chain(automaton, states[row], chain, backoffs)
        seed, start, words[row] = seeds[row], 0, -1
        for _ in range(_MAX_DRAWS):
            level, arc = start, missing
            while level < depth:  # a row that sums to less than 1 may have nothing at the point
                seed, point = _next_uniform(seed)
                arc = _arc_at_point(automaton, chain[level], point)
                if arc != missing or level + 1 == depth or backoffs[level + 1] == -np.inf:
                    break
                level += 1
            if arc == missing:
                continue
            word = np.int64(word_of(automaton, arc))
            refused = _shadowing_level(automaton, chain, level, word)
            if refused < 0:
                words[row] = word
                break
            start = refused + 1
        while words[row] < 0:  # at most once for each context
            seed, point = _next_uniform(seed)
            word = _draw_from_distribution(automaton, chain, start, point)
            if word < 0 and start > 0:  # its own arcs are all there is, but sum to less than 1
                start = 0
                continue
            refused = _shadowing_level(automaton, chain, start - 1, word)
            if refused < 0:
                words[row] = max(0, word)  # type: ignore[call-overload]  # numba has the integers of numpy
            start = refused + 1
