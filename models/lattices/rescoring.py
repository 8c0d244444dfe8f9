"""Rescoring of lattices with a language model: token graphs, n-best paths, oracle path.

N-best lists are exact, with distinct word strings. Strings are built from their
ends: a suffix stores all tokens at which it can start, with the best score from
each. So each string is found once, in descending order of totals.

Source: Mohri and Riley (2002), "An efficient algorithm for the n-best-strings
problem".
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Int32s, index_ranges
from models.calls import Work, run_to_completion
from models.language_model import LOG_ZERO, LanguageModel
from models.lattices.graph import LabelTokenizer, LatticeGraph, PathWeights, build_graph
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
    node_depths,
)
from models.lattices.ngram_passing import pass_ngram_tokens
from models.lattices.token_passing import (
    GrowableArray,
    LatticeSearch,
    PhrasePaths,
    TokenGraph,
    TokenPassing,
)
from models.ngram.model import NGramModel
from models.phrases import NO_PHRASES, PhraseList, is_phrase_feature
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.proposals import Proposal, ProposedCandidate

_SUFFIXES_PER_STEP = 64
"""Suffixes of strings, of some tens of microseconds each, before other computations run."""


@dataclass(frozen=True, eq=False, slots=True)
class RescoredLattice:
    """Graph of T tokens with the new scores of a lattice's paths.

    Token 0 is at the start, the last token after the end. Edges to the last token
    have the lattice's number of arcs as arc index, and the log-probability of the
    end of the sentence.

    Attributes:
        lattice: the lattice that was rescored.
        weights: feature weights.
        tokens: the token graph, numbered within this lattice.
        unknown: number of `<unk>` tokens of each word; 0 for the end of the
            sentence.
    """

    lattice: Lattice
    weights: PathWeights
    tokens: TokenGraph
    unknown: Indices

    @property
    def num_tokens(self) -> int:
        """Number of tokens T."""
        return len(self.tokens.nodes)

    def labels(self) -> Indices:
        """Index of each edge's word in the lattice's words [E]; 0 for the end of the sentence."""
        return np.append(self.lattice.labels, 0)[self.tokens.edges.arcs]

    def features(self) -> dict[str, Scores]:
        """Features of each edge by name [E], as weighted by `PathWeights`."""
        arcs, labels = self.tokens.edges.arcs, self.labels()
        return {
            "am": np.append(self.lattice.am, 0.0)[arcs],
            "old_lm": np.append(self.lattice.old_lm, 0.0)[arcs],
            "lm": self.tokens.edges.log_probs,
            "words": (labels > 0).astype(np.float64),
            "unk": self.unknown[labels] + self.tokens.edges.added[:, -1],
            **dict(zip(self.weights.phrases, self.tokens.edges.added.T[:-1], strict=True)),
            **{name: np.append(self.lattice.proposed(name), 0.0)[arcs] for name in self.weights.proposals},
        }

    def proposals(self, path: "LatticePath") -> list[Proposal]:
        """Return the proposals in a path, in order."""
        arcs = self.tokens.edges.arcs[path.edges].tolist()
        return [self.lattice.proposals[arc] for arc in arcs if arc in self.lattice.proposals]

    def as_lattice(self) -> Lattice:
        """Convert to a lattice whose scores and scales give each path the same total.

        An arc's language model score is the weighted mean of the new and the old
        score, with the penalty for unknown words and the scores of phrases.
        """
        tokens, lattice, weights = self.tokens, self.lattice, self.weights
        arcs, labels, features = tokens.edges.arcs, self.labels(), self.features()
        scale = weights.lm + weights.old_lm
        possible = np.where(np.isneginf(features["lm"]), LOG_ZERO, features["lm"])
        lm = possible * weights.lm + features["old_lm"] * weights.old_lm + features["unk"] * weights.unk
        further = {**weights.phrases, **weights.proposals}
        lm += sum(features[name] * weight for name, weight in further.items())
        alignments = (*lattice.alignments, "") if lattice.alignments else ("",) * (lattice.num_arcs + 1)
        return build_lattice(
            ArcColumns(
                sources=tokens.edges.parents,
                targets=np.repeat(np.arange(self.num_tokens), np.diff(tokens.offsets)),
                words=[lattice.words[label] for label in labels.tolist()],
                am=features["am"],
                old_lm=lm / scale if scale else lm,
                variants=np.append(lattice.variants, NO_VARIANT)[arcs],
                alignments=[alignments[arc] for arc in arcs.tolist()],
            ),
            name=lattice.name,
            start=0,
            end=self.num_tokens - 1,
            times=np.append(lattice.times, lattice.times[-1])[tokens.nodes],
            scales=Scales(weights.am, scale or 1.0, weights.words),
        )


def rescore(*given: Any, **settings: Any) -> list[RescoredLattice]:
    """Rescore several lattices together, see `rescore_in_steps`."""
    return run_to_completion(rescore_in_steps(*given, **settings))


def rescore_in_steps(
    lattices: Sequence[Lattice],
    model: LanguageModel,
    speller: LabelTokenizer,
    *,
    weights: Sequence[PathWeights],
    search: LatticeSearch,
    phrases: PhraseList = NO_PHRASES,
) -> Work[Any, list[RescoredLattice]]:
    """Rescore several lattices together, giving way to other computations.

    Args:
        lattices: any number; results are independent.
        model: any left-to-right model.
        speller: converter for the model's tokenizer.
        weights: feature weights of each lattice.
        search: settings; the search is exact without a beam, if no node has more
            than the maximum of tokens and the model's states determine which
            futures are equal.
        phrases: phrases in paths; their features have weights.

    Raises:
        UnsupportedError: tokens of words depend on adjacent words.
    """
    if not lattices:
        return []
    every_word = itertools.chain.from_iterable(lattice.words for lattice in lattices)  # "" first
    words = {word: number for number, word in enumerate(dict.fromkeys(every_word))}
    spelling = speller.label_tokens(list(words))
    joined = build_graph(lattices, weights, words, spelling)
    if type(model) is NGramModel and not phrases:
        graph = yield from pass_ngram_tokens(model, joined, spelling, search)
    else:
        paths = PhrasePaths(phrases, list(words), speller.tokenizer)
        graph = yield from TokenPassing(model, joined, spelling, paths, search).run()
    graphs = split_graph(graph, joined)
    return [
        RescoredLattice(
            lattice, weighing, graph, spelling.num_unknown[[words[word] for word in lattice.words]]
        )
        for lattice, weighing, graph in zip(lattices, weights, graphs, strict=True)
    ]


def split_graph(graph: TokenGraph, joined: LatticeGraph) -> list[TokenGraph]:
    """Split the token graph by lattice, with tokens numbered within each lattice."""
    owners = joined.lattice_of[graph.nodes]
    order = np.argsort(owners, kind="stable")
    numbers = np.empty(len(order), np.int64)
    firsts = np.searchsorted(owners[order], np.arange(len(joined.starts) + 1))
    numbers[order] = np.arange(len(order)) - firsts[owners[order]]
    answers = []
    for lattice, (begin, end) in enumerate(itertools.pairwise(firsts.tolist())):
        tokens = order[begin:end]
        counts = graph.offsets[tokens + 1] - graph.offsets[tokens]
        ways = graph.edges.select(index_ranges(graph.offsets[tokens], graph.offsets[tokens + 1]))
        own = ways._replace(parents=numbers[ways.parents], arcs=joined.own_arcs[ways.arcs])
        offsets = np.concatenate([[0], np.cumsum(counts)])
        nodes = graph.nodes[tokens] - joined.starts[lattice]
        answers.append(TokenGraph(nodes, graph.forward[tokens], offsets, own))
    return answers


class LatticePath(NamedTuple):
    """Word string with the best path that spells it.

    Attributes:
        text: words, separated by spaces.
        total: weighted sum of the path's features.
        edges: indices of its edges in the graph, from the start.
    """

    text: str
    total: float
    edges: Indices


def features_of(rescored: RescoredLattice, paths: Sequence[LatticePath]) -> list[dict[str, float]]:
    """Return the features of paths."""
    features = rescored.features()
    totals = [{name: float(values[path.edges].sum()) for name, values in features.items()} for path in paths]
    # credit taken back leaves rounding errors
    return [
        {name: round(total, 9) if is_phrase_feature(name) else total for name, total in one.items()}
        for one in totals
    ]


def nbest_candidates(rescored: RescoredLattice, count: int) -> CandidateList:
    """Return the best paths as an n-best list with the features of `PathWeights`."""
    found = run_to_completion(find_candidates(rescored, count))
    return CandidateList(rescored.lattice.name, "", tuple(found), rescored.lattice.references)


def find_candidates(rescored: RescoredLattice, count: int) -> Work[Any, list[Candidate]]:
    """Find the best paths as candidates; features of proposals are derived from their replacements."""
    paths = yield from find_nbest(rescored, count)
    candidates = []
    for path, features in zip(paths, features_of(rescored, paths), strict=True):
        given = {name: value for name, value in features.items() if name not in rescored.weights.proposals}
        replaced = tuple(rescored.proposals(path))
        made = ProposedCandidate(path.text, given, replacements=replaced)
        candidates.append(made if replaced else Candidate(path.text, given))
    return candidates


class _Suffix(NamedTuple):
    """Last words of a string, and the best path with them from each possible start.

    Attributes:
        word: label of the first word.
        rest: suffix after the first word; None for the end of the sentence.
        tokens: tokens where the suffix can start, ascending [K].
        totals: total of the best path from each token [K].
        steps: first step of that path [K].
    """

    word: int
    rest: "_Suffix | None"
    tokens: Indices
    totals: Scores
    steps: Indices

    def words(self) -> list[int]:
        """Return the labels of its words, in order."""
        labels: list[int] = []
        ending: _Suffix | None = self
        while ending is not None and ending.rest is not None:
            labels.append(ending.word)
            ending = ending.rest
        return labels


class _SuffixGraph:
    """Rescored lattice with the steps of paths found so far; a step is an edge and its next step."""

    def __init__(self, rescored: RescoredLattice) -> None:
        self.tokens, self.labels = rescored.tokens, rescored.labels()
        self._step_edges, self._step_nexts = GrowableArray(np.int64), GrowableArray(np.int64)
        silent = np.flatnonzero(self.labels == NO_WORD)
        # True for tokens after an edge without a word
        self._is_silent = np.zeros(rescored.num_tokens, np.bool_)
        self._is_silent[np.searchsorted(self.tokens.offsets, silent, side="right") - 1] = True

    def sentence_end(self) -> _Suffix:
        """Return the suffix without words."""
        last, none = np.array([len(self.tokens.nodes) - 1]), np.array([-1])
        return self._with_silence(_Suffix(NO_WORD, None, last, np.zeros(1), none))

    def extensions(self, ending: _Suffix) -> Iterator[tuple[float, Callable[[], _Suffix]]]:
        """Yield each word's best total before a suffix, and a function to extend the suffix."""
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
        """Return the edges of a path from a step to the end."""
        ways = []
        while step >= 0:
            ways.append(int(self._step_edges[step]))
            step = int(self._step_nexts[step])
        return np.array(ways, np.int64)

    def _extend(self, ending: _Suffix, ways: Indices, totals: Scores, nexts: Indices) -> _Suffix:
        """Extend a suffix by the word of some edges before it."""
        found = self._best_by_token(ways, totals, nexts)
        return self._with_silence(found._replace(word=int(self.labels[ways[0]]), rest=ending))

    def _with_silence(self, ending: _Suffix) -> _Suffix:
        """Extend a suffix by earlier edges without a word."""
        fresh = np.flatnonzero(self._is_silent[ending.tokens])
        while fresh.size:
            ways, indices = self._edges_to(ending.tokens[fresh])
            silent = np.flatnonzero(self.labels[ways] == NO_WORD)
            ways, indices = ways[silent], fresh[indices[silent]]
            found = self._best_by_token(
                ways, self.tokens.edges.scores[ways] + ending.totals[indices], ending.steps[indices]
            )
            # the words are the same; stable: of equal totals, the earlier one wins
            tokens = np.concatenate([ending.tokens, found.tokens])
            totals = np.concatenate([ending.totals, found.totals])
            steps = np.concatenate([ending.steps, found.steps])
            order = np.lexsort((-totals, tokens))
            best = order[np.unique(tokens[order], return_index=True)[1]]
            is_new = best >= len(ending.tokens)  # or improved
            ending = ending._replace(tokens=tokens[best], totals=totals[best], steps=steps[best])
            fresh = np.flatnonzero(is_new & self._is_silent[ending.tokens])
        return ending

    def _edges_to(self, tokens: Indices) -> tuple[Indices, Indices]:
        """Return all edges to tokens, and the index of each edge's token in `tokens`."""
        begins, ends = self.tokens.offsets[tokens], self.tokens.offsets[tokens + 1]
        return index_ranges(begins, ends), np.repeat(np.arange(len(tokens)), ends - begins)

    def _best_by_token(self, ways: Indices, totals: Scores, nexts: Indices) -> _Suffix:
        """Select the best edge from each parent token, as steps."""
        parents = self.tokens.edges.parents[ways]
        order = np.lexsort((-totals, parents))
        tokens, firsts = np.unique(parents[order], return_index=True)
        best = order[firsts]
        steps = len(self._step_edges) + np.arange(len(best))
        self._step_edges.append(ways[best])
        self._step_nexts.append(nexts[best])
        return _Suffix(NO_WORD, None, tokens, totals[best], steps)


def nbest_paths(rescored: RescoredLattice, count: int) -> list[LatticePath]:
    """Return the best paths of `count` distinct word strings at most, by total."""
    return run_to_completion(find_nbest(rescored, count))


def find_nbest(rescored: RescoredLattice, count: int) -> Work[Any, list[LatticePath]]:
    """Find the best paths as `nbest_paths` does, giving way to other computations."""
    graph, words, paths = _SuffixGraph(rescored), rescored.lattice.words, list[LatticePath]()
    # of equal totals, the longest suffix first: it completes strings, where the shortest would multiply suffixes
    serial = itertools.count(0, -1)
    heap: list[tuple[float, int, LatticePath | Callable[[], _Suffix]]] = []

    def reach(ending: _Suffix) -> None:
        """Push a suffix's string, if complete, and longer suffixes onto the heap."""
        if ending.tokens[0] == 0:
            text = " ".join(words[label] for label in ending.words())
            path = LatticePath(text, float(ending.totals[0]), graph.path(int(ending.steps[0])))
            heapq.heappush(heap, (-path.total, next(serial), path))
        for bound, extend in graph.extensions(ending):
            heapq.heappush(heap, (-bound, next(serial), extend))

    reach(graph.sentence_end())
    num_suffixes = itertools.count(1)
    # A*: bounds are exact totals
    while heap and len(paths) < count:
        if next(num_suffixes) % _SUFFIXES_PER_STEP == 0:
            yield None
        _, _, item = heapq.heappop(heap)
        if isinstance(item, LatticePath):
            paths.append(item)
        else:
            reach(item())
    return paths


def first_pass_text(lattice: Lattice) -> str:
    """Return the words of the best path by the lattice's own scores and scales."""
    scales = lattice.scales
    totals = scales.am * lattice.am + scales.lm * lattice.old_lm + scales.words * (lattice.labels != NO_WORD)
    columns = (lattice.sources.tolist(), lattice.targets.tolist(), lattice.labels.tolist(), totals.tolist())
    best: list[tuple[float, int, int]] = [(-np.inf, 0, 0)] * lattice.num_nodes  # total, node before, label
    best[0] = (0.0, 0, 0)
    for source, target, label, score in zip(*columns, strict=True):
        if best[source][0] + score > best[target][0]:
            best[target] = (best[source][0] + score, source, label)
    words, node = list[str](), lattice.num_nodes - 1
    while node:
        _, node, label = best[node]
        words.append(lattice.words[label])
    return " ".join(filter(None, reversed(words)))


def oracle_errors(lattice: Lattice, reference: Sequence[str]) -> int:
    """Count the fewest errors of a path; words are compared as written.

    Uses dynamic programming over nodes and reference positions.
    """
    indices = {word: label for label, word in enumerate(lattice.words) if word}
    right = np.array([indices.get(word, -1) for word in reference], np.int64)
    # minimum errors to each node, against each prefix of the reference [N, R + 1]
    lengths = np.arange(len(reference) + 1, dtype=np.int32)
    costs = np.zeros((lattice.num_nodes, len(lengths)), np.int32)
    costs[0] = lengths
    depth = node_depths(lattice.sources, lattice.targets, lattice.num_nodes)
    levels = group_by_level(depth[lattice.targets], int(depth.max()) + 1)
    for level in levels[1:]:
        arcs = level[np.argsort(lattice.targets[level], kind="stable")]
        targets, firsts = np.unique(lattice.targets[arcs], return_index=True)
        before, labels = costs[lattice.sources[arcs]], lattice.labels[arcs]
        spoken = labels != NO_WORD
        after: Int32s = before + spoken[:, None]  # insertions [A, R + 1]
        matched = before[:, :-1] + (labels[:, None] != right)
        after[spoken, 1:] = np.minimum(after[spoken, 1:], matched[spoken])
        best = np.minimum.reduceat(after, firsts)
        # deletions: words of the reference that the path skips
        costs[targets] = np.minimum.accumulate(best - lengths, axis=1) + lengths
    return int(costs[-1, -1])
