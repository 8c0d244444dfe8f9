"""Several lattices side by side as one graph, so that they are walked together, level by level."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.lattices.connecting import ArcLevels, group_by_level, node_depths
from models.lattices.lattice import Indices, Lattice, Scores
from models.lattices.spelling import LabelTokens
from models.lattices.weights import PathWeights


@dataclass(frozen=True, eq=False, slots=True)
class LatticeGraph:
    """L lattices with N nodes and A arcs in all.

    Behind the end of each stands one more node, to which the arc of the end of the sentence leads. A node's level
    is the number of arcs on the longest way to it: nodes of a level are not connected.

    Attributes:
        lattice_of: the lattice of each node [N].
        levels: of each node [N].
        sources: node that each arc leaves [A].
        targets: node that it leads to [A].
        labels: its label in a spelling [A].
        own_arcs: its place in its lattice; that lattice's number of arcs for the end of the sentence [A].
        starts: the first node of each lattice [L].
        ends: the node behind the end of each [L].
        fixed: weighted sum of what is known of each arc without the model [A].
        lm_weights: weight of the model's log-probabilities in each lattice [L].
        remainders: what is still to come on the best path from each node to the end, by the lattice's own scores,
            the old model's in the place of the new one's [N].
        by_source: arcs by the level of their source.
        by_target: arcs by the level of their target.
        last_use: the level of the farthest node that an arc leads to from each node; −1 from the ends [N].
    """

    lattice_of: Indices
    levels: Indices
    sources: Indices
    targets: Indices
    labels: Indices
    own_arcs: Indices
    starts: Indices
    ends: Indices
    fixed: Scores
    lm_weights: Scores
    remainders: Scores
    by_source: ArcLevels
    by_target: ArcLevels
    last_use: Indices

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.lattice_of)

    @property
    def num_levels(self) -> int:
        """Of nodes; all lattices' together."""
        return self.by_target.num_levels


def number_words(lattices: Sequence[Lattice]) -> dict[str, int]:
    """The words of lattices, numbered; the first is empty and stands for none."""
    labels = {"": 0}
    for lattice in lattices:
        for word in lattice.words:
            labels.setdefault(word, len(labels))
    return labels


def build_graph(
    lattices: Sequence[Lattice], weights: Sequence[PathWeights], words: dict[str, int], spelling: LabelTokens
) -> LatticeGraph:
    """Put lattices side by side.

    Args:
        lattices: at least one.
        weights: of the features of each.
        words: numbers of all their words.
        spelling: of these words, in this order.
    """
    num_nodes = np.array([lattice.num_nodes + 1 for lattice in lattices])
    starts = np.cumsum(num_nodes) - num_nodes
    ends = starts + num_nodes - 1
    sources, targets, labels, own_arcs, fixed, expected = (
        np.concatenate(columns)
        for columns in zip(
            *(
                _arc_columns(lattice, weighing, int(start), words, spelling)
                for lattice, weighing, start in zip(lattices, weights, starts, strict=True)
            ),
            strict=True,
        )
    )
    levels = node_depths(sources, targets, int(num_nodes.sum()))
    num_levels = int(levels.max()) + 1
    by_source, by_target = (
        group_by_level(levels[sources], num_levels),
        group_by_level(levels[targets], num_levels),
    )
    last_use = np.full(len(levels), -1, dtype=np.int64)
    np.maximum.at(last_use, sources, levels[targets])
    return LatticeGraph(
        lattice_of=np.repeat(np.arange(len(lattices)), num_nodes),
        levels=levels,
        sources=sources,
        targets=targets,
        labels=labels,
        own_arcs=own_arcs,
        starts=starts,
        ends=ends,
        fixed=fixed,
        lm_weights=np.array([weighing.lm for weighing in weights]),
        remainders=_backward_scores(sources, targets, expected, by_source, len(levels)),
        by_source=by_source,
        by_target=by_target,
        last_use=last_use,
    )


def _arc_columns(
    lattice: Lattice, weights: PathWeights, start: int, words: dict[str, int], spelling: LabelTokens
) -> tuple[Indices, Indices, Indices, Indices, Scores, Scores]:
    """Sources, targets, labels, own places, fixed and expected scores of a lattice's arcs and of its sentence end."""
    numbers = np.array([words[word] for word in lattice.words])
    labels = np.append(numbers[lattice.labels], spelling.end)
    fixed = np.append(weights.am * lattice.am + weights.old_lm * lattice.old_lm, 0.0)
    fixed += weights.words * spelling.num_words[labels] + weights.unk * spelling.num_unknown[labels]
    return (
        start + np.append(lattice.sources, lattice.num_nodes - 1),
        start + np.append(lattice.targets, lattice.num_nodes),
        labels,
        np.arange(lattice.num_arcs + 1),
        fixed,
        fixed + weights.lm * np.append(lattice.old_lm, 0.0),
    )


def _backward_scores(
    sources: Indices, targets: Indices, scores: Scores, by_source: ArcLevels, num_nodes: int
) -> Scores:
    """The best sum of arcs' scores from each node to the end [N]."""
    best = np.full(num_nodes, -np.inf)
    best[np.setdiff1d(np.arange(num_nodes), sources)] = 0.0
    for level in reversed(range(by_source.num_levels)):
        arcs = by_source.of(level)
        np.maximum.at(best, sources[arcs], scores[arcs] + best[targets[arcs]])
    return best
