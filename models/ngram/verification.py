"""A look at every number of an automaton's file, before kernels follow any of them."""

from pathlib import Path

import numba
import numpy as np
from numba import types

from models.ngram.access import AUTOMATON_TYPES, U, log10_backoff_of, log10_prob_of, word_of
from models.ngram.automaton import Automaton, reject
from models.ngram.ranked import MAX_UNRANKED_ARCS

MAX_LOG10_BACKOFF = 300.0
"""What backing off all the way may multiply a probability by at most: a double holds little more."""

_MASS_TOLERANCE = 1e-5
_LEAST_MASS = 1e-30  # single precision holds little less

_PROBLEMS = (
    "",
    "first_arcs decreases",
    "the arcs of the states of one length are not the n-grams one longer",
    "a suffix is not a shorter context",
    "the words of a context are not rising ids of the vocabulary",
    "a probability is more than 1",
    "a back-off weight is not a number, or the product of a state's and its suffixes' is infinite",
    "ranked_states does not rise within the states, or ranked_starts within ranked_arcs",
    "ranked_arcs are not the arcs of their state, the most probable first",
    "a state of many arcs is not among ranked_states",
    "ranked_masses are not the sums of the probabilities",
)


def verify_automaton(automaton: Automaton, path: Path) -> None:
    """Check that no index leads outside the arrays and every value can be one.

    Raises:
        ManifestError: something is wrong; the message says what.
    """
    problem = int(find_problem(automaton))
    if problem:
        reject(path, _PROBLEMS[problem])


@numba.njit(nogil=True)
def _find_rank_problem(automaton: Automaton) -> int:  # noqa: PLR0911 - as below
    before = np.int64(-1)
    starts, first = automaton.ranked_starts, automaton.first_arcs
    for rank in range(len(automaton.ranked_states)):
        state = np.int64(automaton.ranked_states[rank])
        if state <= before or state >= len(automaton.suffixes) or starts[rank] > starts[rank + 1]:
            return 7
        if starts[rank + 1] > len(automaton.ranked_arcs):
            return 7
        before = state
        begin, end = first[state], first[state + 1]
        if starts[rank + 1] - starts[rank] != end - begin or automaton.ranked_states[0] != 0:
            return 8
        mass, last_prob, last_arc = 0.0, np.float32(np.inf), np.int64(-1)
        for place in range(starts[rank], starts[rank + 1]):
            arc = np.int64(automaton.ranked_arcs[place])
            if not begin <= arc < end:
                return 8
            prob = log10_prob_of(automaton, U(arc))
            if prob > last_prob or (prob == last_prob and arc <= last_arc):  # else one might be there twice
                return 8
            mass, last_prob, last_arc = mass + 10.0 ** np.float64(prob), prob, arc
        if not abs(automaton.ranked_masses[rank] - mass) <= _MASS_TOLERANCE * mass + _LEAST_MASS:
            return 10
    return 0


@numba.njit(nogil=True)
def _has_unranked_state(automaton: Automaton) -> bool:
    """Whether a state has more arcs than are ranked when they are needed, and no rank; those with one rise."""
    rank = 0
    for state in range(len(automaton.suffixes)):
        if rank < len(automaton.ranked_states) and automaton.ranked_states[rank] == state:
            rank += 1
        elif automaton.first_arcs[state + 1] - automaton.first_arcs[state] > MAX_UNRANKED_ARCS:
            return True
    return False


@numba.njit(nogil=True)
def _backoff_overflows(automaton: Automaton, state: np.int64) -> bool:
    """Whether the way from a state to the empty context is charged what no float can hold, or no number."""
    charged = np.float64(log10_backoff_of(automaton, U(state)))
    if charged <= 0:  # most of them; what is charged further on is seen there
        return False
    while state != 0 and charged <= MAX_LOG10_BACKOFF:
        state = np.int64(automaton.suffixes[state])
        charged += log10_backoff_of(automaton, U(state))
    return not charged <= MAX_LOG10_BACKOFF


@numba.njit([types.int64(automaton) for automaton in AUTOMATON_TYPES], nogil=True, cache=True)
def find_problem(automaton: Automaton) -> int:  # noqa: C901, PLR0911 - one pass over the arrays
    """The number of the first problem found, 0 if there is none.

    Each condition is written so that a value that is no number fails it.
    """
    states, arcs, vocab_size = len(automaton.suffixes), len(automaton.words), automaton.first_arcs[1]
    first, longest = automaton.first_arcs, len(automaton.order_starts) - 1
    for state in range(states):
        if first[state] > first[state + 1] or first[state + 1] > arcs:
            return 1
    for length in range(1, longest):  # also those that no context has
        if first[automaton.order_starts[length - 1] + 1] != automaton.order_starts[length]:
            return 2
    length, first_of_length = 0, 0  # the length of the state, and the first state of that length
    for state in range(states):
        while length + 1 < longest and state > automaton.order_starts[length]:
            first_of_length = automaton.order_starts[length] + 1
            length += 1
        suffix = automaton.suffixes[state]
        if suffix < 0 or (suffix >= first_of_length and state > 0) or (state == 0 and suffix != 0):
            return 3
        if _backoff_overflows(automaton, np.int64(state)):
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
    return _find_rank_problem(automaton) or (9 if _has_unranked_state(automaton) else 0)
