"""Token passing through lattices with an n-gram model, in compiled code.

The state of an n-gram model is a number that determines the future of a path. So tokens of a node
are recombined by it, and the search, if unpruned, is exact. The token graph is that of
`TokenPassing`, which serves other models.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import Float64s, Int64s
from models.kernels.compilation import columns_type, tuple_type, version_for
from models.lattices.graph import LabelTokens, LatticeGraph
from models.lattices.token_passing import LatticeSearch, TokenEdges, TokenGraph
from models.ngram.automaton import LN_10
from models.ngram.model import NGramModel
from models.ngram.scoring import (
    arc_at,
    automaton_kernel,
    log10_backoff_of,
    log10_prob_of,
    minimal_state,
    next_state,
    type_of,
)

U = numba.uint64
_FIRST_TOKENS, _FIRST_EDGES = 1 << 8, 1 << 12
_VERSIONS: dict[bool, Any] = {}
"""The kernel for exact and for quantised models: finding it takes longer than many a search."""


class SearchGraph(NamedTuple):
    """Arrays of a `LatticeGraph`, whose arcs are in ascending order of sources, for the search.

    Attributes:
        sources: source node of each arc [A].
        targets: target node of each arc [A].
        labels: label of each arc [A].
        fixed: weighted sum of each arc's features without the model [A].
        levels: level of each node [N].
        lattice_of: lattice of each node [N].
        last_use: highest level after an arc from each node; −1 for ends [N].
        remainders: estimated score of the best path from each node to the end, with a beam [N].
        starts: first node of each lattice [L].
        lm_weights: weight of the model's log-probabilities in each lattice [L].
    """

    sources: Int64s
    targets: Int64s
    labels: Int64s
    fixed: Float64s
    levels: Int64s
    lattice_of: Int64s
    last_use: Int64s
    remainders: Float64s
    starts: Int64s
    lm_weights: Float64s


class _Found(NamedTuple):
    """Token graph, as in `TokenGraph` and `TokenEdges`; arrays may be longer than their content."""

    nodes: Int64s
    forward: Float64s
    offsets: Int64s
    parents: Int64s
    arcs: Int64s
    log_probs: Float64s
    scores: Float64s
    num_tokens: int
    num_edges: int


_FLOATS, _INTS = types.float64[::1], types.int64[::1]
_FOUND = tuple_type(_Found, _INTS, _FLOATS, _INTS, _INTS, _INTS, _FLOATS, _FLOATS, types.int64, types.int64)


def pass_ngram_tokens(
    model: NGramModel, joined: LatticeGraph, spelling: LabelTokens, search: LatticeSearch
) -> TokenGraph:
    """Search with an n-gram model, without phrases, through lattices; see `TokenPassing`."""
    graph = SearchGraph(
        joined.sources,
        joined.targets,
        spelling.canonical[joined.labels],
        joined.fixed,
        joined.levels,
        joined.lattice_of,
        joined.last_use,
        np.zeros(0) if search.beam is None else joined.remainders(),
        joined.starts,
        joined.lm_weights,
    )
    is_quantised = model.automaton.quantised
    if is_quantised not in _VERSIONS:
        _VERSIONS[is_quantised] = version_for(pass_tokens, type_of(model.automaton))
    found = _VERSIONS[is_quantised](
        model.automaton,
        graph,
        np.ascontiguousarray(spelling.tokens, np.int64),
        np.ascontiguousarray(spelling.lengths, np.int64),
        model.automaton.initial,
        search.max_tokens_per_node,
        np.inf if search.beam is None else search.beam,
    )
    edges = slice(found.num_edges)
    return TokenGraph(
        found.nodes[: found.num_tokens],
        found.forward[: found.num_tokens],
        found.offsets[: found.num_tokens + 1],
        TokenEdges(
            found.parents[edges],
            found.arcs[edges],
            found.log_probs[edges],
            found.scores[edges],
            np.zeros((found.num_edges, 1)),
        ),
    )


@numba.njit(nogil=True)
def _grown(array: Any, size: Any) -> Any:
    """Return an array with room for `size` numbers and the content of this one."""
    if size <= len(array):
        return array
    larger = np.empty(2 * size, array.dtype)
    larger[: len(array)] = array
    return larger


@numba.njit(nogil=True)
def _read_label(automaton: Any, state: Any, tokens: Any, length: Any) -> Any:
    """Return the log-probability of a label's tokens after a state, and the state after them."""
    log_prob: Any = 0.0
    missing = U(len(automaton.words))
    for place in range(length):
        word, backoff = tokens[place], 0.0
        arc = arc_at(automaton.first_arcs, automaton.words, state, word)
        while arc == missing:
            backoff += log10_backoff_of(automaton, state)
            state = U(automaton.suffixes[state])
            arc = arc_at(automaton.first_arcs, automaton.words, state, word)
        log_prob += np.float32((log10_prob_of(automaton, arc) + backoff) * LN_10)
        state = minimal_state(automaton, next_state(automaton, state, word))
    return log_prob, state


@automaton_kernel(
    _FOUND,
    columns_type(SearchGraph),
    types.int64[:, ::1],
    _INTS,
    types.int64,
    types.int64,
    types.float64,
)
def pass_tokens(  # noqa: C901, PLR0912, PLR0915 - one loop, over levels, nodes, edges
    automaton: Any,
    graph: Any,
    label_tokens: Any,
    label_lengths: Any,
    initial: Any,
    max_tokens: Any,
    beam: Any,
) -> Any:
    """Search through lattices by level, from a token on each start.

    Args:
        automaton: the model.
        graph: the lattices.
        label_tokens: ids of each label [W, T].
        label_lengths: number of these of each label [W].
        initial: state before a sentence.
        max_tokens: maximum tokens per node.
        beam: as in `LatticeSearch`; infinite for none.
    """
    num_nodes, num_arcs = len(graph.levels), len(graph.sources)
    by_level = np.argsort(graph.levels, kind="mergesort")  # stable
    num_levels = graph.levels[by_level[-1]] + 1
    # arcs from each node are contiguous; those to each are listed in ascending order
    arcs_from = np.searchsorted(graph.sources, np.arange(num_nodes + 1))
    arcs_to = np.zeros(num_nodes + 1, np.int64)
    for arc in range(num_arcs):
        arcs_to[graph.targets[arc] + 1] += 1
    arcs_to = np.cumsum(arcs_to)
    incoming, filled = np.empty(num_arcs, np.int64), arcs_to.copy()
    for arc in range(num_arcs):
        incoming[filled[graph.targets[arc]]] = arc
        filled[graph.targets[arc]] += 1
    # tokens, the edges to them, and all edges scored, by arc and then by token
    nodes, forward = np.empty(_FIRST_TOKENS, np.int64), np.empty(_FIRST_TOKENS)
    states, offsets = np.empty(_FIRST_TOKENS, np.int64), np.zeros(_FIRST_TOKENS + 1, np.int64)
    parents, arcs = np.empty(_FIRST_EDGES, np.int64), np.empty(_FIRST_EDGES, np.int64)
    log_probs, scores = np.empty(_FIRST_EDGES), np.empty(_FIRST_EDGES)
    scored_log_probs, scored = np.empty(_FIRST_EDGES), np.empty(_FIRST_EDGES)
    states_after = np.empty(_FIRST_EDGES, np.int64)
    num_tokens = num_edges = num_scored = 0
    first, count = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    begins = np.zeros(num_arcs, np.int64)
    # estimates of complete paths through edges to each level, of each lattice
    estimates = np.full((num_levels, len(graph.starts)), -np.inf)
    thresholds = np.full(len(graph.starts), -np.inf)
    # edges to one node: their totals and places; its tokens by state in a hash table
    totals, places = np.empty(_FIRST_TOKENS), np.empty(_FIRST_TOKENS, np.int64)
    sources, ways = np.empty(_FIRST_TOKENS, np.int64), np.empty(_FIRST_TOKENS, np.int64)
    chosen = np.empty(_FIRST_TOKENS, np.int64)
    slots = np.empty(2 * _FIRST_TOKENS, np.int64)
    begin = 0
    while begin < num_nodes:
        level, end = graph.levels[by_level[begin]], begin
        while end < num_nodes and graph.levels[by_level[end]] == level:
            end += 1
        if beam < np.inf:
            for lattice in range(len(graph.starts)):
                thresholds[lattice] = estimates[level:, lattice].max() - beam
        for node in by_level[begin:end]:
            first[node] = num_tokens
            if graph.starts[graph.lattice_of[node]] == node:
                nodes, forward = _grown(nodes, num_tokens + 1), _grown(forward, num_tokens + 1)
                states, offsets = _grown(states, num_tokens + 1), _grown(offsets, num_tokens + 2)
                nodes[num_tokens], forward[num_tokens], states[num_tokens] = node, 0.0, initial
                num_tokens += 1
                offsets[num_tokens] = num_edges
                count[node] = 1
                continue
            size = 0
            for arc in incoming[arcs_to[node] : arcs_to[node + 1]]:
                size += count[graph.sources[arc]]
            totals, places = _grown(totals, size), _grown(places, size)
            sources, ways, chosen = _grown(sources, size), _grown(ways, size), _grown(chosen, size)
            threshold = thresholds[graph.lattice_of[node]]
            size = 0
            for arc in incoming[arcs_to[node] : arcs_to[node + 1]]:
                source = graph.sources[arc]
                for number in range(count[source]):
                    token, place = first[source] + number, begins[arc] + number
                    total = forward[token] + scored[place]
                    if beam == np.inf or total + graph.remainders[node] >= threshold:
                        totals[size], places[size], sources[size], ways[size] = total, place, token, arc
                        size += 1
            if not size:
                continue
            # of equal totals, the first edge is first
            order = np.argsort(-totals[:size], kind="mergesort")
            mask = 1
            while mask < 2 * size:
                mask *= 2
            slots = _grown(slots, mask)
            slots[:mask] = -1
            mask -= 1
            is_end = graph.last_use[node] < 0
            own = 0
            offsets, states = _grown(offsets, num_tokens + size + 1), _grown(states, num_tokens + size)
            for edge in order:
                state = 0 if is_end else states_after[places[edge]]
                slot = (state * 0x9E3779B1 >> 7) & mask
                while slots[slot] >= 0 and states[num_tokens + slots[slot]] != state:
                    slot = (slot + 1) & mask
                if slots[slot] < 0 and own < max_tokens:
                    slots[slot] = own
                    states[num_tokens + own] = state
                    offsets[num_tokens + own + 1] = 0
                    own += 1
                chosen[edge] = slots[slot]
                if slots[slot] >= 0:
                    offsets[num_tokens + slots[slot] + 1] += 1
            nodes, forward = _grown(nodes, num_tokens + own), _grown(forward, num_tokens + own)
            for number in range(own):
                offsets[num_tokens + number + 1] += offsets[num_tokens + number]
            num_edges = offsets[num_tokens + own]
            parents, arcs = _grown(parents, num_edges), _grown(arcs, num_edges)
            log_probs, scores = _grown(log_probs, num_edges), _grown(scores, num_edges)
            for number in range(own):
                nodes[num_tokens + number] = node
                slots[number] = offsets[num_tokens + number]  # where its next edge goes
            for edge in order:
                if chosen[edge] < 0:
                    continue
                at = slots[chosen[edge]]
                slots[chosen[edge]] += 1
                if at == offsets[num_tokens + chosen[edge]]:
                    forward[num_tokens + chosen[edge]] = totals[edge]
                parents[at], arcs[at] = sources[edge], ways[edge]
                log_probs[at], scores[at] = scored_log_probs[places[edge]], scored[places[edge]]
            num_tokens += own
            count[node] = own
        for node in by_level[begin:end]:
            lattice = graph.lattice_of[node]
            weight = graph.lm_weights[lattice]
            for arc in range(arcs_from[node], arcs_from[node + 1]):
                begins[arc] = num_scored
                needed = num_scored + count[node]
                scored_log_probs, scored = _grown(scored_log_probs, needed), _grown(scored, needed)
                states_after = _grown(states_after, needed)
                label, target = graph.labels[arc], graph.targets[arc]
                for token in range(first[node], first[node] + count[node]):
                    log_prob, state = _read_label(
                        automaton, U(states[token]), label_tokens[label], label_lengths[label]
                    )
                    score = graph.fixed[arc]
                    if weight != 0.0:  # with any other, an impossible word stays so
                        score += weight * log_prob if log_prob > -np.inf else -np.inf
                    scored_log_probs[num_scored], scored[num_scored] = log_prob, score
                    states_after[num_scored] = state
                    num_scored += 1
                    if beam < np.inf:
                        estimate = forward[token] + score + graph.remainders[target]
                        place = graph.levels[target]
                        estimates[place, lattice] = max(estimates[place, lattice], estimate)
        begin = end
    return _Found(nodes, forward, offsets, parents, arcs, log_probs, scores, num_tokens, num_edges)
