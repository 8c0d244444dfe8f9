"""Token passing through lattices for any language model.

A token is a partial path with the model state after it. Nodes of one level are not connected, so
the model scores all tokens of a level at once, over all lattices. Tokens at a node with the same
future are recombined; all edges by which they came are kept.

Sources: Young, Russell and Thornton (1989), "Token passing: a simple conceptual model for connected
speech recognition systems"; Liu et al. (2014), "Efficient lattice rescoring using recurrent neural
network language models".
"""

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.language_model import (
    LOG_ZERO,
    LanguageModel,
    is_lookup,
    prefill_sequences,
    score_choices,
    score_sequences,
)
from models.lattices.graph import LabelTokens, LatticeGraph
from models.lattices.lattice import NO_WORD, Indices, Scores, index_ranges
from models.mixture import MixtureState
from models.ngram.model import NGramState

T = TypeVar("T", bound=np.generic)


class GrowableArray(Generic[T]):
    """Rows of numbers, to which others are added.

    Args:
        dtype: of the numbers.
        width: numbers in a row; None for a single one.
    """

    def __init__(self, dtype: type[T], width: int | None = None) -> None:
        self._rows: npt.NDArray[T] = np.empty((1024,) if width is None else (1024, width), dtype=dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, rows: Any) -> npt.NDArray[T]:
        answer: npt.NDArray[T] = self._rows[: self._size][rows]
        return answer

    def __setitem__(self, rows: Any, values: npt.NDArray[T]) -> None:
        self._rows[: self._size][rows] = values

    def append(self, rows: npt.NDArray[T]) -> None:
        """Add rows."""
        size = self._size + len(rows)
        if size > len(self._rows):
            grown = np.empty((2 * size, *self._rows.shape[1:]), dtype=self._rows.dtype)
            grown[: self._size] = self._rows[: self._size]
            self._rows = grown
        self._rows[self._size : size] = rows
        self._size = size


def word_log_probs(
    model: LanguageModel[Any], state: Any, rows: Indices, labels: Indices, spelling: LabelTokens
) -> Scores:
    """Natural-log probabilities [P] of words, each after a row of a state; 0 for labels without tokens.

    Equal pairs are scored once. A model that computes whole distributions anyway does so once a row, however
    many words follow it.

    Args:
        model: any.
        state: B rows.
        rows: of the state [P].
        labels: of the words [P].
        spelling: their tokens.
    """
    num_labels = len(spelling.lengths)
    pairs, indices = np.unique(rows * num_labels + labels, return_inverse=True)
    rows, labels = np.divmod(pairs, num_labels)
    scores = np.zeros(len(pairs))
    spoken = np.flatnonzero(spelling.lengths[labels] > 0)
    rows, labels = rows[spoken], labels[spoken]
    tokens, lengths = spelling.tokens[labels], spelling.lengths[labels]
    if is_lookup(model):
        tokens = tokens[:, : lengths.max(initial=0)]
        sequence_scores = score_sequences(model, state.select(rows), tokens, lengths)
        scores[spoken] = sequence_scores.sum(axis=1, dtype=np.float64)
        return scores[indices]
    scores[spoken] = score_choices(model, state, rows, tokens[:, 0])
    longer = np.flatnonzero(lengths > 1)
    if longer.size:
        after = model.advance(state.select(rows[longer]), tokens[longer, 0])
        rest = score_sequences(model, after, tokens[longer, 1 : lengths.max()], lengths[longer] - 1)
        scores[spoken[longer]] += rest.sum(axis=1, dtype=np.float64)
    return scores[indices]


NO_STATE = -1
"""The row of tokens that go no further."""


class ActiveStates:
    """The model's states after tokens that are still to go on; tokens that came the same way share one.

    Args:
        model: any.
        spelling: of words as its tokens.
    """

    def __init__(self, model: LanguageModel[Any], spelling: LabelTokens) -> None:
        self._model, self._spelling = model, spelling
        self.initial = model.initial_state(1)
        self._pool = self.initial
        self._rows = GrowableArray(np.int64)

    def after(self, tokens: Indices, labels: Indices) -> tuple[Any, Indices]:
        """The states after tokens and one label more: a state of distinct rows, and the row of each [P]."""
        num_labels = len(self._spelling.lengths)
        pairs, indices = np.unique(self._rows[tokens] * num_labels + labels, return_inverse=True)
        rows, labels = np.divmod(pairs, num_labels)
        before, lengths = self._pool.select(rows), self._spelling.lengths[labels]
        if not lengths.any():
            return before, indices
        tokens = self._spelling.tokens[labels, : lengths.max()]
        return prefill_sequences(self._model, before, tokens, lengths), indices

    def add(self, state: Any, rows: Indices) -> None:
        """Take states of new tokens in; −1 is the row of tokens that go no further."""
        begin = len(self._pool) if len(self._rows) else 0
        self._pool = self._pool.concatenate([state]) if begin else state
        self._rows.append(np.where(rows < 0, rows, begin + rows))

    def retain(self, tokens: Indices) -> None:
        """Forget the states of all other tokens."""
        used, self._rows[tokens] = np.unique(self._rows[tokens], return_inverse=True)
        self._pool = self._pool.select(used)


_LARGEST_KEY = 1 << 62


class RecombinedEdges(NamedTuple):
    """Candidates that became tokens: those of a node with the same future are one token.

    Attributes:
        candidates: those that are kept, ordered by token [E].
        offsets: where each token's candidates begin, and E at the end [T + 1].
        best: the best candidate of each token [T].
    """

    candidates: Indices
    offsets: Indices
    best: Indices


def state_keys(state: Any) -> Indices | None:
    """Numbers [B, K] that are equal where rows of a state have the same future; None if its kind cannot tell.

    States of n-gram models can, and so can mixtures of such models.
    """
    if isinstance(state, NGramState):
        return state.ids[:, None].astype(np.int64)
    if isinstance(state, MixtureState):
        columns = [state_keys(part) for part in state.parts]
        known = [column for column in columns if column is not None]
        return np.concatenate(known, axis=1) if len(known) == len(columns) else None
    return None


def recombine(
    nodes: Indices, futures: Indices, totals: Scores, *, max_tokens_per_node: int
) -> RecombinedEdges:
    """Make tokens of candidates.

    Args:
        nodes: that each candidate has come to [P].
        futures: equal in all columns where two candidates of a node have the same future [P, K].
        totals: of each [P]; larger is better.
        max_tokens_per_node: only so many tokens of a node are kept, the best; equal ones in the order of candidates.

    Returns:
        Tokens ordered by node, those of a node by falling total.
    """
    keys = _pack_columns(np.column_stack([nodes, futures]))
    order = np.lexsort((-totals, *keys.T))
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    firsts, groups = np.flatnonzero(is_first), np.cumsum(is_first) - 1  # of the candidates in this order
    best = order[firsts]
    ranked = np.lexsort((best, -totals[best], nodes[best]))
    node_of = nodes[best[ranked]]
    indices = np.arange(len(ranked)) - np.searchsorted(node_of, node_of)
    selected = ranked[indices < max_tokens_per_node]
    token_of = np.full(len(best), -1, dtype=np.int64)
    token_of[selected] = np.arange(len(selected))
    tokens = token_of[groups]
    by_token = np.argsort(tokens, kind="stable")
    by_token = by_token[np.searchsorted(tokens[by_token], 0) :]
    offsets = np.searchsorted(tokens[by_token], np.arange(len(selected) + 1))
    return RecombinedEdges(order[by_token], offsets, best[selected])


def _pack_columns(columns: Indices) -> Indices:
    """Columns of numbers from −1 on [P, K] as fewer that are equal where all of them are [P, J]."""
    packed: list[Indices] = []
    size = _LARGEST_KEY
    for column in columns.T:
        base = int(column.max(initial=0)) + 2
        if size > _LARGEST_KEY // base:
            packed.append(column + 1)
            size = base
        else:
            packed[-1] = packed[-1] * base + column + 1
            size *= base
    return np.column_stack(packed)


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

    def select(self, indices: Any) -> "TokenEdges":
        """Select edges by index."""
        return TokenEdges(*(column[indices] for column in self))


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
        nodes: where each token is.
        forward: total of the best way to each token.
    """

    def __init__(self, num_nodes: int, *, num_words: int) -> None:
        self.first = np.zeros(num_nodes, dtype=np.int64)
        self.count = np.zeros(num_nodes, dtype=np.int64)
        self.nodes, self.forward = GrowableArray(np.int64), GrowableArray(np.float64)
        self._words = GrowableArray(np.int64, num_words)
        self._num_edges = GrowableArray(np.int64)
        self._edges = [GrowableArray[Any](dtype) for dtype in (np.int64, np.int64, np.float64, np.float64)]

    def __len__(self) -> int:
        return len(self.nodes)

    def words_after(self, parents: Indices, labels: Indices) -> Indices:
        """The last words of tokens and one label more [P, num_words]; a label without a word adds nothing."""
        before = self._words[parents]
        if not before.shape[1]:
            return before
        spoken = labels != NO_WORD
        before[spoken] = np.column_stack([before[spoken, 1:], labels[spoken]])
        return before

    def add(self, nodes: Indices, totals: Scores, words: Indices, num_edges: Indices) -> None:
        """Add tokens: their nodes [T], totals [T], last words [T, num_words], and ways to be added with them [T]."""
        indices = len(self) + np.arange(len(nodes))
        self.first[nodes[::-1]] = indices[::-1]
        np.add.at(self.count, nodes, 1)
        self.nodes.append(nodes)
        self.forward.append(totals)
        self._words.append(words)
        self._num_edges.append(num_edges)

    def add_edges(self, edges: TokenEdges) -> None:
        """Add the ways to the newest tokens, by token."""
        for column, values in zip(self._edges, edges, strict=True):
            column.append(values)

    def graph(self) -> TokenGraph:
        """All tokens and their ways."""
        offsets = np.concatenate([[0], np.cumsum(self._num_edges[:])])
        ways = TokenEdges(*(column[:] for column in self._edges))
        return TokenGraph(self.nodes[:], self.forward[:], offsets, ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeSearchSettings:
    """Pruning and recombination settings of a lattice search.

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
    for level in range(1, joined.num_levels):
        walk.advance_level(level)
    return walk.tokens.graph()


class _TokenPassing:
    """A walk through lattices, level by level, with a token on each start to begin with."""

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
        # of each arc, its first index in these two
        self._begins = np.zeros(len(joined.sources), dtype=np.int64)
        self._log_probs, self._scores = GrowableArray(np.float64), GrowableArray(np.float64)
        self._best = np.full((joined.num_levels, len(joined.starts)), -np.inf)
        nothing = np.zeros(len(joined.starts), dtype=np.int64)
        words = np.full((len(joined.starts), num_words), NO_WORD)
        self.tokens.add(joined.starts, nothing.astype(np.float64), words, nothing)
        self._score_outgoing(0, self._states.initial, nothing)

    def advance_level(self, level: int) -> None:
        """Collect and recombine the tokens at the nodes of a level, then score the next words."""
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
        best = merged.best
        self.tokens.add(nodes[best], totals[best], words[best], np.diff(merged.offsets))
        self.tokens.add_edges(ways.select(merged.candidates))
        going = ~ended[best]
        best = best[going]
        if self._states_are_keys:
            used, indices = np.unique(rows[best], return_inverse=True)
            state = state.select(used)
        else:
            state, indices = self._shared_states(ways.select(best), totals[best], words[best])
        rows = np.full(len(going), NO_STATE)
        rows[going] = indices
        self._score_outgoing(level, state, rows)

    def _shared_states(self, ways: TokenEdges, totals: Scores, words: Indices) -> tuple[Any, Indices]:
        """The states after ways, one for all of a lattice whose last words are equal: that of the best of them."""
        lattices = self._joined.lattice_of[self._joined.sources[ways.arcs]]
        merged = recombine(lattices, words, totals, max_tokens_per_node=len(totals))
        labels = self._spelling.canonical[self._joined.labels[ways.arcs[merged.best]]]
        state, rows = self._states.after(ways.parents[merged.best], labels)
        indices = np.empty(len(totals), dtype=np.int64)
        indices[merged.candidates] = np.repeat(rows, np.diff(merged.offsets))
        return state, indices

    def _incoming_edges(self, level: int) -> tuple[TokenEdges, Scores]:
        """The ways to the nodes of a level and their totals, without those outside the beam."""
        joined, tokens = self._joined, self.tokens
        arcs = joined.by_target.of(level)
        counts = tokens.count[joined.sources[arcs]]
        first, begins = tokens.first[joined.sources[arcs]], self._begins[arcs]
        parents, scored = index_ranges(first, first + counts), index_ranges(begins, begins + counts)
        ways = TokenEdges(parents, np.repeat(arcs, counts), self._log_probs[scored], self._scores[scored])
        totals = tokens.forward[parents] + ways.scores
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
            estimates = tokens.forward[parents] + scores + joined.remainders[nodes]
            np.maximum.at(self._best, (joined.levels[nodes], lattices), estimates)
        self._live = np.concatenate([self._live, np.arange(begin, len(tokens))])
        self._live = self._live[joined.last_use[tokens.nodes[self._live]] > level]
        self._states.retain(self._live)
