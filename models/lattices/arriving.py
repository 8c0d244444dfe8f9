"""Ways that arrive at a node of a lattice, compiled: those that leave the model in one state become one token."""

from typing import Any, NamedTuple

import numba
import numpy as np

from models.lattices.lattice import Indices, Scores

_NONE = -1
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number near 2⁶⁴ / φ: multiples of it are spread over a table, whatever the states."""


class IncomingEdges(NamedTuple):
    """Ways to a node; there may be room for more.

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
    """An array with so many places: the same, or a longer one that begins alike."""
    if size <= len(numbers):
        return numbers
    longer = np.empty(2 * size, numbers.dtype)
    for place in range(len(numbers)):
        longer[place] = numbers[place]
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
    kept, places = np.empty(begins[num_tokens], np.int64), begins.copy()
    for way in range(size):
        token = token_of[groups[way]]
        if token != _NONE:
            kept[places[token]] = way
            places[token] += 1
    return tops, begins, kept


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
    keys, known = np.full(capacity, _NONE), np.empty(capacity, np.int64)
    num_groups = 0
    for way in range(size):
        state = states[way]
        place = ((np.uint64(state) * _HASH_MULTIPLIER) >> np.uint64(32)) & mask
        while keys[place] != _NONE and keys[place] != state:
            place = (place + np.uint64(1)) & mask
        if keys[place] == _NONE:
            keys[place], known[place] = state, num_groups
            best[num_groups] = way
            num_groups += 1
        group = known[place]
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
