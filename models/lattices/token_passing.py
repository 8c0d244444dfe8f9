"""Token passing through lattices for any language model.

A token is a partial path with the model state after it. Nodes of a level are not connected, so the
model scores all tokens of a level in one call, for all lattices. Tokens of a node with one future
are recombined; all their incoming edges are kept.

Sources: Young, Russell and Thornton (1989), "Token passing: a simple conceptual model for connected
speech recognition systems"; Liu et al. (2014), "Efficient lattice rescoring using recurrent neural
network language models".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from models.arrays import index_ranges
from models.calls import Work
from models.errors import InputError
from models.language_model import (
    LanguageModel,
    is_lookup,
    prefill_sequences,
    score_choices,
    score_sequences,
    weighted,
)
from models.lattices.graph import LabelTokens, LatticeGraph
from models.lattices.lattice import NO_WORD, Indices, Scores, group_by_level
from models.mixture import MixtureState
from models.ngram.model import NGramState
from models.phrases import PhraseList
from models.tokenizers import Tokenizer
from models.words import fold_words

T = TypeVar("T", bound=np.generic)

NO_STATE = -1
"""Row of tokens that are not extended."""

_LARGEST_KEY = 1 << 62
_ROWS_PER_STEP = 32
"""Distributions or states that a network computes before other requests run."""


class GrowableArray(Generic[T]):
    """Array of rows that can be appended to.

    Args:
        dtype: type of the numbers.
        width: numbers per row; None for scalars.
    """

    def __init__(self, dtype: type[T], width: int | None = None) -> None:
        self._rows: npt.NDArray[T] = np.empty((1024,) if width is None else (1024, width), dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, rows: Any) -> npt.NDArray[T]:
        answer: npt.NDArray[T] = self._rows[: self._size][rows]
        return answer

    def append(self, rows: npt.NDArray[T]) -> None:
        """Add rows."""
        size = self._size + len(rows)
        if size > len(self._rows):
            grown = np.empty((2 * size, *self._rows.shape[1:]), self._rows.dtype)
            grown[: self._size] = self._rows[: self._size]
            self._rows = grown
        self._rows[self._size : size] = rows
        self._size = size


def word_log_probs(
    model: LanguageModel, state: Any, rows: Indices, labels: Indices, spelling: LabelTokens
) -> Work[Any, Scores]:
    """Return log-probabilities [P] of labels [P] after rows [P] of a state; 0 without tokens.

    Equal pairs are scored once. A model that always computes complete distributions does so once
    per row, for a few rows at a time.
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
    for some in _runs(np.cumsum(np.diff(rows, prepend=-1) > 0)):
        used, of_used = np.unique(rows[some], return_inverse=True)
        scores[spoken[some]] = score_choices(model, state.select(used), of_used, tokens[some, 0])
        yield None
    longer = np.flatnonzero(lengths > 1)
    for some in _runs(np.arange(len(longer))):
        here = longer[some]
        after = model.advance(state.select(rows[here]), tokens[here, 0])
        rest = score_sequences(model, after, tokens[here, 1 : lengths[here].max()], lengths[here] - 1)
        scores[spoken[here]] += rest.sum(axis=1, dtype=np.float64)
        yield None
    return scores[indices]


def _runs(numbers: Indices) -> Iterator[slice]:
    """Yield slices of ascending numbers [P] with a limited range each."""
    begin = 0
    while begin < len(numbers):
        end = int(np.searchsorted(numbers, numbers[begin] + _ROWS_PER_STEP))
        yield slice(begin, end)
        begin = end


class PhrasePaths:
    """Phrases along paths: nodes of the automaton, and features of a label after a node.

    The features are those of the phrases, ln share of unknown words, and minus the number of unknown
    tokens [F + 2]. Credit for the beginning of a phrase is added with its words, and taken back if
    the rest does not follow.

    Args:
        phrases: the phrases.
        words: words of the labels, the first empty; the end of the sentence follows.
        tokenizer: the model's tokenizer.
    """

    def __init__(self, phrases: PhraseList, words: Sequence[str], tokenizer: Tokenizer) -> None:
        self._phrases, self._tokenizer = phrases, tokenizer
        self._words = [" ".join(fold_words(word)) for word in words]
        self._steps: dict[int, tuple[int, Scores]] = {}
        self._nothing = np.zeros(len(phrases.features) + 2)

    def advance(self, nodes: Indices, labels: Indices) -> tuple[Indices, Scores]:
        """Return the nodes [P] after nodes and labels, and the added features [P, F + 2]."""
        if not self._phrases:
            return nodes, np.zeros((len(nodes), len(self._nothing)))
        pairs, indices = np.unique(nodes * (len(self._words) + 1) + labels, return_inverse=True)
        steps = [self._step(pair) for pair in pairs.tolist()]
        after = np.array([node for node, _ in steps], np.int64)
        added = np.array([gain for _, gain in steps]).reshape(-1, len(self._nothing))
        return after[indices], added[indices]

    def _step(self, pair: int) -> tuple[int, Scores]:
        if pair not in self._steps:
            automaton = self._phrases.automaton
            node, label = divmod(pair, len(self._words) + 1)
            if label == NO_WORD:
                after, gain = node, self._nothing
            elif label == len(self._words):
                after, gain = automaton.START, self._values(automaton.finish(node)) - self._credit(node)
            else:
                after, found = automaton.advance(node, self._words[label])
                gain = self._values(found) + self._credit(after) - self._credit(node)
            self._steps[pair] = after, gain
        return self._steps[pair]

    def _credit(self, node: int) -> Scores:
        """Return the credit for a node's words [F + 2]; for unknown words only if complete."""
        found, share = self._phrases.automaton.credit(node)
        values = self._values(found) * share
        if share < 1:
            values[-2:] = 0.0
        return values

    def _values(self, found: Sequence[int]) -> Scores:
        """Return the features of phrases [F + 2]."""
        unknown = [self._phrases.unknown(index, self._tokenizer) for index in found]
        shares, counts = np.array(unknown, np.float64).reshape(-1, 2).sum(axis=0)
        return np.array([*self._phrases.values(found).sum(axis=0), shares, -counts])


class ActiveStates:
    """Model states after tokens that can be extended; equal histories share one."""

    def __init__(self, model: LanguageModel, spelling: LabelTokens) -> None:
        self._model, self._spelling = model, spelling
        self.initial = model.initial_state(1)
        self._pool = self.initial
        self._rows = GrowableArray(np.int64)

    def after(self, tokens: Indices, labels: Indices) -> Work[Any, tuple[Any, Indices]]:
        """Advance tokens by a label each; return a state of distinct rows, and each pair's row [P]."""
        num_labels = len(self._spelling.lengths)
        pairs, indices = np.unique(self._rows[tokens] * num_labels + labels, return_inverse=True)
        rows, labels = np.divmod(pairs, num_labels)
        before, lengths = self._pool.select(rows), self._spelling.lengths[labels]
        if not lengths.any():
            return before, indices
        tokens, states = self._spelling.tokens[labels], list[Any]()
        for some in [slice(None)] if is_lookup(self._model) else _runs(np.arange(len(rows))):
            width = lengths[some].max()
            one = before.select(np.arange(len(rows))[some])
            states.append(prefill_sequences(self._model, one, tokens[some, :width], lengths[some]))
            yield None
        if self._spelling.restarts is not None and (ended := self._spelling.restarts[labels]).any():
            states.append(self.initial)
            indices = np.where(ended[indices], len(rows), indices)
        return states[0].concatenate(states[1:]) if len(states) > 1 else states[0], indices

    def add(self, state: Any, rows: Indices) -> None:
        """Add the states of new tokens; row −1: a token that is not extended."""
        begin = len(self._pool) if len(self._rows) else 0
        self._pool = self._pool.concatenate([state]) if begin else state
        self._rows.append(np.where(rows < 0, rows, begin + rows))

    def retain(self, tokens: Indices) -> None:
        """Drop the states of all tokens except these."""
        used, self._rows[:][tokens] = np.unique(self._rows[tokens], return_inverse=True)
        self._pool = self._pool.select(used)


def state_keys(state: Any) -> Indices | None:
    """Return keys [B, K], equal for rows with one future; None if the state has none.

    Only states of n-gram models and mixtures of them have keys.
    """
    if isinstance(state, NGramState):
        return state.ids[:, None].astype(np.int64)
    if isinstance(state, MixtureState):
        columns = [state_keys(part) for part in state.parts]
        known = [column for column in columns if column is not None]
        return np.concatenate(known, axis=1) if len(known) == len(columns) else None
    return None


def recombine(
    nodes: Indices, futures: Indices, totals: Scores, max_tokens_per_node: int
) -> tuple[Indices, Indices, Indices]:
    """Recombine edges into tokens; edges to a node with one future share a token.

    Args:
        nodes: node of each edge [P].
        futures: keys; equal for edges to a node with the same future [P, K].
        totals: total of each edge [P]; larger is better.
        max_tokens_per_node: maximum tokens per node; the best are kept, ties in order of edges.

    Returns:
        Indices of the kept edges, by token [E]; number of edges and best edge of each token [T]. Tokens
        are ordered by node, then by descending total.
    """
    keys = _pack_columns(np.column_stack([nodes, futures]))
    order = np.lexsort((-totals, *keys.T))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    firsts, groups = np.flatnonzero(is_first), np.cumsum(is_first) - 1  # positions in `order`
    best = order[firsts]
    ranked = np.lexsort((best, -totals[best], nodes[best]))
    node_of = nodes[best[ranked]]
    indices = np.arange(len(ranked)) - np.searchsorted(node_of, node_of)
    selected = ranked[indices < max_tokens_per_node]
    token_of = np.full(len(best), -1, np.int64)
    token_of[selected] = np.arange(len(selected))
    tokens = token_of[groups]
    by_token = np.argsort(tokens, kind="stable")
    by_token = by_token[np.searchsorted(tokens[by_token], 0) :]
    offsets = np.searchsorted(tokens[by_token], np.arange(len(selected) + 1))
    return order[by_token], np.diff(offsets), best[selected]


def _pack_columns(columns: Indices) -> Indices:
    """Pack columns of integers ≥ −1 [P, K] into fewer, equal for equal rows [P, J]."""
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
    """P edges, each from a token along an arc.

    Attributes:
        parents: token at the start of each edge [P].
        arcs: arc of each edge [P].
        log_probs: log-probability of the arc's word after that token [P].
        scores: weighted sum of the arc's features [P].
        added: features of phrases, and change of the number of unknown tokens [P, F + 1].
    """

    parents: Indices
    arcs: Indices
    log_probs: Scores
    scores: Scores
    added: Scores

    def select(self, indices: Any) -> "TokenEdges":
        """Select edges by index."""
        return TokenEdges(*(column[indices] for column in self))


class TokenGraph(NamedTuple):
    """T tokens and the E edges to them: a graph of searched paths.

    Attributes:
        nodes: node of each token, in topological order [T].
        forward: total of the best path to each token [T].
        offsets: start of each token's edges, and E at the end [T + 1].
        edges: edges, ordered by token.
    """

    nodes: Indices
    forward: Scores
    offsets: Indices
    edges: TokenEdges


class TokenTable:
    """Tokens created so far; those of a node are added together and consecutive.

    Args:
        num_nodes: number of nodes of all lattices.
        num_words: number of last words stored per token.

    Attributes:
        first: first token of each node [N].
        count: number of tokens of each node [N].
        nodes: node of each token.
        forward: total of the best path to each token.
        phrases: node of the phrases after each token.
    """

    def __init__(self, num_nodes: int, *, num_words: int) -> None:
        self.first = np.zeros(num_nodes, np.int64)
        self.count = np.zeros(num_nodes, np.int64)
        self.nodes, self.forward = GrowableArray(np.int64), GrowableArray(np.float64)
        self.phrases = GrowableArray(np.int64)
        self._words = GrowableArray(np.int64, num_words)

    def __len__(self) -> int:
        return len(self.nodes)

    def words_after(self, parents: Indices, labels: Indices) -> Indices:
        """Return the last words after tokens and a label [P, num_words]; empty words add nothing."""
        before = self._words[parents]
        if not before.shape[1]:
            return before
        spoken = labels != NO_WORD
        before[spoken] = np.column_stack([before[spoken, 1:], labels[spoken]])
        return before

    def add(self, nodes: Indices, totals: Scores, words: Indices, phrases: Indices) -> None:
        """Add tokens: nodes [T], totals [T], last words [T, num_words], nodes of phrases [T]."""
        indices = len(self) + np.arange(len(nodes))
        self.first[nodes[::-1]] = indices[::-1]
        np.add.at(self.count, nodes, 1)
        self.nodes.append(nodes)
        self.forward.append(totals)
        self._words.append(words)
        self.phrases.append(phrases)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeSearch:
    """Pruning and recombination settings of a lattice search.

    Attributes:
        max_tokens_per_node: maximum tokens per node; the best are kept.
        beam: a token is dropped if its weighted total, completed with the best remaining scores of the lattice, is
            lower by more than this than the best of its level or of later levels; None drops no token.
        recombination_order: number of last words; paths on which these are equal are recombined at a node and share a
            state at a level. None compares all words. For n-gram models the states decide, exactly.

    Raises:
        InputError: a value is out of range.
    """

    max_tokens_per_node: int = 64
    beam: float | None = None
    recombination_order: int | None = 4

    def __post_init__(self) -> None:
        for name in ("max_tokens_per_node", "recombination_order"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError.of(name, f"is {value}; it must be at least 1")
        if self.beam is not None and not self.beam >= 0:
            raise InputError.of("beam", f"is {self.beam}; it must be at least 0")


class TokenPassing:
    """Search with any model through lattices, by level, from a token on each start."""

    def __init__(
        self,
        model: LanguageModel,
        joined: LatticeGraph,
        spelling: LabelTokens,
        phrases: PhrasePaths,
        search: LatticeSearch,
    ) -> None:
        self._model, self._joined, self._spelling, self._search = model, joined, spelling, search
        self._phrases = phrases
        num_levels = int(joined.levels.max()) + 1
        self._by_source, self._by_target = (
            group_by_level(joined.levels[nodes], num_levels) for nodes in (joined.sources, joined.targets)
        )
        self._remainders = np.zeros(0) if search.beam is None else joined.remainders()
        self._states = ActiveStates(model, spelling)
        self._states_are_keys = state_keys(self._states.initial) is not None
        num_words = 0 if self._states_are_keys else search.recombination_order or len(self._by_target)
        num_added = joined.phrase_weights.shape[1] + 1
        self._tokens = TokenTable(len(joined.lattice_of), num_words=num_words)
        self._live = np.zeros(0, np.int64)  # tokens with outgoing arcs still to score
        # start of each arc in the arrays below
        self._begins = np.zeros(len(joined.sources), np.int64)
        self._log_probs, self._scores = GrowableArray(np.float64), GrowableArray(np.float64)
        self._added, self._phrases_after = GrowableArray(np.float64, num_added), GrowableArray(np.int64)
        self._best = np.full((len(self._by_target), len(joined.starts)), -np.inf)
        nothing = np.zeros(len(joined.starts), np.int64)
        words = np.full((len(joined.starts), num_words), NO_WORD)
        self._tokens.add(joined.starts, nothing.astype(np.float64), words, nothing)
        # to the tokens of each level
        self._num_edges, self._edges = [nothing], list[TokenEdges]()

    def run(self) -> Work[Any, TokenGraph]:
        """Search to the ends; return the token graph, numbered as the lattices' graph."""
        first = np.zeros(len(self._joined.starts), np.int64)
        yield from self._score_outgoing(0, self._states.initial, first)
        for level in range(1, len(self._by_target)):
            yield from self._advance_level(level)
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(self._num_edges))])
        ways = TokenEdges(*map(np.concatenate, zip(*self._edges, strict=True)))
        return TokenGraph(self._tokens.nodes[:], self._tokens.forward[:], offsets, ways)

    def _advance_level(self, level: int) -> Work[Any, None]:
        """Recombine the tokens at a level's nodes, then score the next words."""
        joined, (ways, totals, phrases) = self._joined, self._incoming_edges(level)
        nodes, labels = joined.targets[ways.arcs], self._spelling.canonical[joined.labels[ways.arcs]]
        ended = joined.last_use[nodes] < 0
        futures = words = self._tokens.words_after(ways.parents, labels)
        if self._states_are_keys:
            state, rows = yield from self._states.after(ways.parents, labels)
            futures = cast("Indices", state_keys(state))[rows]
        futures = np.column_stack([futures, phrases])
        # after the end, all futures are equal
        futures = np.where(ended[:, None], 0, futures)
        kept, counts, best = recombine(nodes, futures, totals, self._search.max_tokens_per_node)
        self._tokens.add(nodes[best], totals[best], words[best], phrases[best])
        self._num_edges.append(counts)
        self._edges.append(ways.select(kept))
        going = ~ended[best]
        best = best[going]
        if self._states_are_keys:
            used, indices = np.unique(rows[best], return_inverse=True)
            state = state.select(used)
        else:  # edges of a lattice with equal last words share the state of the best
            lattices = joined.lattice_of[nodes[best]]
            kept, counts, first = recombine(lattices, words[best], totals[best], len(best))
            state, shared = yield from self._states.after(ways.parents[best[first]], labels[best[first]])
            indices = np.empty(len(best), np.int64)
            indices[kept] = np.repeat(shared, counts)
        rows = np.full(len(going), NO_STATE)
        rows[going] = indices
        yield from self._score_outgoing(level, state, rows)

    def _incoming_edges(self, level: int) -> tuple[TokenEdges, Scores, Indices]:
        """Return the edges to a level inside the beam, their totals and nodes of phrases."""
        joined, tokens = self._joined, self._tokens
        arcs = self._by_target[level]
        counts = tokens.count[joined.sources[arcs]]
        first, begins = tokens.first[joined.sources[arcs]], self._begins[arcs]
        parents, scored = index_ranges(first, first + counts), index_ranges(begins, begins + counts)
        stored = (column[scored] for column in (self._log_probs, self._scores, self._added))
        ways = TokenEdges(parents, np.repeat(arcs, counts), *stored)
        phrases = self._phrases_after[scored]
        totals = tokens.forward[parents] + ways.scores
        if self._search.beam is None:
            return ways, totals, phrases
        nodes = joined.targets[ways.arcs]
        threshold = self._best[level:].max(axis=0) - self._search.beam
        inside = np.flatnonzero(totals + self._remainders[nodes] >= threshold[joined.lattice_of[nodes]])
        return ways.select(inside), totals[inside], phrases[inside]

    def _score_outgoing(self, level: int, state: Any, rows: Indices) -> Work[Any, None]:
        """Score the words after a level's tokens, the newest; `rows` are their rows of the state."""
        joined, tokens = self._joined, self._tokens
        begin = len(tokens) - len(rows)
        self._states.add(state, rows)
        arcs = self._by_source[level]
        counts = tokens.count[joined.sources[arcs]]
        first = tokens.first[joined.sources[arcs]]
        parents, gone = index_ranges(first, first + counts), np.repeat(arcs, counts)
        labels = self._spelling.canonical[joined.labels[gone]]
        log_probs = yield from word_log_probs(
            self._model, state, rows[parents - begin], labels, self._spelling
        )
        phrases_after, added = self._phrases.advance(tokens.phrases[parents], joined.labels[gone])
        log_probs += added[:, -2]
        added = np.delete(added, -2, axis=1)
        lattices = joined.lattice_of[joined.sources[gone]]
        scores = joined.fixed[gone] + weighted(log_probs, joined.lm_weights[lattices])
        scores += joined.unk_weights[lattices] * added[:, -1]
        scores += (joined.phrase_weights[lattices] * added[:, :-1]).sum(axis=1)
        self._begins[arcs] = len(self._scores) + np.cumsum(counts) - counts
        self._log_probs.append(log_probs)
        self._scores.append(scores)
        self._added.append(added)
        self._phrases_after.append(phrases_after)
        if self._search.beam is not None:
            nodes = joined.targets[gone]
            estimates = tokens.forward[parents] + scores + self._remainders[nodes]
            np.maximum.at(self._best, (joined.levels[nodes], lattices), estimates)
        self._live = np.concatenate([self._live, np.arange(begin, len(tokens))])
        self._live = self._live[joined.last_use[tokens.nodes[self._live]] > level]
        self._states.retain(self._live)
