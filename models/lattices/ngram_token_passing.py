"""Compiled token passing for n-gram models: the same tokens and edges as `token_passing`.

States of an n-gram model are numbers, and words are looked up one by one: batching gains nothing,
and avoiding arrays per step gains much. Compiled code, so imported when first used.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import TokenIds
from models.language_model import LOG_ZERO
from models.lattices.graph import LabelTokens, LatticeGraph
from models.lattices.lattice import Indices, Scores
from models.lattices.token_passing import LatticeSearchSettings, TokenEdges, TokenGraph
from models.ngram.access import AUTOMATON_TYPES, U, arc_at, value_at
from models.ngram.automaton import Automaton
from models.ngram.model import NGramModel

_NONE = -1
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number near 2⁶⁴ / φ: multiples of it are spread over a table, whatever the states."""


class IncomingEdges(NamedTuple):
    """Ways to a node; arrays may be longer than needed.

    Attributes:
        parents: the token before [C].
        arcs: [C].
        score_indices: of what was found of both [C].
        states: after the way [C].
        totals: of the way [C].
    """

    parents: Indices
    arcs: Indices
    score_indices: Indices
    states: Indices
    totals: Scores


@numba.njit(nogil=True)
def ensure_capacity(numbers: Any, size: int) -> Any:
    """Return the array if it is long enough, else a longer one that begins with its values."""
    if size <= len(numbers):
        return numbers
    longer = np.empty(2 * size, numbers.dtype)
    for slot in range(len(numbers)):
        longer[slot] = numbers[slot]
    return longer


@numba.njit(nogil=True)
def recombine_incoming(ways: IncomingEdges, size: int, most: int) -> tuple[Indices, Indices, Indices]:
    """Tokens of ways: those after which the state is the same are one.

    Args:
        ways: the first `size` of them.
        size: how many there are.
        most: tokens, at most; the best are kept.

    Returns:
        The best way of each token, the best token first [T]; where each token's ways begin [T + 1]; ways by token.
    """
    groups, best = np.empty(size, np.int64), np.empty(size, np.int64)
    num_groups = _group_by_state(ways.states, ways.totals, size, groups, best)
    order = _rank_groups(best, ways.totals, num_groups)
    num_tokens = min(num_groups, most)
    token_of, tops = np.full(num_groups, _NONE), np.empty(num_tokens, np.int64)
    for token in range(num_tokens):
        token_of[order[token]], tops[token] = token, best[order[token]]
    begins = np.zeros(num_tokens + 1, np.int64)
    for way in range(size):
        token = token_of[groups[way]]
        if token != _NONE:
            begins[token + 1] += 1
    for token in range(num_tokens):
        begins[token + 1] += begins[token]
    best_ways, slots = np.empty(begins[num_tokens], np.int64), begins.copy()
    for way in range(size):
        token = token_of[groups[way]]
        if token != _NONE:
            best_ways[slots[token]] = way
            slots[token] += 1
    return tops, begins, best_ways


@numba.njit(nogil=True)
def _group_by_state(states: Indices, totals: Scores, size: int, groups: Indices, best: Indices) -> int:
    """Group ways after which the state is the same.

    Args:
        states: after the ways; the first `size` of them.
        totals: of the ways.
        size: how many there are.
        groups: the group of each; written.
        best: the best way of each group; written.

    Returns:
        How many groups there are.
    """
    capacity = 4
    while capacity < 2 * size:
        capacity *= 2
    mask = np.uint64(capacity - 1)
    # [capacity] each: open addressing with linear probing, at most half full
    keys, known = np.full(capacity, _NONE), np.empty(capacity, np.int64)
    num_groups = 0
    for way in range(size):
        state = states[way]
        slot = ((np.uint64(state) * _HASH_MULTIPLIER) >> np.uint64(32)) & mask
        while keys[slot] != _NONE and keys[slot] != state:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == _NONE:
            keys[slot], known[slot] = state, num_groups
            best[num_groups] = way
            num_groups += 1
        group = known[slot]
        groups[way] = group
        if totals[way] > totals[best[group]]:
            best[group] = way
    return num_groups


@numba.njit(nogil=True)
def _rank_groups(best: Indices, totals: Scores, size: int) -> Indices:
    """Groups by falling total of their best ways, equal ones as these stand [size]; Shell's sort."""
    order = np.empty(size, np.int64)
    gap = 1
    while gap < size // 3:
        gap = 3 * gap + 1
    for group in range(size):
        order[group] = group
    while gap > 0:
        for slot in range(gap, size):
            group, before = order[slot], slot - gap
            way = best[group]
            while before >= 0:
                rival = best[order[before]]
                if totals[rival] > totals[way] or (totals[rival] == totals[way] and rival < way):
                    break
                order[before + gap] = order[before]
                before -= gap
            order[before + gap] = group
        gap //= 3
    return order


_LN_10 = math.log(10)


@numba.njit(nogil=True)
def advance_word(
    automaton: Automaton, states: Indices, tokens: TokenIds, after: Indices, log_probs: Scores
) -> None:
    """Read a word after each of some states [K]: the state after it, and its log-probability."""
    first_arcs, words, suffixes = automaton.first_arcs, automaton.words, automaton.suffixes
    probs, prob_values = automaton.log10_probs, automaton.prob_values
    backoffs, backoff_values = automaton.log10_backoffs, automaton.backoff_values
    missing, num_states = U(len(words)), U(len(suffixes))
    for row in range(len(states)):
        total, at = 0.0, U(states[row])
        for token in tokens:
            word, backoff, is_scored = U(token), 0.0, False
            while True:
                arc = arc_at(first_arcs, words, at, word)
                if arc != missing and not is_scored:
                    total += float(np.float32((value_at(probs, prob_values, arc) + backoff) * _LN_10))
                    is_scored = True
                # the longest n-grams are no states; their suffixes are
                if arc != missing and (arc + U(1) < num_states or at == U(0)):
                    break
                backoff += value_at(backoffs, backoff_values, at)
                at = U(suffixes[at])
            at = arc + U(1) if arc + U(1) < num_states else U(0)
            # the shortest state with the same future, as in `access.minimal`
            while (
                at != U(0)
                and first_arcs[at] == first_arcs[at + U(1)]
                and value_at(backoffs, backoff_values, at) == 0
            ):
                at = U(suffixes[at])
        after[row] = at
        log_probs[row] = total if total > -np.inf else LOG_ZERO


_INITIAL_CAPACITY = 1024
_FLOAT_FIELDS = {"remainders", "fixed", "lm_weights"}


class _GraphArrays(NamedTuple):
    """Arrays of lattices for the compiled search; see `LatticeGraph` and `LabelTokens`.

    Attributes:
        nodes: lattice by lattice, level by level [N].
        in_starts: where each node's arcs begin in `in_arcs` [N + 1].
        in_arcs: arcs by target [A].
        out_starts: where each node's arcs begin in `out_arcs` [N + 1].
        out_arcs: arcs by source, those of one label together [A].
        lm_weights: of each arc [A].
    """

    nodes: Indices
    in_starts: Indices
    in_arcs: Indices
    out_starts: Indices
    out_arcs: Indices
    lattice_of: Indices
    levels: Indices
    sources: Indices
    targets: Indices
    labels: Indices
    tokens: TokenIds
    lengths: TokenIds
    remainders: Scores
    fixed: Scores
    lm_weights: Scores


class _ScoredEdges(NamedTuple):
    """Scores of tokens on their outgoing arcs, arc by arc.

    Attributes:
        starts: where each arc's begin [A].
        states: after the arc's word [P].
        log_probs: of the word [P].
        scores: of the arc [P].
    """

    starts: Indices
    states: Indices
    log_probs: Scores
    scores: Scores


def pass_ngram_tokens(
    model: NGramModel, joined: LatticeGraph, spelling: LabelTokens, search: LatticeSearchSettings
) -> TokenGraph:
    """Walk all lattices from their starts to their ends; see `token_passing.pass_tokens`."""
    labels = spelling.canonical[joined.labels]
    by_target = np.argsort(joined.targets, kind="stable")
    by_source = np.lexsort((labels, joined.sources))
    bounds = np.arange(joined.num_nodes + 1)
    graph = _GraphArrays(
        nodes=np.lexsort((joined.levels, joined.lattice_of)),
        in_starts=np.searchsorted(joined.targets[by_target], bounds),
        in_arcs=by_target,
        out_starts=np.searchsorted(joined.sources[by_source], bounds),
        out_arcs=by_source,
        lattice_of=joined.lattice_of,
        levels=joined.levels,
        sources=joined.sources,
        targets=joined.targets,
        labels=labels,
        tokens=spelling.tokens,
        lengths=spelling.lengths,
        remainders=joined.remainders,
        fixed=joined.fixed,
        lm_weights=joined.lm_weights[joined.lattice_of[joined.sources]],
    )
    beam = math.inf if search.beam is None else search.beam
    nodes, totals, num_ways, parents, arcs, log_probs, scores = _pass_tokens(
        model.automaton, graph, model.automaton.initial, search.max_tokens_per_node, beam
    )
    offsets = np.concatenate([[0], np.cumsum(num_ways)])
    return TokenGraph(nodes, totals, offsets, TokenEdges(parents, arcs, log_probs, scores))


@numba.njit(nogil=True)
def _collect_incoming(
    graph: _GraphArrays,
    node: int,
    first: Indices,
    count: Indices,
    totals: Scores,
    found: _ScoredEdges,
    threshold: float,
    buffers: IncomingEdges,
) -> tuple[IncomingEdges, int]:
    """Collect the ways to a node that reach the threshold, in the buffers or longer ones; and count them."""
    incoming, sources = graph.in_arcs[graph.in_starts[node] : graph.in_starts[node + 1]], graph.sources
    starts, found_states, scores = found.starts, found.states, found.scores
    most = 0
    for arc in incoming:
        most += count[sources[arc]]
    parents, arcs, score_indices = (
        ensure_capacity(buffers.parents, most),
        ensure_capacity(buffers.arcs, most),
        ensure_capacity(buffers.score_indices, most),
    )
    states, sums = ensure_capacity(buffers.states, most), ensure_capacity(buffers.totals, most)
    remainder, ended = graph.remainders[node], graph.out_starts[node] == graph.out_starts[node + 1]
    size = 0
    for arc in incoming:
        source = sources[arc]
        for number in range(count[source]):
            parent, score_index = first[source] + number, starts[arc] + number
            total = totals[parent] + scores[score_index]
            if total + remainder >= threshold:
                parents[size], arcs[size], score_indices[size] = parent, arc, score_index
                states[size] = (
                    0 if ended else found_states[score_index]
                )  # all states are equal behind the end
                sums[size] = total
                size += 1
    return IncomingEdges(parents, arcs, score_indices, states, sums), size


@numba.njit(nogil=True)
def _add_tokens(
    node: int,
    ways: IncomingEdges,
    tops: Indices,
    begins: Indices,
    nodes: Indices,
    num_ways: Indices,
    states: Indices,
    totals: Scores,
) -> None:
    """Write the tokens of a node, whose best ways and where whose ways begin are given."""
    way_states, way_totals = ways.states, ways.totals
    for token in range(len(tops)):
        nodes[token], num_ways[token] = node, begins[token + 1] - begins[token]
        states[token], totals[token] = way_states[tops[token]], way_totals[tops[token]]


@numba.njit(nogil=True)
def _add_edges(
    ways: IncomingEdges,
    best_ways: Indices,
    found: _ScoredEdges,
    parents: Indices,
    arcs: Indices,
    log_probs: Scores,
    scores: Scores,
) -> None:
    """Write those ways that are kept."""
    way_parents, way_arcs, score_indices = ways.parents, ways.arcs, ways.score_indices
    found_log_probs, found_scores = found.log_probs, found.scores
    for number in range(len(best_ways)):
        way = best_ways[number]
        parents[number], arcs[number] = way_parents[way], way_arcs[way]
        log_probs[number], scores[number] = (
            found_log_probs[score_indices[way]],
            found_scores[score_indices[way]],
        )


@numba.njit(nogil=True)
def _score_outgoing(
    automaton: Automaton,
    graph: _GraphArrays,
    node: int,
    own_states: Indices,
    own_totals: Scores,
    found: _ScoredEdges,
    size: int,
    estimates: Scores,
) -> tuple[_ScoredEdges, int]:
    """Score the tokens of a node on its outgoing arcs and append the results to `found`.

    Args:
        automaton: the model.
        graph: the lattices.
        node: where the tokens are.
        own_states: of the tokens [K].
        own_totals: of the tokens [K].
        found: before.
        size: how much of that there is.
        estimates: the best way to each level, completed; updated.

    Returns:
        All of it, and how much there is.
    """
    outgoing, labels = graph.out_arcs[graph.out_starts[node] : graph.out_starts[node + 1]], graph.labels
    targets, levels, remainders = graph.targets, graph.levels, graph.remainders
    fixed, lm_weights, tokens, lengths = graph.fixed, graph.lm_weights, graph.tokens, graph.lengths
    num_own = len(own_states)
    starts, most = found.starts, size + num_own * len(outgoing)
    states, log_probs, scores = (
        ensure_capacity(found.states, most),
        ensure_capacity(found.log_probs, most),
        ensure_capacity(found.scores, most),
    )
    known, known_label = 0, _NONE
    for arc in outgoing:
        starts[arc], label, target = size, labels[arc], targets[arc]
        if label == known_label:  # arcs of one word stand together
            for number in range(num_own):
                states[size + number], log_probs[size + number] = (
                    states[known + number],
                    log_probs[known + number],
                )
        else:
            known, known_label, here = size, label, slice(size, size + num_own)
            advance_word(
                automaton, own_states, tokens[label, : lengths[label]], states[here], log_probs[here]
            )
        best = -np.inf
        for number in range(num_own):
            score = fixed[arc] + lm_weights[arc] * log_probs[size + number]
            scores[size + number] = score
            best = max(best, own_totals[number] + score)
        estimates[levels[target]] = max(estimates[levels[target]], best + remainders[target])
        size += num_own
    return _ScoredEdges(starts, states, log_probs, scores), size


_INT_ARRAY, _FLOAT_ARRAY = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")
_GRAPH_TYPE = types.NamedTuple(  # type: ignore[no-untyped-call]  # numba ships no annotations for it
    [
        types.Array(types.int64, 2, "C")
        if name == "tokens"
        else _FLOAT_ARRAY
        if name in _FLOAT_FIELDS
        else _INT_ARRAY
        for name in _GraphArrays._fields
    ],
    _GraphArrays,
)


@numba.njit(
    [
        types.Tuple(
            (_INT_ARRAY, _FLOAT_ARRAY, _INT_ARRAY, _INT_ARRAY, _INT_ARRAY, _FLOAT_ARRAY, _FLOAT_ARRAY)
        )(  # type: ignore[no-untyped-call]
            automaton, _GRAPH_TYPE, types.int64, types.int64, types.float64
        )
        for automaton in AUTOMATON_TYPES
    ],
    nogil=True,
    cache=True,
)
def _pass_tokens(
    automaton: Automaton, graph: _GraphArrays, initial: int, most: int, beam: float
) -> tuple[Indices, Scores, Indices, Indices, Indices, Scores, Scores]:
    """All tokens and ways.

    Args:
        automaton: the model.
        graph: the lattices.
        initial: the state to start with.
        most: tokens of a node.
        beam: infinite for none.

    Returns:
        Of tokens: nodes, totals, numbers of ways; of ways, by token: parents, arcs, log-probabilities, scores.
    """
    order, lattice_of, levels, in_starts = graph.nodes, graph.lattice_of, graph.levels, graph.in_starts
    first, count = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    nodes, states, num_ways = (
        np.empty(_INITIAL_CAPACITY, np.int64),
        np.empty(_INITIAL_CAPACITY, np.int64),
        np.empty(_INITIAL_CAPACITY, np.int64),
    )
    totals, log_probs, scores = (
        np.empty(_INITIAL_CAPACITY),
        np.empty(_INITIAL_CAPACITY),
        np.empty(_INITIAL_CAPACITY),
    )
    parents, arcs = np.empty(_INITIAL_CAPACITY, np.int64), np.empty(_INITIAL_CAPACITY, np.int64)
    found = _ScoredEdges(np.zeros(len(graph.sources), np.int64), nodes.copy(), totals.copy(), totals.copy())
    ways = IncomingEdges(nodes.copy(), nodes.copy(), nodes.copy(), nodes.copy(), totals.copy())
    estimates = np.empty(levels.max() + 1)
    num_tokens, num_kept, num_found, lattice, level, threshold = 0, 0, 0, _NONE, _NONE, -np.inf
    for node in order:
        if lattice_of[node] != lattice:
            lattice, level = lattice_of[node], _NONE
            for rival in range(len(estimates)):
                estimates[rival] = -np.inf
        if levels[node] != level:
            level, threshold = levels[node], -np.inf
            for rival in range(level, len(estimates) if beam < np.inf else level):
                threshold = max(threshold, estimates[rival] - beam)
        begin = num_tokens
        if in_starts[node] == in_starts[node + 1]:
            num_tokens += 1
            nodes, num_ways = ensure_capacity(nodes, num_tokens), ensure_capacity(num_ways, num_tokens)
            states, totals = ensure_capacity(states, num_tokens), ensure_capacity(totals, num_tokens)
            nodes[begin], num_ways[begin], states[begin], totals[begin] = node, 0, initial, 0.0
        else:
            ways, size = _collect_incoming(graph, node, first, count, totals, found, threshold, ways)
            tops, begins, best_ways = recombine_incoming(ways, size, most)
            num_tokens += len(tops)
            nodes, num_ways = ensure_capacity(nodes, num_tokens), ensure_capacity(num_ways, num_tokens)
            states, totals = ensure_capacity(states, num_tokens), ensure_capacity(totals, num_tokens)
            _add_tokens(
                node, ways, tops, begins, nodes[begin:], num_ways[begin:], states[begin:], totals[begin:]
            )
            begin_ways, num_kept = num_kept, num_kept + len(best_ways)
            parents, arcs = ensure_capacity(parents, num_kept), ensure_capacity(arcs, num_kept)
            log_probs, scores = ensure_capacity(log_probs, num_kept), ensure_capacity(scores, num_kept)
            rest = slice(begin_ways, num_kept)
            _add_edges(ways, best_ways, found, parents[rest], arcs[rest], log_probs[rest], scores[rest])
        first[node], count[node] = begin, num_tokens - begin
        own = slice(begin, num_tokens)
        found, num_found = _score_outgoing(
            automaton, graph, node, states[own], totals[own], found, num_found, estimates
        )
    return (
        nodes[:num_tokens], totals[:num_tokens], num_ways[:num_tokens],
        parents[:num_kept], arcs[:num_kept], log_probs[:num_kept], scores[:num_kept],
    )  # fmt: skip
