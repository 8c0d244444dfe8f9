"""The path of a lattice with the fewest word errors: how good a choice could be."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.lattices.connecting import group_by_level, node_depths
from models.lattices.lattice import NO_WORD, Indices, Lattice

ErrorCounts = npt.NDArray[np.int32]


class OraclePath(NamedTuple):
    """A path and how it differs from what is right.

    Attributes:
        text: its words, with spaces between.
        errors: substitutions, insertions and deletions of words.
        reference_words: words of what is right.
    """

    text: str
    errors: int
    reference_words: int


def oracle_path(lattice: Lattice, reference: str) -> OraclePath:
    """The path with the fewest errors against what is right; words are compared as they are written.

    By dynamic programming over nodes and places in the reference.
    """
    words = reference.split()
    places = {word: label for label, word in enumerate(lattice.words) if word}
    labels = np.array([places.get(word, -1) for word in words], dtype=np.int64)
    costs = _error_counts(lattice, labels)
    taken = _trace_back(lattice, labels, costs)
    text = " ".join(lattice.words[label] for label in taken)
    return OraclePath(text, int(costs[-1, -1]), len(words))


def _error_counts(lattice: Lattice, reference: Indices) -> ErrorCounts:
    """Fewest errors on a path to each node, against the beginnings of the reference [N, R + 1]."""
    lengths = np.arange(len(reference) + 1, dtype=np.int32)
    costs = np.zeros((lattice.num_nodes, len(lengths)), dtype=np.int32)
    costs[0] = lengths
    depth = node_depths(lattice.sources, lattice.targets, lattice.num_nodes)
    levels = group_by_level(depth[lattice.targets], int(depth.max()) + 1)
    for level in range(1, levels.num_levels):
        arcs = levels.of(level)
        arcs = arcs[np.argsort(lattice.targets[arcs], kind="stable")]
        targets, firsts = np.unique(lattice.targets[arcs], return_index=True)
        best = np.minimum.reduceat(
            _extend_along_arcs(costs[lattice.sources[arcs]], lattice.labels[arcs], reference), firsts
        )
        # words of the reference that the path leaves out
        costs[targets] = np.minimum.accumulate(best - lengths, axis=1) + lengths
    return costs


def _extend_along_arcs(costs: ErrorCounts, labels: Indices, reference: Indices) -> ErrorCounts:
    """Errors after arcs [A, R + 1], given those before them; deletions after the arc's word left out."""
    spoken = labels != NO_WORD
    after: ErrorCounts = costs + spoken[:, None]
    matched = costs[:, :-1] + (labels[:, None] != reference)
    after[spoken, 1:] = np.minimum(after[spoken, 1:], matched[spoken])
    return after


def _trace_back(lattice: Lattice, reference: Indices, costs: ErrorCounts) -> Sequence[int]:
    """The labels of words on a path that costs what the end node says."""
    order = np.argsort(lattice.targets, kind="stable")
    starts = np.searchsorted(lattice.targets[order], np.arange(lattice.num_nodes + 1))
    labels: list[int] = []
    node, place = lattice.num_nodes - 1, len(reference)
    while node > 0:
        arcs = order[starts[node] : starts[node + 1]]
        after = _extend_along_arcs(costs[lattice.sources[arcs]], lattice.labels[arcs], reference)[:, place]
        best = int(after.argmin())
        if after[best] != costs[node, place]:  # a word of the reference is left out here
            place -= 1
            continue
        label = int(lattice.labels[arcs[best]])
        source = int(lattice.sources[arcs[best]])
        if label != NO_WORD:
            labels.append(label)
            if costs[source, place] + 1 != after[best]:
                place -= 1
        node = source
    return labels[::-1]
