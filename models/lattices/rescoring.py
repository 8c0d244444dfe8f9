"""Rescoring of lattices with a language model: token graphs, n-best paths, oracle path.

N-best lists hold distinct word strings, exactly. Strings are built from their ends; a suffix keeps
all tokens from which it can begin and the best score from each, so each string is found once, and
strings come in the order of their totals.

Source: Mohri and Riley (2002), "An efficient algorithm for the n-best-strings problem".
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.language_model import LanguageModel
from models.lattices.graph import (
    LabelTokenizer,
    LatticeGraph,
    PathWeights,
    build_graph,
    number_words,
)
from models.lattices.lattice import (
    NO_VARIANT,
    NO_WORD,
    ArcColumns,
    Indices,
    Lattice,
    Scales,
    Scores,
    build_lattice,
    group_by_level,
    index_ranges,
    node_depths,
)
from models.lattices.token_passing import (
    GrowableArray,
    LatticeSearchSettings,
    TokenEdges,
    TokenGraph,
    pass_tokens,
)
from models.reranking.candidates import Candidate, CandidateList


@dataclass(frozen=True, eq=False, slots=True)
class RescoredLattice:
    """The graph of T tokens in which the paths of a lattice have their new scores.

    Token 0 is at the start. The last one is behind the end; the ways to it have the lattice's number of arcs in the
    index of an arc, and the log-probability of the end of the sentence.

    Attributes:
        lattice: what was rescored.
        weights: of its features.
        tokens: of the graph; nodes, arcs and tokens are numbered as in this lattice alone.
        unknown: tokens that are `<unk>` to the model in each of the lattice's words, and 0 for the sentence's end.
    """

    lattice: Lattice
    weights: PathWeights
    tokens: TokenGraph
    unknown: Indices

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.tokens.nodes)

    def labels(self) -> Indices:
        """The label of each way in the lattice's words [E]; the end of the sentence has none."""
        return np.append(self.lattice.labels, 0)[self.tokens.edges.arcs]

    def features(self) -> dict[str, Scores]:
        """Each way's features by name [E], those that `Weights` weighs."""
        arcs, labels = self.tokens.edges.arcs, self.labels()
        return {
            "am": np.append(self.lattice.am, 0.0)[arcs],
            "old_lm": np.append(self.lattice.old_lm, 0.0)[arcs],
            "lm": self.tokens.edges.log_probs,
            "words": (labels > 0).astype(np.float64),
            "unk": self.unknown[labels].astype(np.float64),
        }

    def as_lattice(self) -> Lattice:
        """The tokens as a lattice, whose scores and scales weigh its paths as they were weighed here.

        The language model's score of an arc is what the new and the old one give together, penalties of unknown
        words included.
        """
        tokens, lattice, weights = self.tokens, self.lattice, self.weights
        arcs, labels, features = tokens.edges.arcs, self.labels(), self.features()
        scale = weights.lm + weights.old_lm
        lm = features["lm"] * weights.lm + features["old_lm"] * weights.old_lm + features["unk"] * weights.unk
        words = lattice.words
        alignments = (*lattice.alignments, "") if lattice.alignments else ("",) * (lattice.num_arcs + 1)
        variants = np.full(lattice.num_arcs, NO_VARIANT) if lattice.variants is None else lattice.variants
        return build_lattice(
            ArcColumns(
                sources=tokens.edges.parents,
                targets=np.repeat(np.arange(self.num_tokens), np.diff(tokens.offsets)),
                words=[words[label] for label in labels.tolist()],
                am=features["am"],
                old_lm=lm / scale if scale else lm,
                variants=np.append(variants, NO_VARIANT)[arcs],
                alignments=[alignments[arc] for arc in arcs.tolist()],
            ),
            name=lattice.name,
            start=0,
            end=self.num_tokens - 1,
            times=np.append(lattice.times, lattice.times[-1])[tokens.nodes],
            scales=Scales(weights.am, scale or 1.0, weights.words),
        )


def rescore(
    lattices: Sequence[Lattice],
    model: LanguageModel[Any],
    speller: LabelTokenizer,
    *,
    weights: Sequence[PathWeights],
    search: LatticeSearchSettings,
) -> list[RescoredLattice]:
    """Rescore lattices with a model, all of them together.

    Args:
        lattices: any number; what one of them gets does not depend on the others.
        model: of any family; it reads from left to right.
        speller: of the model's tokenizer.
        weights: of the features of each lattice.
        search: how thoroughly; without a beam and with no more tokens to a node than allowed, nothing is lost where
            the model's states tell which ways have the same future.

    Raises:
        UnsupportedParameterError: the tokens of words depend on what stands beside them.
    """
    if not lattices:
        return []
    words = number_words(lattices)
    spelling = speller.label_tokens(list(words))
    joined = build_graph(lattices, weights, words, spelling)
    graphs = split_graph(pass_tokens(model, joined, spelling, search), joined)
    return [
        RescoredLattice(
            lattice, weighing, graph, spelling.num_unknown[[words[word] for word in lattice.words]]
        )
        for lattice, weighing, graph in zip(lattices, weights, graphs, strict=True)
    ]


def split_graph(graph: TokenGraph, joined: LatticeGraph) -> list[TokenGraph]:
    """The tokens of each lattice, numbered as if it had been walked alone."""
    owners = joined.lattice_of[graph.nodes]
    order = np.argsort(owners, kind="stable")
    numbers = np.empty(len(order), dtype=np.int64)
    firsts = np.searchsorted(owners[order], np.arange(len(joined.starts) + 1))
    numbers[order] = np.arange(len(order)) - firsts[owners[order]]
    answers = []
    for lattice, (begin, end) in enumerate(itertools.pairwise(firsts.tolist())):
        tokens = order[begin:end]
        counts = graph.offsets[tokens + 1] - graph.offsets[tokens]
        ways = graph.edges.select(index_ranges(graph.offsets[tokens], graph.offsets[tokens + 1]))
        own = TokenEdges(numbers[ways.parents], joined.own_arcs[ways.arcs], ways.log_probs, ways.scores)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        nodes = graph.nodes[tokens] - joined.starts[lattice]
        answers.append(TokenGraph(nodes, graph.forward[tokens], offsets, own))
    return answers


class LatticePath(NamedTuple):
    """A word string and the best path that spells it.

    Attributes:
        text: words, with spaces between.
        total: weighted sum of the path's features.
        edges: indices of its ways in the graph, from the start on.
    """

    text: str
    total: float
    edges: Indices


def nbest_paths(rescored: RescoredLattice, count: int) -> list[LatticePath]:
    """The best paths of distinct word strings, the best first; fewer if there are no more."""
    return list(itertools.islice(_paths_by_score(rescored), count))


def nbest_candidates(rescored: RescoredLattice, count: int) -> CandidateList:
    """The best paths as an n-best list, with the features that `Weights` weighs."""
    features = rescored.features()
    candidates = tuple(
        Candidate(path.text, {name: float(values[path.edges].sum()) for name, values in features.items()})
        for path in nbest_paths(rescored, count)
    )
    return CandidateList(rescored.lattice.name, "", candidates)


class _Suffix(NamedTuple):
    """A string's last words, and the best path that spells them from each token where they may begin.

    Attributes:
        word: label of the first of them.
        rest: the ending after it; None for the end of the sentence.
        tokens: where it may begin, ascending [K].
        totals: of the best path from there on [K].
        steps: the first step of that path [K].
    """

    word: int
    rest: "_Suffix | None"
    tokens: Indices
    totals: Scores
    steps: Indices

    def words(self) -> list[int]:
        """Labels of all its words, in order."""
        labels: list[int] = []
        ending: _Suffix | None = self
        while ending is not None and ending.rest is not None:
            labels.append(ending.word)
            ending = ending.rest
        return labels


class _SuffixGraph:
    """A rescored lattice with the steps of paths that were found in it, each a way and the step after it."""

    def __init__(self, rescored: RescoredLattice) -> None:
        self.tokens, self.labels = rescored.tokens, rescored.labels()
        self._last = rescored.num_tokens - 1
        self._step_edges, self._step_nexts = GrowableArray(np.int64), GrowableArray(np.int64)
        silent = np.flatnonzero(self.labels == NO_WORD)
        # whether a way without a word leads there
        self._is_silent = np.zeros(rescored.num_tokens, dtype=np.bool_)
        self._is_silent[np.searchsorted(self.tokens.offsets, silent, side="right") - 1] = True

    def sentence_end(self) -> _Suffix:
        """The ending without words."""
        tokens, none = np.array([self._last]), np.array([-1])
        return self._with_silence(_Suffix(NO_WORD, None, tokens, np.zeros(1), none))

    def extensions(self, ending: _Suffix) -> Iterator[tuple[float, Callable[[], _Suffix]]]:
        """For each word that may come before an ending, the best total so, and what makes the longer ending."""
        ways, indices = self._edges_to(ending.tokens)
        order = np.argsort(self.labels[ways], kind="stable")
        order = order[np.searchsorted(self.labels[ways[order]], NO_WORD, side="right") :]
        ways, indices = ways[order], indices[order]
        totals, nexts = self.tokens.edges.scores[ways] + ending.totals[indices], ending.steps[indices]
        begins = np.flatnonzero(np.diff(self.labels[ways], prepend=NO_WORD))
        if not begins.size:
            return
        before = self.tokens.forward[self.tokens.edges.parents[ways]]
        bounds = np.maximum.reduceat(before + totals, begins).tolist()
        for bound, begin, end in zip(bounds, begins, np.append(begins[1:], len(ways)), strict=True):
            yield bound, partial(self._extend, ending, ways[begin:end], totals[begin:end], nexts[begin:end])

    def path(self, step: int) -> Indices:
        """The ways of a path from a step on."""
        ways = []
        while step >= 0:
            ways.append(int(self._step_edges[step]))
            step = int(self._step_nexts[step])
        return np.array(ways, dtype=np.int64)

    def _extend(self, ending: _Suffix, ways: Indices, totals: Scores, nexts: Indices) -> _Suffix:
        """An ending with the word of some ways before it."""
        found = self._best_by_token(ways, totals, nexts)
        return self._with_silence(found._replace(word=int(self.labels[ways[0]]), rest=ending))

    def _with_silence(self, ending: _Suffix) -> _Suffix:
        """The same words, begun after ways without a word too."""
        fresh = np.flatnonzero(self._is_silent[ending.tokens])
        while fresh.size:
            ways, indices = self._edges_to(ending.tokens[fresh])
            silent = np.flatnonzero(self.labels[ways] == NO_WORD)
            ways, indices = ways[silent], fresh[indices[silent]]
            found = self._best_by_token(
                ways, self.tokens.edges.scores[ways] + ending.totals[indices], ending.steps[indices]
            )
            ending, is_new = _merge_suffixes(ending, found)
            fresh = np.flatnonzero(is_new & self._is_silent[ending.tokens])
        return ending

    def _edges_to(self, tokens: Indices) -> tuple[Indices, Indices]:
        """All ways to some tokens, and to which of them each leads."""
        begins, ends = self.tokens.offsets[tokens], self.tokens.offsets[tokens + 1]
        return index_ranges(begins, ends), np.repeat(np.arange(len(tokens)), ends - begins)

    def _best_by_token(self, ways: Indices, totals: Scores, nexts: Indices) -> _Suffix:
        """The best of some ways from each token, as steps."""
        parents = self.tokens.edges.parents[ways]
        order = np.lexsort((-totals, parents))
        tokens, firsts = np.unique(parents[order], return_index=True)
        best = order[firsts]
        steps = len(self._step_edges) + np.arange(len(best))
        self._step_edges.append(ways[best])
        self._step_nexts.append(nexts[best])
        return _Suffix(NO_WORD, None, tokens, totals[best], steps)


def _merge_suffixes(ending: _Suffix, found: _Suffix) -> tuple[_Suffix, npt.NDArray[np.bool_]]:
    """An ending with what was found besides, and which of its beginnings are new or better."""
    tokens = np.concatenate([ending.tokens, found.tokens])
    totals = np.concatenate([ending.totals, found.totals])
    steps = np.concatenate([ending.steps, found.steps])
    order = np.lexsort((-totals, tokens))  # stable: of equal ones, those that were there
    _, firsts = np.unique(tokens[order], return_index=True)
    best = order[firsts]
    return ending._replace(tokens=tokens[best], totals=totals[best], steps=steps[best]), best >= len(
        ending.tokens
    )


def _paths_by_score(rescored: RescoredLattice) -> Iterator[LatticePath]:
    """All paths of distinct strings, by falling total."""
    graph, words = _SuffixGraph(rescored), rescored.lattice.words
    serial = itertools.count()
    heap: list[tuple[float, int, LatticePath | Callable[[], _Suffix]]] = []

    def reach(ending: _Suffix) -> None:
        """Put an ending's whole string and its longer ones, if they are any, where they wait for their turn."""
        if ending.tokens[0] == 0:
            text = " ".join(words[label] for label in ending.words())
            path = LatticePath(text, float(ending.totals[0]), graph.path(int(ending.steps[0])))
            heapq.heappush(heap, (-path.total, next(serial), path))
        for bound, extend in graph.extensions(ending):
            heapq.heappush(heap, (-bound, next(serial), extend))

    reach(graph.sentence_end())
    while heap:
        _, _, item = heapq.heappop(heap)
        if isinstance(item, LatticePath):
            yield item
        else:
            reach(item())


ErrorCounts = npt.NDArray[np.int32]


def oracle_errors(lattice: Lattice, reference: Sequence[str]) -> int:
    """Substitutions, insertions and deletions on the path with the fewest; words are compared as they are written.

    By dynamic programming over nodes and positions in the reference.
    """
    indices = {word: label for label, word in enumerate(lattice.words) if word}
    right = np.array([indices.get(word, -1) for word in reference], dtype=np.int64)
    # fewest errors on a path to each node, against the beginnings of the reference [N, R + 1]
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
            _extend_along_arcs(costs[lattice.sources[arcs]], lattice.labels[arcs], right), firsts
        )
        # words of the reference that the path leaves out
        costs[targets] = np.minimum.accumulate(best - lengths, axis=1) + lengths
    return int(costs[-1, -1])


def _extend_along_arcs(costs: ErrorCounts, labels: Indices, reference: Indices) -> ErrorCounts:
    """Errors after arcs [A, R + 1], given those before them; deletions after the arc's word left out."""
    spoken = labels != NO_WORD
    after: ErrorCounts = costs + spoken[:, None]
    matched = costs[:, :-1] + (labels[:, None] != reference)
    after[spoken, 1:] = np.minimum(after[spoken, 1:], matched[spoken])
    return after
