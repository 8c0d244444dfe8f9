"""Tokens that pass through lattices: where they are, and the ways by which they came there."""

from typing import Any, NamedTuple

import numpy as np

from models.lattices.growing import GrowableArray
from models.lattices.lattice import NO_WORD, Indices, Scores
from models.lattices.recombining import RecombinedEdges


class TokenEdges(NamedTuple):
    """P ways that lead from a token along an arc.

    Attributes:
        parents: the token before [P].
        arcs: that is gone [P].
        log_probs: natural-log probability of the arc's word after that token [P].
        scores: weighted sum of the arc's features [P].
    """

    parents: Indices
    arcs: Indices
    log_probs: Scores
    scores: Scores

    def select(self, places: Any) -> "TokenEdges":
        """Some of them."""
        return TokenEdges(*(column[places] for column in self))


class TokenGraph(NamedTuple):
    """T tokens and the E ways by which they came: a graph that holds the walked paths of lattices.

    Attributes:
        nodes: where the tokens are [T]; those before a token come before it.
        forward: total of the best way to each [T].
        offsets: where each token's ways begin, and E at the end [T + 1].
        edges: by token.
    """

    nodes: Indices
    forward: Scores
    offsets: Indices
    edges: TokenEdges


class TokenTable:
    """The tokens so far; those of a node are added together and lie one after the other.

    Args:
        num_nodes: of all lattices.
        num_words: how many of a token's last words are remembered.

    Attributes:
        first: the first token of each node [N].
        count: how many tokens a node has [N].
    """

    def __init__(self, num_nodes: int, *, num_words: int) -> None:
        self.first = np.zeros(num_nodes, dtype=np.int64)
        self.count = np.zeros(num_nodes, dtype=np.int64)
        self._nodes, self._forward = GrowableArray(np.int64), GrowableArray(np.float64)
        self._words = GrowableArray(np.int64, num_words)
        self._num_edges = GrowableArray(np.int64)
        self._parents, self._arcs = GrowableArray(np.int64), GrowableArray(np.int64)
        self._log_probs, self._scores = GrowableArray(np.float64), GrowableArray(np.float64)

    def __len__(self) -> int:
        return len(self._nodes)

    def forward(self, tokens: Indices) -> Scores:
        """Totals of the best ways to tokens."""
        return self._forward[tokens]

    def nodes(self, tokens: Indices) -> Indices:
        """Where tokens are."""
        return self._nodes[tokens]

    def words_after(self, parents: Indices, labels: Indices) -> Indices:
        """The last words of tokens and one label more [P, num_words]; a label without a word adds nothing."""
        before = self._words[parents]
        if not before.shape[1]:
            return before
        spoken = labels != NO_WORD
        before[spoken] = np.column_stack([before[spoken, 1:], labels[spoken]])
        return before

    def add_starts(self, nodes: Indices) -> None:
        """Put a token on each of some nodes, to which no way leads."""
        nothing = np.zeros(len(nodes), dtype=np.int64)
        words = np.full((len(nodes), self._words[:0].shape[1]), NO_WORD)
        self._add(nodes, np.zeros(len(nodes)), words, nothing)

    def add(
        self, ways: TokenEdges, totals: Scores, nodes: Indices, words: Indices, merged: RecombinedEdges
    ) -> None:
        """Make tokens of merged ways.

        Args:
            ways: that were merged [P].
            totals: of each [P].
            nodes: where each leads [P].
            words: the last words of each.
            merged: what became of them.
        """
        best = merged.best
        self._add(nodes[best], totals[best], words[best], np.diff(merged.offsets))
        kept = ways.select(merged.candidates)
        self._parents.append(kept.parents)
        self._arcs.append(kept.arcs)
        self._log_probs.append(kept.log_probs)
        self._scores.append(kept.scores)

    def graph(self) -> TokenGraph:
        """All tokens and their ways."""
        offsets = np.concatenate([[0], np.cumsum(self._num_edges[:])])
        ways = TokenEdges(self._parents[:], self._arcs[:], self._log_probs[:], self._scores[:])
        return TokenGraph(self._nodes[:], self._forward[:], offsets, ways)

    def _add(self, nodes: Indices, totals: Scores, words: Indices, num_ways: Indices) -> None:
        places = len(self) + np.arange(len(nodes))
        self.first[nodes[::-1]] = places[::-1]
        np.add.at(self.count, nodes, 1)
        self._nodes.append(nodes)
        self._forward.append(totals)
        self._words.append(words)
        self._num_edges.append(num_ways)
