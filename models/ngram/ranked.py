"""The arcs of states that have many, ranked by probability: what the top of a distribution is read from."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RANKED_ARCS = 128
"""A state with more arcs has their rank in the file; that of fewer is found when it is needed."""


class Ranked(NamedTuple):
    """The arrays of an `Automaton` whose names begin with `ranked_`."""

    states: npt.NDArray[np.int32]
    starts: npt.NDArray[np.uint32]
    arcs: npt.NDArray[np.uint32]
    masses: npt.NDArray[np.float32]


def rank_arcs(first_arcs: npt.NDArray[np.uint32], log10_probs: npt.NDArray[np.float32]) -> Ranked:
    """Rank the arcs of the empty context and of every state with more than `RANKED_ARCS` arcs.

    Equal probabilities are ranked by the word's id.

    Args:
        first_arcs: where each state's arcs start, and the end [S + 1].
        log10_probs: of every arc [A].
    """
    is_ranked = np.diff(first_arcs) > RANKED_ARCS
    is_ranked[0] = True
    states = np.flatnonzero(is_ranked)
    begins = first_arcs[states].astype(np.int64)
    sizes = first_arcs[states + 1].astype(np.int64) - begins
    starts = np.concatenate([[0], np.cumsum(sizes)])
    arcs = np.repeat(begins - starts[:-1], sizes) + np.arange(starts[-1])
    probs = log10_probs[arcs]
    arcs = arcs[np.lexsort((-probs, np.repeat(np.arange(len(states)), sizes)))]
    masses = np.add.reduceat(10.0 ** probs.astype(np.float64), starts[:-1])
    return Ranked(
        states.astype(np.int32), starts.astype(np.uint32), arcs.astype(np.uint32), masses.astype(np.float32)
    )
