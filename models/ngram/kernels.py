"""Compiled walks over the automaton's arrays, one signature each.

Signatures are fixed and compiled, or read from numba's cache, when this module is imported:
no call ever waits for the compiler. The kernels release the interpreter lock. They add in
double precision and in the same order, so `score` and `distribution` give the same float for
the same word, whatever else is in the batch.

`score` and `advance` check word ids, because one outside the vocabulary would read outside
the arrays: they return the place of the first bad one, or −1.
"""

import math

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.ngram.automaton import ARRAY_TYPES, Automaton

_LN_10 = math.log(10)
_LANES = 16


def _input(dtype: str, ndim: int = 1) -> types.Array:
    return types.Array(getattr(types, dtype), ndim, "C", readonly=True)


_AUTOMATON = types.NamedTuple(  # type: ignore[no-untyped-call]  # numba ships no annotations for it
    [_input(dtype) for dtype in ARRAY_TYPES.values()], Automaton
)


@numba.njit(nogil=True, cache=True, inline="always")  # a sixth faster than the call
def _arc_of(
    first_arcs: npt.NDArray[np.uint32], words: npt.NDArray[np.int32], state: np.int64, word: np.int64
) -> np.int64:
    """The arc of this very state that reads the word, else −1.

    The empty context has an arc for every word; those of the others are found by bisection.
    """
    if state == 0:
        return word
    begin, end = np.int64(first_arcs[state]), np.int64(first_arcs[state + 1])
    stop = end
    while begin < end:
        middle = (begin + end) >> 1
        if words[middle] < word:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < stop and words[begin] == word else np.int64(-1)


@numba.njit(
    types.int64(_AUTOMATON, _input("int32"), _input("int64", ndim=2), _input("int64"), types.float32[:, ::1]),
    nogil=True,
    cache=True,
)
def score(
    automaton: Automaton,
    states: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    out: npt.NDArray[np.float32],
) -> int:
    """Natural-log probabilities of tokens [B, T] from states [B], into `out` up to each row's length.

    A few rows walk in turns, one link each: while one waits for memory, the next has begun.

    Returns:
        −1, or the flat index of a token that is outside the vocabulary.
    """
    vocab_size = np.int64(automaton.first_arcs[1])
    batch, width = tokens.shape
    lanes = min(batch, _LANES)
    rows = np.arange(lanes)
    columns = np.zeros(lanes, np.int64)
    current = states[:lanes].astype(np.int64)
    backoffs = np.zeros(lanes, np.float64)  # log10, charged since the last token
    started, running = lanes, lanes
    while running > 0:
        for lane in range(lanes):
            row, column, state = rows[lane], columns[lane], current[lane]
            if row == batch:  # nothing left for this lane
                continue
            if column >= lengths[row]:
                rows[lane], columns[lane] = started, 0
                if started < batch:
                    current[lane] = states[started]
                    started += 1
                else:
                    running -= 1
                continue
            word = tokens[row, column]
            if not 0 <= word < vocab_size:
                place: int = row * width + column
                return place
            arc = _arc_of(automaton.first_arcs, automaton.words, state, word)
            if arc < 0:
                backoffs[lane] += automaton.log10_backoffs[state]
                current[lane] = automaton.suffixes[state]
                continue
            out[row, column] = (automaton.log10_probs[arc] + backoffs[lane]) * _LN_10
            current[lane], columns[lane], backoffs[lane] = automaton.targets[arc], column + 1, 0.0
    return -1


@numba.njit(
    types.int64(_AUTOMATON, _input("int32"), _input("int64"), types.int32[::1]), nogil=True, cache=True
)
def advance(
    automaton: Automaton,
    states: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int64],
    out: npt.NDArray[np.int32],
) -> int:
    """The states [B] after one token each [B], into `out`; returns −1, or the row of a bad token."""
    vocab_size = np.int64(automaton.first_arcs[1])
    for row in range(len(states)):
        word = tokens[row]
        if not 0 <= word < vocab_size:
            return row
        state = np.int64(states[row])
        arc = _arc_of(automaton.first_arcs, automaton.words, state, word)
        while arc < 0:
            state = np.int64(automaton.suffixes[state])
            arc = _arc_of(automaton.first_arcs, automaton.words, state, word)
        out[row] = automaton.targets[arc]
    return -1


@numba.njit(types.void(_AUTOMATON, _input("int32"), types.float32[:, ::1]), nogil=True, cache=True)
def distribution(automaton: Automaton, states: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    """Natural-log probabilities [B, V] of every word in states [B], into `out`.

    Writes the unigrams with the whole back-off, then overwrites the arcs of ever longer
    contexts: O(V + arcs) a row, not V look-ups.
    """
    order = len(automaton.length_starts) - 1
    chain = np.empty(order, np.int64)  # the state and its suffixes, longest first
    backoffs = np.empty(order, np.float64)  # log10, charged on the way to each of them
    for row in range(len(states)):
        depth, backoff, state = 0, 0.0, np.int64(states[row])
        while state != 0:
            chain[depth], backoffs[depth] = state, backoff
            depth += 1
            backoff += automaton.log10_backoffs[state]
            state = np.int64(automaton.suffixes[state])
        for word in range(out.shape[1]):
            out[row, word] = (automaton.log10_probs[word] + backoff) * _LN_10
        for level in range(depth - 1, -1, -1):
            begin, end = automaton.first_arcs[chain[level]], automaton.first_arcs[chain[level] + 1]
            for arc in range(np.int64(begin), np.int64(end)):
                out[row, automaton.words[arc]] = (automaton.log10_probs[arc] + backoffs[level]) * _LN_10
