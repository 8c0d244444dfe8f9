"""Links from contexts to their longest listed suffix, for n-grams that come without them."""

import numba
import numpy as np
import numpy.typing as npt


@numba.njit(nogil=True, cache=True)
def link_states(
    first_arcs: npt.NDArray[np.uint32], words: npt.NDArray[np.int32], suffixes: npt.NDArray[np.int32]
) -> None:
    """Find the links that are −1 among `suffixes` [S], in place; see `Automaton` for the arrays.

    The suffix of a context h w is where reading w leads from the suffix of h.
    Source: Aho and Corasick (1975), "Efficient string matching", algorithm 3.
    """
    for prefix in range(len(suffixes)):
        for arc in range(first_arcs[prefix], first_arcs[prefix + 1]):
            state = arc + 1
            if state >= len(suffixes) or suffixes[state] >= 0:
                continue
            if prefix == 0:
                suffixes[state] = 0
                continue
            word, shorter = words[arc], suffixes[prefix]
            while shorter != 0:
                begin, end = first_arcs[shorter], first_arcs[shorter + 1]
                place = begin + np.searchsorted(words[begin:end], word)
                if place < end and words[place] == word:
                    break
                shorter = suffixes[shorter]
            suffixes[state] = place + 1 if shorter != 0 else word + 1
