"""From a file's arcs, in whatever order and numbering, to a lattice."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.lattices.lattice import NO_VARIANT, Indices, Lattice, Scales, Scores, check_size


class ArcColumns(NamedTuple):
    """A arcs between numbered nodes.

    Attributes:
        sources: node that each leaves.
        targets: node that it leads to.
        words: its word; empty if it has none.
        am: acoustic score, a natural logarithm.
        old_lm: score by the first pass's language model, a natural logarithm.
        variants: which pronunciation; −1 where that is not known.
        alignments: transition-ids; empty where the format has none.
    """

    sources: Sequence[int] | Indices
    targets: Sequence[int] | Indices
    words: Sequence[str]
    am: Sequence[float] | Scores
    old_lm: Sequence[float] | Scores
    variants: Sequence[int] | Indices = ()
    alignments: Sequence[str] = ()


class ArcLevels(NamedTuple):
    """Arcs by the level of one of their nodes.

    Attributes:
        order: places of the arcs, ordered by level [A].
        starts: where each level begins in it, and A at the end.
    """

    order: Indices
    starts: Indices

    def of(self, level: int) -> Indices:
        """The arcs of a level."""
        return self.order[self.starts[level] : self.starts[level + 1]]

    @property
    def num_levels(self) -> int:
        """Levels with or without arcs."""
        return len(self.starts) - 1


def group_by_level(levels: Indices, num_levels: int) -> ArcLevels:
    """Arcs grouped by level [A], within one in the order they have."""
    order = np.argsort(levels, kind="stable")
    return ArcLevels(order, np.searchsorted(levels[order], np.arange(num_levels + 1)))


def node_depths(sources: Indices, targets: Indices, num_nodes: int) -> Indices:
    """Arcs on the longest way to each node from one that none leads to [N]; −1 on cycles and behind them.

    So nodes of one depth are not connected, and all arcs lead to greater depths.
    """
    order = np.argsort(sources, kind="stable")
    starts = np.searchsorted(sources[order], np.arange(num_nodes + 1))
    missing = np.bincount(targets, minlength=num_nodes)
    answer = np.full(num_nodes, -1, dtype=np.int64)
    frontier, depth = np.flatnonzero(missing == 0), 0
    while frontier.size:
        answer[frontier] = depth
        reached = targets[order[index_ranges(starts[frontier], starts[frontier + 1])]]
        np.subtract.at(missing, reached, 1)
        frontier, depth = np.unique(reached[missing[reached] == 0]), depth + 1
    return answer


def index_ranges(begins: Indices, ends: Indices) -> Indices:
    """The numbers begins[0], …, ends[0] − 1, begins[1], …, ends[1] − 1, …."""
    counts = ends - begins
    before = np.cumsum(counts) - counts
    numbers: Indices = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
    return numbers


def build_lattice(
    arcs: ArcColumns,
    *,
    name: str | None,
    start: int,
    end: int,
    times: Scores,
    scales: Scales = Scales(),  # noqa: B008 - a value
) -> Lattice:
    """The lattice of all paths from one node to another; arcs and nodes on none of them are dropped.

    Args:
        arcs: in any order.
        name: the utterance's id.
        start: where paths begin.
        end: where they end.
        times: of all nodes, seconds [N]; nodes are numbered from 0 to N − 1.
        scales: how the file weighs scores.

    Raises:
        InvalidInputError: there is a cycle, no path, or more than the limits allow.
    """
    check_size(len(times), len(arcs.sources))
    sources, targets = (np.asarray(column, dtype=np.int64) for column in (arcs.sources, arcs.targets))
    depth = node_depths(sources, targets, len(times))
    if (depth < 0).any():
        raise InvalidInputError(
            f"node {_find_cycle_node(sources, targets, depth)} is on a cycle; a lattice has none",
            parameter="lattice",
        )
    used = _nodes_on_paths(sources, targets, depth, start=start, end=end)
    kept = np.flatnonzero(used[sources] & used[targets])
    if not kept.size:
        raise InvalidInputError(f"no path leads from node {start} to node {end}", parameter="lattice")
    nodes = np.flatnonzero(used)
    if (sources > targets)[kept].any():
        nodes = nodes[np.argsort(depth[nodes], kind="stable")]
    places = np.empty(len(times), dtype=np.int64)
    places[nodes] = np.arange(len(nodes))
    kept = kept[np.argsort(places[sources[kept]], kind="stable")]
    labels: dict[str, int] = {"": 0}
    rows = kept.tolist()
    variants = np.asarray(arcs.variants, dtype=np.int64)
    return Lattice(
        name=name,
        labels=np.array([labels.setdefault(arcs.words[row], len(labels)) for row in rows], dtype=np.int64),
        words=tuple(labels),
        sources=places[sources[kept]],
        targets=places[targets[kept]],
        am=np.asarray(arcs.am, dtype=np.float64)[kept],
        old_lm=np.asarray(arcs.old_lm, dtype=np.float64)[kept],
        times=times[nodes],
        scales=scales,
        variants=variants[kept] if (variants != NO_VARIANT).any() else None,
        alignments=tuple(arcs.alignments[row] for row in rows) if arcs.alignments else (),
    )


def _nodes_on_paths(
    sources: Indices, targets: Indices, depth: Indices, *, start: int, end: int
) -> npt.NDArray[np.bool_]:
    """Which nodes [N] lie on a path from the start to the end."""
    levels = group_by_level(depth[sources], int(depth.max()) + 1)
    reached, reaching = np.zeros((2, len(depth)), dtype=np.bool_)
    reached[start] = reaching[end] = True
    for level in range(levels.num_levels):
        arcs = levels.of(level)
        reached[targets[arcs[reached[sources[arcs]]]]] = True
    for level in reversed(range(levels.num_levels)):
        arcs = levels.of(level)
        reaching[sources[arcs[reaching[targets[arcs]]]]] = True
    both: npt.NDArray[np.bool_] = reached & reaching
    return both


def _find_cycle_node(sources: Indices, targets: Indices, depth: Indices) -> int:
    """A node on a cycle: of nodes without a depth, each has an arc from such a one."""
    before = dict(
        zip(targets[depth[sources] < 0].tolist(), sources[depth[sources] < 0].tolist(), strict=True)
    )
    node = int(np.flatnonzero(depth < 0)[0])
    seen: set[int] = set()
    while node not in seen:
        seen.add(node)
        node = before[node]
    return node
