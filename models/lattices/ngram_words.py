"""A word read after each of some states of an n-gram model, compiled."""

import math

import numba
import numpy as np

from models.arrays import TokenIds
from models.lattices.lattice import Indices, Scores
from models.ngram.access import U, arc_at, value_at
from models.ngram.automaton import Automaton
from models.scoring import LOG_ZERO

_LN_10 = math.log(10)


@numba.njit(nogil=True)
def advance_word(
    automaton: Automaton, states: Indices, tokens: TokenIds, after: Indices, log_probs: Scores
) -> None:
    """Read a word after each of some states [K]: the state after it, and its log-probability."""
    first_arcs, words, suffixes = automaton.first_arcs, automaton.words, automaton.suffixes
    probs, prob_values = automaton.log10_probs, automaton.prob_values
    backoffs, backoff_values = automaton.log10_backoffs, automaton.backoff_values
    missing, num_states = U(len(words)), U(len(suffixes))
    for row in range(len(states)):
        total, at = 0.0, U(states[row])
        for token in tokens:
            word, backoff, is_scored = U(token), 0.0, False
            while True:
                arc = arc_at(first_arcs, words, at, word)
                if arc != missing and not is_scored:
                    total += float(np.float32((value_at(probs, prob_values, arc) + backoff) * _LN_10))
                    is_scored = True
                # the longest n-grams are no states; their suffixes are
                if arc != missing and (arc + U(1) < num_states or at == U(0)):
                    break
                backoff += value_at(backoffs, backoff_values, at)
                at = U(suffixes[at])
            at = arc + U(1) if arc + U(1) < num_states else U(0)
            # the shortest state with the same future, as in `access.minimal`
            while (
                at != U(0)
                and first_arcs[at] == first_arcs[at + U(1)]
                and value_at(backoffs, backoff_values, at) == 0
            ):
                at = U(suffixes[at])
        after[row] = at
        log_probs[row] = total if total > -np.inf else LOG_ZERO
