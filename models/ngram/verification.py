"""A look at every number of an automaton's file, before kernels follow any of them."""

from pathlib import Path

import numba
import numpy as np
from numba import types

from models.ngram.access import AUTOMATON_TYPES, U, log10_backoff_of, log10_prob_of, word_of
from models.ngram.automaton import Automaton, reject

_PROBLEMS = (
    "",
    "first_arcs decreases",
    "the arcs of the states of one length are not the n-grams one longer",
    "a suffix is not a shorter context",
    "the words of a context are not rising ids of the vocabulary",
    "a probability is more than 1",
    "a back-off weight is not a number or is infinite",
    "ranked_states does not rise within the states, or ranked_starts within ranked_arcs",
    "ranked_arcs are not the arcs of their state",
)


def verify(automaton: Automaton, path: Path) -> None:
    """Check that no index leads outside the arrays and every value can be one.

    Raises:
        ManifestError: something is wrong; the message says what.
    """
    problem = int(first_problem(automaton))
    if problem:
        reject(path, _PROBLEMS[problem])


@numba.njit(nogil=True)
def _first_problem_of_ranks(automaton: Automaton) -> int:
    before = np.int64(-1)
    starts = automaton.ranked_starts
    for rank in range(len(automaton.ranked_states)):
        state = np.int64(automaton.ranked_states[rank])
        if state <= before or state >= len(automaton.suffixes) or starts[rank] > starts[rank + 1]:
            return 7
        if starts[rank + 1] > len(automaton.ranked_arcs):
            return 7
        before = state
        begin, end = automaton.first_arcs[state], automaton.first_arcs[state + 1]
        if starts[rank + 1] - starts[rank] != end - begin or automaton.ranked_states[0] != 0:
            return 8
        for place in range(starts[rank], starts[rank + 1]):
            if not begin <= automaton.ranked_arcs[place] < end:
                return 8
    return 0


@numba.njit([types.int64(automaton) for automaton in AUTOMATON_TYPES], nogil=True, cache=True)
def first_problem(automaton: Automaton) -> int:  # noqa: C901, PLR0911 - one pass over the arrays
    """The number of the first problem found, 0 if there is none.

    Each condition is written so that a value that is no number fails it.
    """
    states, arcs, vocab_size = len(automaton.suffixes), len(automaton.words), automaton.first_arcs[1]
    first, longest = automaton.first_arcs, len(automaton.order_starts) - 1
    for state in range(states):
        if first[state] > first[state + 1] or first[state + 1] > arcs:
            return 1
    length, first_of_length = 0, 0  # the length of the state, and the first state of that length
    for state in range(states):
        while length + 1 < longest and state > automaton.order_starts[length]:
            first_of_length = automaton.order_starts[length] + 1
            length += 1
            if first[first_of_length] != automaton.order_starts[length]:
                return 2
        suffix = automaton.suffixes[state]
        if suffix < 0 or (suffix >= first_of_length and state > 0) or (state == 0 and suffix != 0):
            return 3
        if not log10_backoff_of(automaton, U(state)) < np.inf:
            return 6
        before = np.int64(-1)
        for arc in range(first[state], first[state + 1]):
            word = np.int64(word_of(automaton, U(arc)))
            if word <= before or word >= vocab_size:
                return 4
            before = word
    for arc in range(arcs):
        if not log10_prob_of(automaton, U(arc)) <= 1e-6:
            return 5
    return _first_problem_of_ranks(automaton)
