"""Whole next-word distributions, compiled.

A state's distribution is that of its suffix, scaled by the back-off weight, with its own arcs
written over it. So the whole of it costs O(V + arcs), and not V look-ups.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.ngram.access import AUTOMATON_TYPES, U, log10_backoff_of, readonly, value_at, word_at
from models.ngram.automaton import LN_10, Automaton


@numba.njit(nogil=True)
def write_suffix_chain(
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
def write_distributions(
    automaton: Automaton, states: npt.NDArray[np.int32], out: npt.NDArray[np.float32]
) -> None:
    """Natural-log probabilities [B, V] of every word in states [B], into `out`.

    Writes the unigrams with the whole back-off, then overwrites the arcs of ever longer
    contexts: O(V + arcs) a row, not V look-ups.
    """
    order = len(automaton.order_starts) - 1
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    first_arcs, words = automaton.first_arcs, automaton.words
    probs, decoded = automaton.log10_probs, automaton.prob_values
    for row in range(len(states)):
        last = write_suffix_chain(automaton, states[row], chain, backoffs) - 1
        for word in range(out.shape[1]):
            out[row, word] = (value_at(probs, decoded, word) + backoffs[last]) * LN_10
        for level in range(last - 1, -1, -1):
            state = chain[level]
            for arc in range(U(first_arcs[state]), U(first_arcs[state + U(1)])):
                value = (value_at(probs, decoded, U(arc)) + backoffs[level]) * LN_10
                out[row, word_at(words, U(arc))] = value


@numba.njit(nogil=True)
def ranked_index(automaton: Automaton, state: np.uint64) -> Any:
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
