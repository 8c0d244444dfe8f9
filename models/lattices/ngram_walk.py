"""Token passing with an n-gram model, compiled: what `token_passing` does, an arc and a token at a time.

States of such a model are numbers, and words are looked up in it one by one. So nothing is gained by scoring many
tokens at once, and much by doing without arrays for every step. Tokens and ways are those of the other walk, number
by number.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import TokenIds
from models.lattices.joined import Joined
from models.lattices.lattice import Indices, Scores
from models.lattices.spelling import Spelling
from models.lattices.token_passing import Search
from models.lattices.tokens import TokenGraph, Ways
from models.ngram.access import (
    AUTOMATON_TYPES,
    U,
    arc_of,
    log10_backoff_of,
    log10_prob_of,
    minimal,
    step,
)
from models.ngram.automaton import Automaton
from models.ngram.model import NGramModel
from models.scoring import LOG_ZERO

_LN_10 = math.log(10)
_ROOM = 1024
_NONE = -1
_VALUED = {"remainders", "fixed", "lm_weights"}
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""An odd number near 2⁶⁴ / φ: multiples of it are spread over a table, whatever the states."""


class _Graph(NamedTuple):
    """What the walk reads of lattices; see `Joined` and `Spelling`.

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


class _Found(NamedTuple):
    """What was found of tokens and the arcs after them, arc by arc.

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


class _Arriving(NamedTuple):
    """Ways to a node; there may be room for more.

    Attributes:
        parents: the token before [C].
        arcs: [C].
        places: of what was found of both [C].
        states: after the way [C].
        totals: of the way [C].
    """

    parents: Indices
    arcs: Indices
    places: Indices
    states: Indices
    totals: Scores


def pass_ngram_tokens(model: NGramModel, joined: Joined, spelling: Spelling, search: Search) -> TokenGraph:
    """Walk all lattices from their starts to their ends; see `token_passing.pass_tokens`."""
    labels = spelling.alike[joined.labels]
    by_target = np.argsort(joined.targets, kind="stable")
    by_source = np.lexsort((labels, joined.sources))
    places = np.arange(joined.num_nodes + 1)
    graph = _Graph(
        nodes=np.lexsort((joined.levels, joined.lattice_of)),
        in_starts=np.searchsorted(joined.targets[by_target], places),
        in_arcs=by_target,
        out_starts=np.searchsorted(joined.sources[by_source], places),
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
    walked: Any = _walk(model.automaton, graph, model.automaton.initial, search.max_tokens_per_node, beam)
    nodes, totals, num_ways, *ways = walked
    return TokenGraph(nodes, totals, np.concatenate([[0], np.cumsum(num_ways)]), Ways(*ways))


@numba.njit(nogil=True)
def _read(automaton: Automaton, state: int, tokens: TokenIds) -> tuple[float, Any]:
    """Log-probability of a word's tokens after a state, and the state after them."""
    missing, num_states = U(len(automaton.words)), U(len(automaton.suffixes))
    total, at = 0.0, U(state)
    for token in tokens:
        word, backoff = U(token), 0.0
        arc = arc_of(automaton, at, word)
        while arc == missing:
            backoff += log10_backoff_of(automaton, at)
            at = U(automaton.suffixes[at])
            arc = arc_of(automaton, at, word)
        total += float(np.float32((log10_prob_of(automaton, arc) + backoff) * _LN_10))
        if arc + U(1) < num_states:
            at = minimal(automaton, arc + U(1))
        elif at != U(0):  # the longest n-grams are no states; their suffixes are
            at = minimal(automaton, step(automaton, U(automaton.suffixes[at]), word))
    return (total if total > -np.inf else LOG_ZERO), np.int64(at)


@numba.njit(nogil=True)
def _with_room(numbers: Any, size: int) -> Any:
    """An array with so many places: the same, or a longer one that begins alike."""
    if size <= len(numbers):
        return numbers
    longer = np.empty(2 * size, numbers.dtype)
    for place in range(len(numbers)):
        longer[place] = numbers[place]
    return longer


@numba.njit(nogil=True)
def _gathered(
    graph: _Graph,
    node: int,
    first: Indices,
    count: Indices,
    totals: Scores,
    found: _Found,
    threshold: float,
    room: _Arriving,
) -> tuple[_Arriving, int]:
    """The ways to a node that are worth as much as the threshold, in given room or more; and how many they are."""
    arcs = graph.in_arcs[graph.in_starts[node] : graph.in_starts[node + 1]]
    most = 0
    for arc in arcs:
        most += count[graph.sources[arc]]
    ways = _Arriving(
        _with_room(room.parents, most),
        _with_room(room.arcs, most),
        _with_room(room.places, most),
        _with_room(room.states, most),
        _with_room(room.totals, most),
    )
    size, ended = 0, graph.out_starts[node] == graph.out_starts[node + 1]
    for arc in arcs:
        source = graph.sources[arc]
        for number in range(count[source]):
            parent, place = first[source] + number, found.starts[arc] + number
            total = totals[parent] + found.scores[place]
            if total + graph.remainders[node] >= threshold:
                ways.parents[size], ways.arcs[size], ways.places[size] = parent, arc, place
                ways.states[size] = 0 if ended else found.states[place]  # behind the end all are alike
                ways.totals[size] = total
                size += 1
    return ways, size


@numba.njit(nogil=True)
def _grouped(ways: _Arriving, size: int, groups: Indices, best: Indices) -> int:
    """Group ways after which the state is the same.

    Args:
        ways: the first `size` of them.
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
    keys, known = np.full(capacity, _NONE), np.empty(capacity, np.int64)
    num_groups = 0
    for way in range(size):
        state = ways.states[way]
        place = ((np.uint64(state) * _SPREAD) >> np.uint64(32)) & mask
        while keys[place] != _NONE and keys[place] != state:
            place = (place + np.uint64(1)) & mask
        if keys[place] == _NONE:
            keys[place], known[place] = state, num_groups
            best[num_groups] = way
            num_groups += 1
        group = known[place]
        groups[way] = group
        if ways.totals[way] > ways.totals[best[group]]:
            best[group] = way
    return num_groups


@numba.njit(nogil=True)
def _ranked(best: Indices, totals: Scores, size: int) -> Indices:
    """Groups by falling total of their best ways, equal ones as these stand [size]; Shell's sort."""
    order = np.empty(size, np.int64)
    gap = 1
    while gap < size // 3:
        gap = 3 * gap + 1
    for group in range(size):
        order[group] = group
    while gap > 0:
        for place in range(gap, size):
            group, before = order[place], place - gap
            way = best[group]
            while before >= 0:
                other = best[order[before]]
                if totals[other] > totals[way] or (totals[other] == totals[way] and other < way):
                    break
                order[before + gap] = order[before]
                before -= gap
            order[before + gap] = group
        gap //= 3
    return order


@numba.njit(nogil=True)
def _merged(ways: _Arriving, size: int, most: int) -> tuple[Indices, Indices, Indices]:
    """Tokens of ways: those after which the state is the same are one.

    Args:
        ways: the first `size` of them.
        size: how many there are.
        most: tokens, at most; the best are kept.

    Returns:
        The best way of each token, the best token first [T]; where each token's ways begin [T + 1]; ways by token.
    """
    groups, best = np.empty(size, np.int64), np.empty(size, np.int64)
    num_groups = _grouped(ways, size, groups, best)
    order = _ranked(best, ways.totals, num_groups)
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
    kept, places = np.empty(begins[num_tokens], np.int64), begins.copy()
    for way in range(size):
        token = token_of[groups[way]]
        if token != _NONE:
            kept[places[token]] = way
            places[token] += 1
    return tops, begins, kept


@numba.njit(nogil=True)
def _scored(
    automaton: Automaton,
    graph: _Graph,
    node: int,
    states: Indices,
    totals: Scores,
    found: _Found,
    size: int,
    estimates: Scores,
) -> tuple[_Found, int]:
    """What is found of tokens of a node and the arcs after them, beside what was found before.

    Args:
        automaton: the model.
        graph: the lattices.
        node: where the tokens are.
        states: of the tokens [K].
        totals: of the tokens [K].
        found: before.
        size: how much of that there is.
        estimates: the best way to each level, completed; updated.

    Returns:
        All of it, and how much there is.
    """
    before = _NONE
    for arc in graph.out_arcs[graph.out_starts[node] : graph.out_starts[node + 1]]:
        begin = size
        size += len(states)
        found = _Found(
            found.starts,
            _with_room(found.states, size),
            _with_room(found.log_probs, size),
            _with_room(found.scores, size),
        )
        found.starts[arc] = begin
        label, target = graph.labels[arc], graph.targets[arc]
        is_known = before != _NONE and graph.labels[before] == label  # arcs of one word stand together
        tokens = graph.tokens[label, : graph.lengths[label]]
        for number in range(len(states)):
            place = begin + number
            if is_known:
                known = found.starts[before] + number
                found.log_probs[place], found.states[place] = found.log_probs[known], found.states[known]
            else:
                found.log_probs[place], found.states[place] = _read(automaton, states[number], tokens)
            score = graph.fixed[arc] + graph.lm_weights[arc] * found.log_probs[place]
            found.scores[place] = score
            estimate = totals[number] + score + graph.remainders[target]
            estimates[graph.levels[target]] = max(estimates[graph.levels[target]], estimate)
        before = arc
    return found, size


_NUMBERS, _VALUES = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")
_GRAPH_TYPE = types.NamedTuple(  # type: ignore[no-untyped-call]  # numba ships no annotations for it
    [
        types.Array(types.int64, 2, "C") if name == "tokens" else _VALUES if name in _VALUED else _NUMBERS
        for name in _Graph._fields
    ],
    _Graph,
)


@numba.njit(
    [
        types.Tuple((_NUMBERS, _VALUES, _NUMBERS, _NUMBERS, _NUMBERS, _VALUES, _VALUES))(  # type: ignore[no-untyped-call]
            automaton, _GRAPH_TYPE, types.int64, types.int64, types.float64
        )
        for automaton in AUTOMATON_TYPES
    ],
    nogil=True,
    cache=True,
)
def _walk(
    automaton: Automaton, graph: _Graph, initial: int, most: int, beam: float
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
    num_nodes = len(graph.nodes)
    first, count = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    nodes, states, num_ways = np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64)
    totals, log_probs, scores = np.empty(_ROOM), np.empty(_ROOM), np.empty(_ROOM)
    parents, arcs = np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64)
    starts = np.zeros(len(graph.sources), np.int64)
    found = _Found(starts, np.empty(_ROOM, np.int64), np.empty(_ROOM), np.empty(_ROOM))
    ways = _Arriving(nodes.copy(), nodes.copy(), nodes.copy(), nodes.copy(), totals.copy())
    estimates = np.empty(graph.levels.max() + 1)
    num_tokens, num_kept, num_found, lattice, level, threshold = 0, 0, 0, _NONE, _NONE, -np.inf
    for node in graph.nodes:
        if graph.lattice_of[node] != lattice:
            lattice, level = graph.lattice_of[node], _NONE
            for other in range(len(estimates)):
                estimates[other] = -np.inf
        if graph.levels[node] != level:
            level, threshold = graph.levels[node], -np.inf
            for other in range(level, len(estimates) if beam < np.inf else level):
                threshold = max(threshold, estimates[other] - beam)
        ways, size = _gathered(graph, node, first, count, totals, found, threshold, ways)
        tops, begins, kept = _merged(ways, size, most)
        is_start = graph.in_starts[node] == graph.in_starts[node + 1]
        begin, num_tokens = num_tokens, num_tokens + (1 if is_start else len(tops))
        nodes, num_ways = _with_room(nodes, num_tokens), _with_room(num_ways, num_tokens)
        states, totals = _with_room(states, num_tokens), _with_room(totals, num_tokens)
        if is_start:
            num_ways[begin], states[begin], totals[begin] = 0, initial, 0.0
        for token in range(len(tops)):
            num_ways[begin + token] = begins[token + 1] - begins[token]
            states[begin + token], totals[begin + token] = ways.states[tops[token]], ways.totals[tops[token]]
        for token in range(begin, num_tokens):
            nodes[token] = node
        first[node], count[node] = begin, num_tokens - begin
        parents, arcs = _with_room(parents, num_kept + len(kept)), _with_room(arcs, num_kept + len(kept))
        log_probs, scores = (
            _with_room(log_probs, num_kept + len(kept)),
            _with_room(scores, num_kept + len(kept)),
        )
        for way in kept:
            parents[num_kept], arcs[num_kept] = ways.parents[way], ways.arcs[way]
            log_probs[num_kept] = found.log_probs[ways.places[way]]
            scores[num_kept] = found.scores[ways.places[way]]
            num_kept += 1
        own = slice(begin, num_tokens)
        found, num_found = _scored(
            automaton, graph, node, states[own], totals[own], found, num_found, estimates
        )
    return (
        nodes[:num_tokens], totals[:num_tokens], num_ways[:num_tokens],
        parents[:num_kept], arcs[:num_kept], log_probs[:num_kept], scores[:num_kept],
    )  # fmt: skip
