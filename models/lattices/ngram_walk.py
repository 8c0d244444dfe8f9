"""Token passing with an n-gram model, compiled: what `token_passing` does, an arc and a token at a time.

States of such a model are numbers, and words are looked up in it one by one. So nothing is gained by scoring many
tokens at once, and much by doing without arrays for every step. Tokens and ways are those of the other walk, number
by number.
"""

import math
from typing import NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import TokenIds
from models.lattices.arriving import NONE, Arriving, merged, with_room
from models.lattices.joined import Joined
from models.lattices.lattice import Indices, Scores
from models.lattices.ngram_words import read_word
from models.lattices.spelling import Spelling
from models.lattices.token_passing import Search
from models.lattices.tokens import TokenGraph, Ways
from models.ngram.access import AUTOMATON_TYPES
from models.ngram.automaton import Automaton
from models.ngram.model import NGramModel

_ROOM = 1024
_VALUED = {"remainders", "fixed", "lm_weights"}


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


def pass_ngram_tokens(model: NGramModel, joined: Joined, spelling: Spelling, search: Search) -> TokenGraph:
    """Walk all lattices from their starts to their ends; see `token_passing.pass_tokens`."""
    labels = spelling.canonical[joined.labels]
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
    nodes, totals, num_ways, parents, arcs, log_probs, scores = _walk(
        model.automaton, graph, model.automaton.initial, search.max_tokens_per_node, beam
    )
    offsets = np.concatenate([[0], np.cumsum(num_ways)])
    return TokenGraph(nodes, totals, offsets, Ways(parents, arcs, log_probs, scores))


@numba.njit(nogil=True)
def _gathered(
    graph: _Graph,
    node: int,
    first: Indices,
    count: Indices,
    totals: Scores,
    found: _Found,
    threshold: float,
    room: Arriving,
) -> tuple[Arriving, int]:
    """The ways to a node that are worth as much as the threshold, in given room or more; and how many they are."""
    incoming, sources = graph.in_arcs[graph.in_starts[node] : graph.in_starts[node + 1]], graph.sources
    starts, found_states, scores = found.starts, found.states, found.scores
    most = 0
    for arc in incoming:
        most += count[sources[arc]]
    parents, arcs, places = (
        with_room(room.parents, most),
        with_room(room.arcs, most),
        with_room(room.score_indices, most),
    )
    states, sums = with_room(room.states, most), with_room(room.totals, most)
    remainder, ended = graph.remainders[node], graph.out_starts[node] == graph.out_starts[node + 1]
    size = 0
    for arc in incoming:
        source = sources[arc]
        for number in range(count[source]):
            parent, place = first[source] + number, starts[arc] + number
            total = totals[parent] + scores[place]
            if total + remainder >= threshold:
                parents[size], arcs[size], places[size] = parent, arc, place
                states[size] = 0 if ended else found_states[place]  # behind the end all are alike
                sums[size] = total
                size += 1
    return Arriving(parents, arcs, places, states, sums), size


@numba.njit(nogil=True)
def _add_tokens(
    node: int,
    ways: Arriving,
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
def _add_ways(
    ways: Arriving,
    kept: Indices,
    found: _Found,
    parents: Indices,
    arcs: Indices,
    log_probs: Scores,
    scores: Scores,
) -> None:
    """Write those ways that are kept."""
    way_parents, way_arcs, places = ways.parents, ways.arcs, ways.score_indices
    found_log_probs, found_scores = found.log_probs, found.scores
    for number in range(len(kept)):
        way = kept[number]
        parents[number], arcs[number] = way_parents[way], way_arcs[way]
        log_probs[number], scores[number] = found_log_probs[places[way]], found_scores[places[way]]


@numba.njit(nogil=True)
def _scored(
    automaton: Automaton,
    graph: _Graph,
    node: int,
    own_states: Indices,
    own_totals: Scores,
    found: _Found,
    size: int,
    estimates: Scores,
) -> tuple[_Found, int]:
    """What is found of the tokens of a node and the arcs after them, beside what was found before.

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
        with_room(found.states, most),
        with_room(found.log_probs, most),
        with_room(found.scores, most),
    )
    known, known_label = 0, NONE
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
            read_word(automaton, own_states, tokens[label, : lengths[label]], states[here], log_probs[here])
        best = -np.inf
        for number in range(num_own):
            score = fixed[arc] + lm_weights[arc] * log_probs[size + number]
            scores[size + number] = score
            best = max(best, own_totals[number] + score)
        estimates[levels[target]] = max(estimates[levels[target]], best + remainders[target])
        size += num_own
    return _Found(starts, states, log_probs, scores), size


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
    order, lattice_of, levels, in_starts = graph.nodes, graph.lattice_of, graph.levels, graph.in_starts
    first, count = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    nodes, states, num_ways = np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64)
    totals, log_probs, scores = np.empty(_ROOM), np.empty(_ROOM), np.empty(_ROOM)
    parents, arcs = np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64)
    found = _Found(np.zeros(len(graph.sources), np.int64), nodes.copy(), totals.copy(), totals.copy())
    ways = Arriving(nodes.copy(), nodes.copy(), nodes.copy(), nodes.copy(), totals.copy())
    estimates = np.empty(levels.max() + 1)
    num_tokens, num_kept, num_found, lattice, level, threshold = 0, 0, 0, NONE, NONE, -np.inf
    for node in order:
        if lattice_of[node] != lattice:
            lattice, level = lattice_of[node], NONE
            for other in range(len(estimates)):
                estimates[other] = -np.inf
        if levels[node] != level:
            level, threshold = levels[node], -np.inf
            for other in range(level, len(estimates) if beam < np.inf else level):
                threshold = max(threshold, estimates[other] - beam)
        begin = num_tokens
        if in_starts[node] == in_starts[node + 1]:
            num_tokens += 1
            nodes, num_ways = with_room(nodes, num_tokens), with_room(num_ways, num_tokens)
            states, totals = with_room(states, num_tokens), with_room(totals, num_tokens)
            nodes[begin], num_ways[begin], states[begin], totals[begin] = node, 0, initial, 0.0
        else:
            ways, size = _gathered(graph, node, first, count, totals, found, threshold, ways)
            tops, begins, kept = merged(ways, size, most)
            num_tokens += len(tops)
            nodes, num_ways = with_room(nodes, num_tokens), with_room(num_ways, num_tokens)
            states, totals = with_room(states, num_tokens), with_room(totals, num_tokens)
            _add_tokens(
                node, ways, tops, begins, nodes[begin:], num_ways[begin:], states[begin:], totals[begin:]
            )
            begin_ways, num_kept = num_kept, num_kept + len(kept)
            parents, arcs = with_room(parents, num_kept), with_room(arcs, num_kept)
            log_probs, scores = with_room(log_probs, num_kept), with_room(scores, num_kept)
            rest = slice(begin_ways, num_kept)
            _add_ways(ways, kept, found, parents[rest], arcs[rest], log_probs[rest], scores[rest])
        first[node], count[node] = begin, num_tokens - begin
        own = slice(begin, num_tokens)
        found, num_found = _scored(
            automaton, graph, node, states[own], totals[own], found, num_found, estimates
        )
    return (
        nodes[:num_tokens], totals[:num_tokens], num_ways[:num_tokens],
        parents[:num_kept], arcs[:num_kept], log_probs[:num_kept], scores[:num_kept],
    )  # fmt: skip
