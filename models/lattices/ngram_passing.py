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
from models.calls import Work
from models.kernels.compilation import columns_type, version_for
from models.language_model import EOS
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
_INTS = types.int64[::1]
_FIRST_EDGES = 1 << 12
_FACTOR = 0x9E3779B1  # of a multiplicative hash (Knuth 1998, section 6.4)
_LEVEL, _PLACE, _IS_SCORING, _TOKENS, _EDGES, _SCORED = range(6)
EDGES_PER_CALL = 1 << 15
"""Edges, scored and recombined, after which a call ends: a few milliseconds."""

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
        by_level: nodes in order of level [N].
        arcs_from: first arc from each node, then A [N + 1].
        incoming: arcs by target [A].
        arcs_to: place of the first arc to each node among these, then A [N + 1].
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
    by_level: Int64s
    arcs_from: Int64s
    incoming: Int64s
    arcs_to: Int64s


class Passing(NamedTuple):
    """State of a search: tokens, edges to them as in `TokenEdges`, and scored edges; arrays have spare room.

    Attributes:
        counts: place of the search and numbers of tokens, edges and scored edges, by `_PLACE` to `_SCORED`.
        nodes: node of each token.
        forward: total of the best path to each token.
        states: the model's state at each token.
        offsets: start of each token's edges.
        parents: token before each edge.
        arcs: arc of each edge.
        log_probs: log-probability of each edge's word.
        scores: weighted sum of each edge's features.
        scored_log_probs: the same of scored edges, by arc and then by token.
        scored: likewise, their weighted sums.
        states_after: the model's state after each scored edge.
        first: first token of each node [N].
        sizes: number of tokens of each node [N].
        begins: first scored edge of each arc [A].
        estimates: best estimate of complete paths through edges to each level, by lattice [levels · L].
    """

    counts: Int64s
    nodes: Int64s
    forward: Float64s
    states: Int64s
    offsets: Int64s
    parents: Int64s
    arcs: Int64s
    log_probs: Float64s
    scores: Float64s
    scored_log_probs: Float64s
    scored: Float64s
    states_after: Int64s
    first: Int64s
    sizes: Int64s
    begins: Int64s
    estimates: Float64s


_PASSING = columns_type(Passing)


def _begin(num_nodes: int, num_arcs: int, num_estimates: int) -> Passing:
    """Return the state of a search at its beginning."""

    def ints(size: int = _FIRST_EDGES) -> Int64s:
        return np.zeros(size, np.int64)

    def floats() -> Float64s:
        return np.zeros(_FIRST_EDGES)

    return Passing(
        counts=ints(6),
        nodes=ints(),
        forward=floats(),
        states=ints(),
        offsets=ints(),
        parents=ints(),
        arcs=ints(),
        log_probs=floats(),
        scores=floats(),
        scored_log_probs=floats(),
        scored=floats(),
        states_after=ints(),
        first=ints(num_nodes),
        sizes=ints(num_nodes),
        begins=ints(num_arcs),
        estimates=np.full(num_estimates, -np.inf),
    )


def pass_ngram_tokens(
    model: NGramModel, joined: LatticeGraph, spelling: LabelTokens, search: LatticeSearch
) -> Work[Any, TokenGraph]:
    """Search with an n-gram model, without phrases, through lattices; see `TokenPassing`."""
    incoming, nodes = np.argsort(joined.targets, kind="stable"), np.arange(len(joined.levels) + 1)
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
        np.argsort(joined.levels, kind="stable"),
        np.searchsorted(joined.sources, nodes),
        incoming,
        np.searchsorted(joined.targets[incoming], nodes),
    )
    is_quantised = model.automaton.quantised
    if is_quantised not in _VERSIONS:
        _VERSIONS[is_quantised] = version_for(pass_tokens, type_of(model.automaton))
    found = _begin(len(joined.levels), len(joined.sources), int(joined.levels.max() + 1) * len(joined.starts))
    settings = (
        np.ascontiguousarray(spelling.tokens, np.int64),
        np.ascontiguousarray(spelling.lengths, np.int64),
        model.automaton.initial,
        search.max_tokens_per_node,
        np.inf if search.beam is None else search.beam,
        EDGES_PER_CALL,
    )
    while found.counts[_LEVEL] < len(joined.levels):
        if found.counts[_LEVEL]:
            yield None
        found = _VERSIONS[is_quantised](model.automaton, graph, found, *settings)
    tokens, edges = slice(found.counts[_TOKENS]), slice(found.counts[_EDGES])
    return TokenGraph(
        found.nodes[tokens],
        found.forward[tokens],
        found.offsets[: found.counts[_TOKENS] + 1],
        TokenEdges(
            found.parents[edges],
            found.arcs[edges],
            found.log_probs[edges],
            found.scores[edges],
            np.zeros((found.counts[_EDGES], 1)),
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
def _read_label(automaton: Any, state: Any, tokens: Any, length: Any, initial: Any) -> Any:
    """Return the log-probability of a label's tokens after a state, and the state after them.

    After the end of a sentence, it is the initial one.
    """
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
        if word == EOS:
            state = U(initial)
    return log_prob, state


@automaton_kernel(
    _PASSING,
    columns_type(SearchGraph),
    _PASSING,
    types.int64[:, ::1],
    _INTS,
    types.int64,
    types.int64,
    types.float64,
    types.int64,
)
def pass_tokens(  # noqa: C901, PLR0912, PLR0915 - one loop, over levels, nodes, edges
    automaton: Any,
    graph: Any,
    found: Any,
    label_tokens: Any,
    label_lengths: Any,
    initial: Any,
    max_tokens: Any,
    beam: Any,
    most: Any,
) -> Any:
    """Go on with a search through lattices by level, from a token on each start, for some milliseconds.

    Args:
        automaton: the model.
        graph: the lattices.
        found: state of the search; changed.
        label_tokens: ids of each label [W, T].
        label_lengths: number of these of each label [W].
        initial: state before a sentence.
        max_tokens: maximum tokens per node.
        beam: as in `LatticeSearch`; infinite for none.
        most: edges, scored and recombined, after which the call ends.
    """
    num_nodes, num_lattices = len(graph.levels), len(graph.starts)
    by_level, incoming, arcs_from, arcs_to = graph.by_level, graph.incoming, graph.arcs_from, graph.arcs_to
    estimates = found.estimates.reshape((-1, num_lattices))
    counts, first, sizes, begins = found.counts, found.first, found.sizes, found.begins
    nodes, forward, states, offsets = found.nodes, found.forward, found.states, found.offsets
    parents, arcs, log_probs, scores = found.parents, found.arcs, found.log_probs, found.scores
    scored_log_probs, scored, states_after = found.scored_log_probs, found.scored, found.states_after
    begin, place, is_scoring = counts[_LEVEL], counts[_PLACE], counts[_IS_SCORING]
    num_tokens, num_edges, num_scored = counts[_TOKENS], counts[_EDGES], counts[_SCORED]
    thresholds = np.full(num_lattices, -np.inf)
    # edges to one node: their totals and places; its tokens by state in a hash table
    totals, places = np.empty(_FIRST_EDGES), np.empty(_FIRST_EDGES, np.int64)
    sources, ways = np.empty(_FIRST_EDGES, np.int64), np.empty(_FIRST_EDGES, np.int64)
    chosen, slots = np.empty(_FIRST_EDGES, np.int64), np.empty(_FIRST_EDGES, np.int64)
    work = 0
    while begin < num_nodes and work < most:
        level, end = graph.levels[by_level[begin]], begin
        while end < num_nodes and graph.levels[by_level[end]] == level:
            end += 1
        if beam < np.inf and not is_scoring:
            for lattice in range(num_lattices):
                thresholds[lattice] = estimates[level:, lattice].max() - beam
        while place < end and not is_scoring and work < most:
            node = by_level[place]
            place += 1
            first[node] = num_tokens
            if graph.starts[graph.lattice_of[node]] == node:
                nodes, forward = _grown(nodes, num_tokens + 1), _grown(forward, num_tokens + 1)
                states, offsets = _grown(states, num_tokens + 1), _grown(offsets, num_tokens + 2)
                nodes[num_tokens], forward[num_tokens], states[num_tokens] = node, 0.0, initial
                num_tokens += 1
                offsets[num_tokens] = num_edges
                sizes[node] = 1
                continue
            size = 0
            for arc in incoming[arcs_to[node] : arcs_to[node + 1]]:
                size += sizes[graph.sources[arc]]
            totals, places = _grown(totals, size), _grown(places, size)
            sources, ways, chosen = _grown(sources, size), _grown(ways, size), _grown(chosen, size)
            threshold = thresholds[graph.lattice_of[node]]
            size = 0
            for arc in incoming[arcs_to[node] : arcs_to[node + 1]]:
                source = graph.sources[arc]
                for number in range(sizes[source]):
                    token, edge = first[source] + number, begins[arc] + number
                    total = forward[token] + scored[edge]
                    if beam == np.inf or total + graph.remainders[node] >= threshold:
                        totals[size], places[size], sources[size], ways[size] = total, edge, token, arc
                        size += 1
            if not size:
                continue
            work += size
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
                slot = (state * _FACTOR >> 7) & mask
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
            sizes[node] = own
        if place == end and not is_scoring:
            place, is_scoring = begin, 1
        while place < end and is_scoring and work < most:
            node = by_level[place]
            place += 1
            lattice = graph.lattice_of[node]
            weight = graph.lm_weights[lattice]
            for arc in range(arcs_from[node], arcs_from[node + 1]):
                begins[arc] = num_scored
                needed = num_scored + sizes[node]
                scored_log_probs, scored = _grown(scored_log_probs, needed), _grown(scored, needed)
                states_after = _grown(states_after, needed)
                label, target = graph.labels[arc], graph.targets[arc]
                for token in range(first[node], first[node] + sizes[node]):
                    log_prob, state = _read_label(
                        automaton, U(states[token]), label_tokens[label], label_lengths[label], initial
                    )
                    score = graph.fixed[arc]
                    if weight != 0.0:  # with any other, an impossible word stays so
                        score += weight * log_prob if log_prob > -np.inf else -np.inf
                    scored_log_probs[num_scored], scored[num_scored] = log_prob, score
                    states_after[num_scored] = state
                    num_scored += 1
                    if beam < np.inf:
                        estimate = forward[token] + score + graph.remainders[target]
                        at = graph.levels[target]
                        estimates[at, lattice] = max(estimates[at, lattice], estimate)
                work += sizes[node]
        if place == end and is_scoring:
            begin, is_scoring = end, 0
    counts[_LEVEL], counts[_PLACE], counts[_IS_SCORING] = begin, place, is_scoring
    counts[_TOKENS], counts[_EDGES], counts[_SCORED] = num_tokens, num_edges, num_scored
    return Passing(
        counts,
        nodes,
        forward,
        states,
        offsets,
        parents,
        arcs,
        log_probs,
        scores,
        scored_log_probs,
        scored,
        states_after,
        first,
        sizes,
        begins,
        found.estimates,
    )
