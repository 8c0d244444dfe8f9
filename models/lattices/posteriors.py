"""Posterior probabilities in rescored lattices: of edges, and of the words beside each best word.

Every path crosses each instant on exactly one edge. So the words at the middle of a best word, and
silence there, have posteriors that sum to 1. Sources: forward and backward sums, Rabiner (1989);
posteriors at an instant, Wessel et al. (2001), "Confidence measures for large vocabulary continuous
speech recognition".
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types

from models.arrays import Float64s
from models.calls import Steps
from models.kernels.compilation import kernel
from models.lattices.lattice import Indices, Scores, node_depths
from models.lattices.rescoring import LatticePath, RescoredLattice

_INTS, _FLOATS = types.int64[::1], types.float64[::1]


class WordAlternatives(NamedTuple):
    """Word of a path, with the words of other paths at its middle.

    Attributes:
        text: the word.
        start: start in seconds; None if the lattice has no times.
        end: end in seconds; None likewise.
        posterior: posterior probability of this word at the middle of its time.
        others: other words there, the most probable first, with their posteriors; an empty one is silence.
    """

    text: str
    start: float | None
    end: float | None
    posterior: float
    others: list[tuple[str, float]]


class EdgePosteriors(NamedTuple):
    """Posteriors of the edges of a rescored lattice.

    Attributes:
        rescored: the lattice.
        scale: factor of totals, as in exp(scale · total).
        edges: posterior of each edge [E].
        log_norm: ln of the sum of exp(scale · total) over all paths.
    """

    rescored: RescoredLattice
    scale: float
    edges: Float64s
    log_norm: float

    @classmethod
    def of(cls, rescored: RescoredLattice, *, scale: float) -> "EdgePosteriors":
        """Compute the posteriors of all edges."""
        tokens = rescored.tokens
        posteriors = np.zeros(len(tokens.edges.parents))
        scores = scale * tokens.edges.scores
        log_norm = _edge_posteriors(tokens.offsets, tokens.edges.parents, scores, posteriors)
        return cls(rescored, scale, posteriors, log_norm)

    def of_path(self, path: LatticePath) -> float:
        """Return the posterior of a path among all paths."""
        return math.exp(min(self.scale * path.total - self.log_norm, 0.0))

    def words(self, path: LatticePath, *, most: int) -> Steps[list[WordAlternatives]]:
        """Return the words of a path, each with at most `most` others at its middle."""
        lattice, tokens, labels = self.rescored.lattice, self.rescored.tokens, self.rescored.labels()
        starts, ends = self._intervals()
        times = np.append(lattice.times, lattice.times[-1])[tokens.nodes]
        targets = np.searchsorted(tokens.offsets, path.edges, side="right") - 1
        order = np.argsort(starts, kind="stable")
        begun, there = starts[order], order[:0]  # edges at an instant
        num_begun, found = 0, list[WordAlternatives]()
        for edge, target in zip(path.edges.tolist(), targets.tolist(), strict=True):
            if not labels[edge]:
                continue
            if found:
                yield
            middle = (starts[edge] + ends[edge]) / 2
            before, num_begun = num_begun, int(np.searchsorted(begun, middle, side="right"))
            there = np.concatenate([there, order[before:num_begun]])
            there = there[middle < ends[there]]
            heard, places = np.unique(labels[there], return_inverse=True)
            masses = np.bincount(places, self.edges[there])
            begin, end = times[tokens.edges.parents[edge]], times[target]
            own = labels[edge]
            ranks = np.argsort(-masses, kind="stable")
            others = [
                (lattice.words[heard[rank]], min(float(masses[rank]), 1.0))
                for rank in ranks[masses[ranks] > 0][: most + 1].tolist()
                if heard[rank] != own
            ]
            found.append(
                WordAlternatives(
                    lattice.words[own],
                    None if math.isnan(begin) else float(begin),
                    None if math.isnan(end) else float(end),
                    min(float(masses[np.searchsorted(heard, own)]), 1.0),
                    others[:most],
                )
            )
        return found

    def _intervals(self) -> tuple[Scores, Scores]:
        """Return start and end of each edge [E]: times, or depths of nodes if some word takes no time."""
        lattice, tokens = self.rescored.lattice, self.rescored.tokens
        targets = np.repeat(np.arange(len(tokens.nodes)), np.diff(tokens.offsets))
        spoken = lattice.labels > 0
        lasts = lattice.times[lattice.targets] > lattice.times[lattice.sources]
        goes_back = lattice.times[lattice.targets] < lattice.times[lattice.sources]
        clock: Any = np.append(lattice.times, lattice.times[-1])
        if not lasts[spoken].all() or goes_back.any() or np.isnan(clock).any():
            depths: Indices = node_depths(lattice.sources, lattice.targets, lattice.num_nodes)
            clock = np.append(depths, depths[-1] + 1).astype(np.float64)
        return clock[tokens.nodes[tokens.edges.parents]], clock[tokens.nodes[targets]]


@kernel(types.float64(_INTS, _INTS, _FLOATS, _FLOATS))
def _edge_posteriors(offsets: Indices, parents: Indices, scores: Scores, posteriors: Float64s) -> float:
    """Write the posteriors of edges [E]; return ln of the sum over all paths of exp(sum of scores).

    Args:
        offsets: start of each token's edges, and E [T + 1]; tokens are in topological order, the last is the end.
        parents: token before each edge [E].
        scores: scaled score of each edge [E].
        posteriors: zeros [E]; written.
    """
    num_tokens = len(offsets) - 1
    forward, backward = np.full(num_tokens, -np.inf), np.full(num_tokens, -np.inf)
    forward[0] = backward[num_tokens - 1] = 0.0
    for token in range(1, num_tokens):
        highest = -np.inf
        for edge in range(offsets[token], offsets[token + 1]):
            highest = max(highest, forward[parents[edge]] + scores[edge])
        total = 0.0
        for edge in range(offsets[token], offsets[token + 1]):
            if highest > -np.inf:
                total += np.exp(forward[parents[edge]] + scores[edge] - highest)
        forward[token] = highest + np.log(total) if total > 0.0 else -np.inf
    log_norm: float = forward[num_tokens - 1]
    for token in range(num_tokens - 1, 0, -1):
        for edge in range(offsets[token], offsets[token + 1]):
            after, parent = scores[edge] + backward[token], parents[edge]
            if after == -np.inf or log_norm == -np.inf:
                continue
            posteriors[edge] = np.exp(forward[parent] + after - log_norm)
            highest = max(after, backward[parent])
            backward[parent] = highest + np.log(np.exp(after - highest) + np.exp(backward[parent] - highest))
    return log_norm
