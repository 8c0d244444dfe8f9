"""Word lattice in flat arrays, its construction from arcs in any order, and word labels.

Nodes are in topological order, arcs ordered by source; every node is on a path from
the start to the end.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import types

from models.arrays import Bools, Float64s, Int64s
from models.errors import FormatError, InputError
from models.files import split_words
from models.kernels.compilation import kernel
from models.reranking.proposals import Proposal, sum_of

Indices = Int64s
Scores = Float64s

NO_WORD = 0
"""Label of arcs without a word, such as silence or mere connections."""

NO_VARIANT = -1
MAX_NODES = 1 << 20
MAX_ARCS = 1 << 22
MAX_SCORE = 1e100
"""Maximum magnitude of a score; beyond it, weighted sums of paths might not be finite."""

ArcLevels: TypeAlias = list[Indices]
"""Indices of arcs, grouped by the level of one of their nodes; a level may be empty."""

NON_WORD_LABELS = frozenset({"!NULL", "!ENTER", "!EXIT", "!SENT_START", "!SENT_END", "<s>", "</s>", "<eps>"})
"""Labels without a word: sentence ends, and HTK's and Kaldi's on arcs that only connect the graph."""

_BACKOFF_SYMBOL = "#0"
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Scales:
    """Score scales in a lattice's file.

    Attributes:
        am: factor of acoustic scores.
        lm: factor of language model scores.
        words: natural logarithm that is added per word.
    """

    am: float = 1.0
    lm: float = 1.0
    words: float = 0.0


@dataclass(frozen=True, eq=False)
class Lattice:
    """N nodes in topological order and A arcs, ordered by source.

    Node 0 is the start and node N − 1 the end; every node is on a path between them
    (`build_lattice`). Scores are natural logarithms; larger is better.

    Attributes:
        name: utterance id.
        words: distinct words; the first is empty, for arcs without a word.
        sources: source node of each arc [A].
        targets: target node of each arc [A].
        labels: index in `words` of each arc's word [A].
        am: acoustic score of each arc [A].
        old_lm: score of each arc by the first pass's language model [A].
        times: time of each node, in seconds from the start [N]; NaN if unknown.
        variants: pronunciation number of each arc's word [A]; −1 if unknown.
        scales: scales of these scores in the file.
        alignments: transition-ids of each arc as Kaldi writes them; empty if the
            format has none.
        references: correct texts, if known; several are alternatives.
        proposals: proposals by arc, of several that write a proposal's words the
            first.
    """

    name: str | None
    words: tuple[str, ...]
    sources: Indices
    targets: Indices
    labels: Indices
    am: Scores
    old_lm: Scores
    times: Scores
    variants: Indices
    scales: Scales = Scales()
    alignments: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    proposals: Mapping[int, Proposal] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, at least 2."""
        return len(self.times)

    @property
    def num_arcs(self) -> int:
        """Number of arcs A, at least 1."""
        return len(self.sources)

    def proposed(self, feature: str) -> Scores:
        """Values of a feature of proposals [A]; 0 for arcs of the first pass."""
        values = np.zeros(self.num_arcs)
        for arc, proposal in self.proposals.items():
            values[arc] = sum_of(feature, [proposal])
        return values


def check_size(num_nodes: int, num_arcs: int) -> None:
    """Refuse lattices without arcs or beyond the limits.

    Raises:
        InputError: the message names the limit.
    """
    if num_arcs == 0:
        raise InputError("the lattice has no arcs", param="lattice")
    for what, count, limit in (("nodes", num_nodes, MAX_NODES), ("arcs", num_arcs, MAX_ARCS)):
        if count > limit:
            raise InputError(f"the lattice has {count} {what}; at most {limit} are allowed", param="lattice")


class Arc(NamedTuple):
    """Arc between numbered nodes, as in a file.

    Attributes:
        source: source node.
        target: target node.
        word: its word; empty if it has none.
        am: acoustic score, a natural logarithm.
        old_lm: score by the first pass's language model, a natural logarithm.
        variant: pronunciation number; −1 if unknown.
        alignment: transition-ids; empty if the format has none.
    """

    source: int
    target: int
    word: str
    am: float
    old_lm: float
    variant: int = NO_VARIANT
    alignment: str = ""


class ArcColumns(NamedTuple):
    """A arcs between numbered nodes, as columns; see `Arc`."""

    sources: Indices
    targets: Indices
    words: Sequence[str]
    am: Scores
    old_lm: Scores
    variants: Indices
    alignments: Sequence[str]


def group_by_level(levels: Indices, num_levels: int) -> ArcLevels:
    """Group arcs by level [A], in their order within a level."""
    order = np.argsort(levels, kind="stable")
    return np.split(order, np.searchsorted(levels[order], np.arange(1, num_levels)))


@kernel(types.int64[::1](types.int64[::1], types.int64[::1], types.int64))
def node_depths(sources: Indices, targets: Indices, num_nodes: int) -> Indices:
    """Count the arcs on the longest path to each node from a node without incoming arcs [N].

    Nodes of equal depth are not connected; arcs lead to greater depths. Nodes on or
    after cycles get −1.
    """
    begins, missing = np.zeros(num_nodes + 1, np.int64), np.zeros(num_nodes, np.int64)
    for arc in range(len(sources)):
        begins[sources[arc] + 1] += 1
        missing[targets[arc]] += 1
    begins = np.cumsum(begins)
    reached, filled = np.empty(len(sources), np.int64), begins.copy()  # targets by source
    for arc in range(len(sources)):
        reached[filled[sources[arc]]] = targets[arc]
        filled[sources[arc]] += 1
    # topological order (Kahn 1962)
    answer, queue, size = np.full(num_nodes, -1, np.int64), np.empty(num_nodes, np.int64), 0
    depths = np.zeros(num_nodes, np.int64)
    for node in range(num_nodes):
        if missing[node] == 0:
            queue[size] = node
            size += 1
    done = 0
    while done < size:
        node = queue[done]
        done += 1
        answer[node] = depths[node]
        for target in reached[begins[node] : begins[node + 1]]:
            depths[target] = max(depths[target], depths[node] + 1)
            missing[target] -= 1
            if missing[target] == 0:
                queue[size] = target
                size += 1
    return answer


def build_lattice(
    arcs: Sequence[Arc] | ArcColumns,
    *,
    name: str | None,
    start: int,
    end: int,
    times: Scores,
    scales: Scales = Scales(),
    references: tuple[str, ...] = (),
    proposals: Mapping[int, Proposal] | None = None,
) -> Lattice:
    """Build the lattice of all paths between two nodes; other arcs and nodes are dropped.

    Args:
        arcs: in any order.
        name: utterance id.
        start: first node of all paths.
        end: last node of all paths.
        times: time of each node in seconds [N]; nodes are 0 to N − 1.
        scales: scales of the scores in the file.
        references: correct texts.
        proposals: proposals by index of their arcs.

    Raises:
        InputError: a cycle, no path, a score out of range, or too many nodes or
            arcs.
    """
    check_size(len(times), len(arcs.sources if isinstance(arcs, ArcColumns) else arcs))
    given: Iterable[Any] = arcs if isinstance(arcs, ArcColumns) else zip(*arcs, strict=True)
    parts: list[Any] = [part if isinstance(part[0], str) else np.array(part) for part in given]
    columns = ArcColumns(*parts)
    sources, targets = columns.sources, columns.targets
    depth = node_depths(sources, targets, len(times))
    if (depth < 0).any():
        raise InputError(
            f"node {_find_cycle_node(sources, targets, depth)} is on a cycle; a lattice must be acyclic",
            param="lattice",
        )
    used = _nodes_on_paths(sources, targets, depth, start=start, end=end)
    arc_ids = np.flatnonzero(used[sources] & used[targets])
    if not arc_ids.size:
        raise InputError(f"no path leads from node {start} to node {end}", param="lattice")
    nodes = np.flatnonzero(used)
    if (sources > targets)[arc_ids].any():
        nodes = nodes[np.argsort(depth[nodes], kind="stable")]
    ranks = np.empty(len(times), np.int64)
    ranks[nodes] = np.arange(len(nodes))
    arc_ids = arc_ids[np.argsort(ranks[sources[arc_ids]], kind="stable")]
    labels: dict[str, int] = {"": 0}
    rows = arc_ids.tolist()
    return Lattice(
        name=name,
        labels=np.array([labels.setdefault(columns.words[row], len(labels)) for row in rows]),
        words=tuple(labels),
        sources=ranks[sources[arc_ids]],
        targets=ranks[targets[arc_ids]],
        am=_checked_scores(columns.am[arc_ids]),
        old_lm=_checked_scores(columns.old_lm[arc_ids]),
        times=times[nodes],
        variants=columns.variants[arc_ids],
        scales=scales,
        alignments=tuple(columns.alignments[row] for row in rows) if any(columns.alignments) else (),
        references=references,
        proposals={new: proposals[row] for new, row in enumerate(rows) if row in proposals}
        if proposals
        else {},
    )


def lattice_of_arcs(
    arcs: Sequence[tuple[int, int, str, float, float]], *, times: Sequence[float] | None, most: int
) -> Lattice:
    """Build a lattice from the node 0 to that of the highest number.

    Args:
        arcs: source, target, word, acoustic score and score by the first pass's
            language model.
        times: time of each node, in seconds; None if unknown.
        most: maximum number of arcs.

    Raises:
        InputError: see `build_lattice`; or a number or a word is invalid.
    """
    if not arcs or len(arcs) > most:
        raise InputError(f"has {len(arcs)} entries; 1 to {most} are accepted")
    end = max(max(source, target) for source, target, *_ in arcs)
    if end > len(arcs):
        raise InputError(f"has the node {end}; numbers go up to the number of arcs, {len(arcs)}")
    if times is not None and len(times) != end + 1:
        raise InputError(f"has the nodes 0 to {end}, but there are {len(times)} times")
    known = np.full(end + 1, np.nan) if times is None else np.array(times, np.float64)
    columns = [
        Arc(source, target, word_of_label(word, NON_WORD_LABELS | {""}), am, old_lm)
        for source, target, word, am, old_lm in arcs
    ]
    return build_lattice(columns, name=None, start=0, end=end, times=known)


def lattice_of_confusions(places: Sequence[Sequence[tuple[str, float]]], *, most: int) -> Lattice:
    """Build the lattice of a confusion network.

    Args:
        places: alternatives at each place: words, separated by white space, or
            none, and acoustic score.
        most: maximum number of arcs.

    Raises:
        InputError: see `build_lattice`; or a place has no alternatives.
    """
    if not places:
        raise InputError("has no places; at least one is needed")
    arcs, last = list[tuple[int, int, str, float]](), len(places)
    for number, place in enumerate(places):
        if not place:
            raise InputError(f"has no alternatives at place {number}")
        for text, am in place:
            words, node = split_words(text) or [""], number
            for word in words[:-1]:
                last += 1
                arcs.append((node, last, word, am if node == number else 0.0))
                node = last
            arcs.append((node, number + 1, words[-1], am if node == number else 0.0))
        if len(arcs) > most:
            raise InputError(f"has more than {most} words, the maximum")
    columns = [Arc(*one[:2], word_of_label(one[2], NON_WORD_LABELS | {""}), one[3], 0.0) for one in arcs]
    return build_lattice(columns, name=None, start=0, end=len(places), times=np.full(last + 1, np.nan))


def _checked_scores(scores: Scores) -> Scores:
    wrong = scores[~(np.abs(scores) <= MAX_SCORE)]
    if wrong.size:
        raise InputError(
            f"a score is {wrong[0]:g}; it must be from {-MAX_SCORE:g} to {MAX_SCORE:g}", param="lattice"
        )
    return scores


def _nodes_on_paths(sources: Indices, targets: Indices, depth: Indices, *, start: int, end: int) -> Bools:
    """Mask of the nodes on a path from the start to the end [N]."""
    levels = group_by_level(depth[sources], int(depth.max()) + 1)
    reached, reaching = np.zeros((2, len(depth)), np.bool_)
    reached[start] = reaching[end] = True
    for arcs in levels:
        reached[targets[arcs[reached[sources[arcs]]]]] = True
    for arcs in reversed(levels):
        reaching[sources[arcs[reaching[targets[arcs]]]]] = True
    return reached & reaching


def _find_cycle_node(sources: Indices, targets: Indices, depth: Indices) -> int:
    """Find a node on a cycle; every node without a depth has an arc from another such node."""
    unfinished = depth[sources] < 0
    before = dict(zip(targets[unfinished].tolist(), sources[unfinished].tolist(), strict=True))
    node = int(np.flatnonzero(depth < 0)[0])
    seen: set[int] = set()
    while node not in seen:
        seen.add(node)
        node = before[node]
    return node


class SymbolTable(NamedTuple):
    """Kaldi's words.txt: words and their numbers.

    Attributes:
        words: words by number.
        ids: numbers by word.
    """

    words: Mapping[int, str]
    ids: Mapping[str, int]


def read_symbols(lines: Iterable[bytes], source: str) -> SymbolTable:
    """Read a symbol table, a word and its number per line; messages name the file `source`.

    Raises:
        FormatError: a line is invalid, or a word or number occurs twice.
    """
    words: dict[int, str] = {}
    ids: dict[str, int] = {}
    for line_number, line in enumerate(lines, start=1):
        location = f"{source}:{line_number}"
        try:
            fields = split_words(decode_line(line))
        except InputError as error:
            raise FormatError(location, str(error)) from None
        if not fields:
            continue
        if len(fields) != 2 or not is_whole_number(fields[1]):
            raise FormatError(location, "not a word and a number", hint="give Kaldi's words.txt")
        word, number = fields[0], int(fields[1])
        if word in ids or number in words:
            raise FormatError(location, f"{word if word in ids else number} occurs twice")
        words[number], ids[word] = word, number
    return SymbolTable(words, ids)


def decode_line(line: bytes) -> str:
    """Decode a line of a text file.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InputError("the line is not UTF-8; convert the file, for example with iconv") from None


def is_whole_number(text: str) -> bool:
    """True if a text is the number of a word or state, within 64 bits."""
    return len(text) <= _MOST_DIGITS and text.isdecimal()


def word_of_label(label: str, no_words: Collection[str]) -> str:
    """Return the word of a label in a file; empty for `no_words`, labels that are not words.

    Raises:
        InputError: it cannot be a word.
    """
    if label in no_words:
        return ""
    if split_words(label) != [label]:
        raise InputError(f"the word {label!r} is empty or contains white space")
    if label == _BACKOFF_SYMBOL:
        raise InputError(
            f"{label} is a back-off symbol of the decoding graph; remove it from the lattices first"
        )
    return label
