"""The arcs of states that have many, ranked by probability: what the top of a distribution is read from."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_UNRANKED_ARCS = 128
"""A state with more arcs has their rank in the file; that of fewer is found when it is needed."""


_BLOCK = 1 << 20
"""States that are looked at at once, and arcs that are ranked at once, those of one state aside."""


class RankedArcs(NamedTuple):
    """The arrays of an `Automaton` whose names begin with `ranked_`."""

    states: npt.NDArray[np.int32]
    starts: npt.NDArray[np.uint32]
    arcs: npt.NDArray[np.uint32]
    masses: npt.NDArray[np.float32]


def rank_arcs(first_arcs: npt.NDArray[np.uint32], log10_probs: npt.NDArray[np.float32]) -> RankedArcs:
    """Rank the arcs of the empty context and of every state with more than `MAX_UNRANKED_ARCS` arcs.

    Equal probabilities are ranked by the word's id.

    Args:
        first_arcs: where each state's arcs start, and the end [S + 1].
        log10_probs: of every arc [A].
    """
    blocks = list(rank_arcs_in_blocks(first_arcs, log10_probs))
    states, starts, arcs, masses = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return RankedArcs(states, np.append(starts, np.uint32(len(arcs))), arcs, masses)


def rank_arcs_in_blocks(
    first_arcs: npt.NDArray[np.uint32], log10_probs: npt.NDArray[np.float32]
) -> Iterator[RankedArcs]:
    """The same state by state, in blocks of bounded size; `starts` are without the end.

    Args:
        first_arcs: where each state's arcs start, and the end [S + 1].
        log10_probs: of every arc [A].
    """
    ranked_before = 0
    for begin in range(0, len(first_arcs) - 1, _BLOCK):
        sizes = np.diff(first_arcs[begin : begin + _BLOCK + 1])
        is_ranked = sizes > MAX_UNRANKED_ARCS
        is_ranked[0] |= begin == 0
        states = begin + np.flatnonzero(is_ranked)
        groups = np.cumsum(sizes[is_ranked], dtype=np.int64) // _BLOCK
        for group in np.split(states, np.flatnonzero(np.diff(groups)) + 1):
            if len(group):
                yield (ranked := _rank(group, first_arcs, log10_probs, ranked_before))
                ranked_before += len(ranked.arcs)


def _rank(
    states: npt.NDArray[np.int64],
    first_arcs: npt.NDArray[np.uint32],
    log10_probs: npt.NDArray[np.float32],
    ranked_before: int,
) -> RankedArcs:
    """The arcs of some states, of which so many lie before."""
    begins = first_arcs[states].astype(np.int64)
    sizes = first_arcs[states + 1].astype(np.int64) - begins
    starts = np.cumsum(sizes) - sizes
    arcs = np.repeat(begins - starts, sizes) + np.arange(sizes.sum())
    probs = log10_probs[arcs]
    arcs = arcs[np.lexsort((-probs, np.repeat(np.arange(len(states)), sizes)))]
    masses = np.add.reduceat(10.0 ** probs.astype(np.float64), starts)
    return RankedArcs(
        states.astype(np.int32),
        (ranked_before + starts).astype(np.uint32),
        arcs.astype(np.uint32),
        masses.astype(np.float32),
    )
