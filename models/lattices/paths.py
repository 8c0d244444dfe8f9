"""The best paths of a rescored lattice: n-best lists of distinct word strings, exactly.

Strings are built from their ends. One is kept with all tokens from which it can go on and the best score from each,
so that it is found once, in whatever ways the graph spells it; the totals of the best ways to these tokens say
which is to be looked at next. So strings come in the order of their totals, and nothing is looked at in vain.

Source: Mohri and Riley (2002), "An efficient algorithm for the n-best-strings problem".
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.lattices.connecting import index_ranges
from models.lattices.growing import GrowableArray
from models.lattices.lattice import NO_WORD, Indices, Scores
from models.lattices.rescoring import RescoredLattice
from models.reranking.lists import Candidate, CandidateList


class LatticePath(NamedTuple):
    """A word string and the best path that spells it.

    Attributes:
        text: words, with spaces between.
        total: weighted sum of the path's features.
        edges: places of its ways in the graph, from the start on.
    """

    text: str
    total: float
    edges: Indices


def nbest_paths(rescored: RescoredLattice, count: int) -> list[LatticePath]:
    """The best paths of distinct word strings, the best first; fewer if there are no more."""
    found = []
    for path in _paths_by_score(rescored):
        found.append(path)
        if len(found) == count:
            break
    return found


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


class _SuffixExtensions(NamedTuple):
    """The ways that may come before an ending, in runs of one word each.

    Attributes:
        ending: it.
        edges: by word [E].
        totals: of the best path to the end that begins with the way [E].
        nexts: the step after it [E].
    """

    ending: _Suffix
    edges: Indices
    totals: Scores
    nexts: Indices


class _SuffixGraph:
    """A rescored lattice with the steps of paths that were found in it, each a way and the step after it."""

    def __init__(self, rescored: RescoredLattice) -> None:
        self.tokens, self.labels = rescored.tokens, rescored.labels()
        self._last = rescored.num_tokens - 1
        self._step_edges, self._step_nexts = GrowableArray(np.int64), GrowableArray(np.int64)
        silent = np.flatnonzero(self.labels == NO_WORD)
        self._is_silent = np.zeros(
            rescored.num_tokens, dtype=np.bool_
        )  # whether a way without a word leads there
        self._is_silent[np.searchsorted(self.tokens.offsets, silent, side="right") - 1] = True

    def sentence_end(self) -> _Suffix:
        """The ending without words."""
        tokens, none = np.array([self._last]), np.array([-1])
        return self._with_silence(_Suffix(NO_WORD, None, tokens, np.zeros(1), none))

    def openings(self, ending: _Suffix) -> _SuffixExtensions:
        """What may come before an ending."""
        ways, places = self._edges_to(ending.tokens)
        spoken = np.flatnonzero(self.labels[ways] != NO_WORD)
        spoken = spoken[np.argsort(self.labels[ways[spoken]], kind="stable")]
        ways, places = ways[spoken], places[spoken]
        totals = self.tokens.edges.scores[ways] + ending.totals[places]
        return _SuffixExtensions(ending, ways, totals, ending.steps[places])

    def longer(self, openings: _SuffixExtensions, run: slice) -> _Suffix:
        """An ending with the word of a run of openings before it."""
        ways = openings.edges[run]
        ending = self._best_by_token(ways, openings.totals[run], openings.nexts[run])
        word = int(self.labels[ways[0]])
        return self._with_silence(ending._replace(word=word, rest=openings.ending))

    def path(self, step: int) -> Indices:
        """The ways of a path from a step on."""
        ways = []
        while step >= 0:
            ways.append(int(self._step_edges[step]))
            step = int(self._step_nexts[step])
        return np.array(ways, dtype=np.int64)

    def _with_silence(self, ending: _Suffix) -> _Suffix:
        """The same words, begun after ways without a word too."""
        fresh = np.flatnonzero(self._is_silent[ending.tokens])
        while fresh.size:
            ways, places = self._edges_to(ending.tokens[fresh])
            silent = np.flatnonzero(self.labels[ways] == NO_WORD)
            ways, places = ways[silent], fresh[places[silent]]
            found = self._best_by_token(
                ways, self.tokens.edges.scores[ways] + ending.totals[places], ending.steps[places]
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
    heap: list[tuple[float, int, LatticePath | tuple[_SuffixExtensions, slice]]] = []

    def reach(ending: _Suffix) -> None:
        """Put an ending's whole string and its longer ones, if they are any, where they wait for their turn."""
        if ending.tokens[0] == 0:
            text = " ".join(words[label] for label in ending.words())
            total = float(ending.totals[0])
            heapq.heappush(
                heap, (-total, next(serial), LatticePath(text, total, graph.path(int(ending.steps[0]))))
            )
        openings = graph.openings(ending)
        if not openings.edges.size:
            return
        before = rescored.tokens.forward[rescored.tokens.edges.parents[openings.edges]]
        labels = graph.labels[openings.edges]
        begins = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
        best = np.maximum.reduceat(before + openings.totals, begins)
        ends = np.append(begins[1:], len(labels))
        for total, begin, end in zip(best.tolist(), begins.tolist(), ends.tolist(), strict=True):
            heapq.heappush(heap, (-total, next(serial), (openings, slice(begin, end))))

    reach(graph.sentence_end())
    while heap:
        _, _, item = heapq.heappop(heap)
        if isinstance(item, LatticePath):
            yield item
        else:
            reach(graph.longer(*item))
