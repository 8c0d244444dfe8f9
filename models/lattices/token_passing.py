"""Tokens that pass through lattices: each a way that has been gone, with the model's state after it.

Nodes of one level are not connected, so the model scores all tokens of a level at once, of as many lattices as there
are. Tokens that meet at a node are merged where they have the same future; the ways they came are all kept.

Source: Young, Russell and Thornton (1989), "Token passing: a simple conceptual model for connected speech
recognition systems"; Liu et al. (2014), "Efficient lattice rescoring using recurrent neural network language models".
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from models.errors import InvalidInputError
from models.lattices.connecting import index_ranges
from models.lattices.growing import GrowableArray
from models.lattices.joined import LatticeGraph
from models.lattices.lattice import Indices, Scores
from models.lattices.live_states import NO_STATE, ActiveStates
from models.lattices.recombining import recombine, state_keys
from models.lattices.spelling import LabelTokens
from models.lattices.tokens import TokenEdges, TokenGraph, TokenTable
from models.lattices.word_scores import word_log_probs
from models.protocol import LanguageModel
from models.scoring import LOG_ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeSearchSettings:
    """How thoroughly lattices are searched.

    Attributes:
        max_tokens_per_node: only so many go on from a node, the best.
        beam: tokens are dropped whose way, completed as well as the lattice's own scores allow, is worse by more
            than this than the best of their level or of those that have gone further; None drops none. In the unit
            of weighted totals.
        recombination_order: where the model's states cannot tell which ways have the same future, those have it
            whose last so many words are equal: they are merged at a node, and share a state at a level; None compares
            all words. The states of n-gram models can tell, so merging them loses nothing.

    Raises:
        InvalidInputError: a value is outside its limits.
    """

    max_tokens_per_node: int = 64
    beam: float | None = None
    recombination_order: int | None = 4

    def __post_init__(self) -> None:
        for name, value in (
            ("max_tokens_per_node", self.max_tokens_per_node),
            ("recombination_order", self.recombination_order),
        ):
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} is {value}; it must be at least 1", parameter=name)
        if self.beam is not None and not self.beam >= 0:
            raise InvalidInputError(f"beam is {self.beam}; it must be at least 0", parameter="beam")


def pass_tokens(
    model: LanguageModel[Any], joined: LatticeGraph, spelling: LabelTokens, search: LatticeSearchSettings
) -> TokenGraph:
    """Walk all lattices from their starts to their ends.

    Args:
        model: any.
        joined: the lattices.
        spelling: of their words, as the model's tokens.
        search: how thoroughly.

    Returns:
        Nodes and arcs as `joined` numbers them.
    """
    walk = _TokenPassing(model, joined, spelling, search)
    walk.begin()
    for level in range(1, joined.num_levels):
        walk.advance_level(level)
    return walk.tokens.graph()


class _TokenPassing:
    """A walk through lattices, level by level."""

    def __init__(
        self,
        model: LanguageModel[Any],
        joined: LatticeGraph,
        spelling: LabelTokens,
        search: LatticeSearchSettings,
    ) -> None:
        self._model, self._joined, self._spelling, self._search = model, joined, spelling, search
        self._states = ActiveStates(model, spelling)
        self._states_are_keys = state_keys(self._states.initial) is not None
        num_words = 0 if self._states_are_keys else search.recombination_order or joined.num_levels
        self.tokens = TokenTable(joined.num_nodes, num_words=num_words)
        self._live = np.zeros(0, dtype=np.int64)  # tokens that have arcs still to go
        self._begins = np.zeros(
            len(joined.sources), dtype=np.int64
        )  # of each arc, its first place in these two
        self._log_probs, self._scores = GrowableArray(np.float64), GrowableArray(np.float64)
        self._best = np.full((joined.num_levels, len(joined.starts)), -np.inf)

    def begin(self) -> None:
        """Put a token on each start."""
        starts = self._joined.starts
        self.tokens.add_starts(starts)
        self._score_outgoing(0, self._states.initial, np.zeros(len(starts), dtype=np.int64))

    def advance_level(self, level: int) -> None:
        """Let tokens arrive at the nodes of a level and be merged, and score the words that follow."""
        ways, totals = self._incoming_edges(level)
        nodes = self._joined.targets[ways.arcs]
        labels = self._spelling.canonical[self._joined.labels[ways.arcs]]
        ended = self._joined.last_use[nodes] < 0
        futures = words = self.tokens.words_after(ways.parents, labels)
        if self._states_are_keys:
            state, rows = self._states.after(ways.parents, labels)
            futures = cast("Indices", state_keys(state))[rows]
        futures = np.where(ended[:, None], 0, futures)  # behind the end all are alike
        merged = recombine(nodes, futures, totals, max_tokens_per_node=self._search.max_tokens_per_node)
        self.tokens.add(ways, totals, nodes, words, merged)
        going = ~ended[merged.best]
        best = merged.best[going]
        if self._states_are_keys:
            used, places = np.unique(rows[best], return_inverse=True)
            state = state.select(used)
        else:
            state, places = self._shared_states(ways.select(best), totals[best], words[best])
        rows = np.full(len(going), NO_STATE)
        rows[going] = places
        self._score_outgoing(level, state, rows)

    def _shared_states(self, ways: TokenEdges, totals: Scores, words: Indices) -> tuple[Any, Indices]:
        """The states after ways, one for all of a lattice whose last words are equal: that of the best of them."""
        lattices = self._joined.lattice_of[self._joined.sources[ways.arcs]]
        alike = recombine(lattices, words, totals, max_tokens_per_node=len(totals))
        labels = self._spelling.canonical[self._joined.labels[ways.arcs[alike.best]]]
        state, rows = self._states.after(ways.parents[alike.best], labels)
        places = np.empty(len(totals), dtype=np.int64)
        places[alike.candidates] = np.repeat(rows, np.diff(alike.offsets))
        return state, places

    def _incoming_edges(self, level: int) -> tuple[TokenEdges, Scores]:
        """The ways to the nodes of a level and their totals, without those outside the beam."""
        joined, tokens = self._joined, self.tokens
        arcs = joined.by_target.of(level)
        counts = tokens.count[joined.sources[arcs]]
        first, begins = tokens.first[joined.sources[arcs]], self._begins[arcs]
        parents, scored = index_ranges(first, first + counts), index_ranges(begins, begins + counts)
        ways = TokenEdges(parents, np.repeat(arcs, counts), self._log_probs[scored], self._scores[scored])
        totals = tokens.forward(parents) + ways.scores
        if self._search.beam is None:
            return ways, totals
        nodes = joined.targets[ways.arcs]
        threshold = self._best[level:].max(axis=0) - self._search.beam
        inside = np.flatnonzero(totals + joined.remainders[nodes] >= threshold[joined.lattice_of[nodes]])
        return ways.select(inside), totals[inside]

    def _score_outgoing(self, level: int, state: Any, rows: Indices) -> None:
        """Score the words that follow the tokens of a level, which are the newest.

        Args:
            level: of their nodes.
            state: of the model, after them.
            rows: of that state, for each.
        """
        joined, tokens = self._joined, self.tokens
        begin = len(tokens) - len(rows)
        self._states.add(state, rows)
        arcs = joined.by_source.of(level)
        counts = tokens.count[joined.sources[arcs]]
        first = tokens.first[joined.sources[arcs]]
        parents, gone = index_ranges(first, first + counts), np.repeat(arcs, counts)
        labels = self._spelling.canonical[joined.labels[gone]]
        log_probs = word_log_probs(self._model, state, rows[parents - begin], labels, self._spelling)
        log_probs[np.isneginf(log_probs)] = LOG_ZERO
        lattices = joined.lattice_of[joined.sources[gone]]
        scores = joined.fixed[gone] + joined.lm_weights[lattices] * log_probs
        self._begins[arcs] = len(self._scores) + np.cumsum(counts) - counts
        self._log_probs.append(log_probs)
        self._scores.append(scores)
        if self._search.beam is not None:
            nodes = joined.targets[gone]
            estimates = tokens.forward(parents) + scores + joined.remainders[nodes]
            np.maximum.at(self._best, (joined.levels[nodes], lattices), estimates)
        self._live = np.concatenate([self._live, np.arange(begin, len(tokens))])
        self._live = self._live[joined.last_use[tokens.nodes(self._live)] > level]
        self._states.retain(self._live)
