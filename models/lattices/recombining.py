"""Which tokens of one node have the same future, so that only the best of them need go on."""

from typing import Any, NamedTuple

import numpy as np

from models.lattices.lattice import Indices, Scores
from models.mixture import MixtureState
from models.ngram.model import NGramState

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
    places = np.arange(len(ranked)) - np.searchsorted(node_of, node_of)
    kept = ranked[places < max_tokens_per_node]
    token_of = np.full(len(best), -1, dtype=np.int64)
    token_of[kept] = np.arange(len(kept))
    tokens = token_of[groups]
    by_token = np.argsort(tokens, kind="stable")
    by_token = by_token[np.searchsorted(tokens[by_token], 0) :]
    offsets = np.searchsorted(tokens[by_token], np.arange(len(kept) + 1))
    return RecombinedEdges(order[by_token], offsets, best[kept])


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
