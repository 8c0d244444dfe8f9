"""How much of the history a model takes into account: the lengths of its states' contexts."""

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.ngram.access import AUTOMATON_TYPES, SPAN_TYPES, U, context_length, minimal_state, next_state
from models.ngram.automaton import Automaton


def context_lengths(automaton: Automaton, states: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The number of tokens in each state's context [B]; 0 for the empty one."""
    return np.searchsorted(automaton.order_starts, states.astype(np.int64) - 1, side="right")


@numba.njit(
    [types.int64(automaton, *SPAN_TYPES, types.int64[::1]) for automaton in AUTOMATON_TYPES],
    nogil=True,
    cache=True,
)
def context_lengths_per_token(
    automaton: Automaton,
    states: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int64],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    out: npt.NDArray[np.int64],
) -> int:
    """The length of the context before each token of B stretches, into the same places of `out`.

    Args:
        automaton: the model.
        states: before each stretch [B].
        tokens: of all stretches [N].
        begins: where each begins [B].
        ends: where each ends [B].
        out: [N]; written.

    Returns:
        −1, or the place of a token that is outside the vocabulary.
    """
    vocab_size, order_starts = np.int64(automaton.first_arcs[1]), automaton.order_starts
    for row in range(len(states)):
        state = U(states[row])
        for place in range(begins[row], ends[row]):
            out[place] = context_length(order_starts, state)
            word = tokens[place]
            if not 0 <= word < vocab_size:
                return place
            state = minimal_state(automaton, next_state(automaton, state, word))
    return -1
