"""Scoring texts that begin alike, as the candidates of one list do: what they share is read once.

The texts are a tree of tokens. Level by level, each beginning that occurs is one row, however many
texts go through it. Where little is shared any more, the rest of each text is read as usual.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from service.engine.calls import read, score
from service.engine.job import Work

_MAX_PREFIX_RATIO = 0.75
"""Beginnings for each text of a level from which on the level is not worth being one: a level costs a turn."""

_MIN_SAVED_SHARE = 0.15
"""The share of all tokens that the tree must spare."""

Indices = npt.NDArray[np.int64]


class PrefixLevel(NamedTuple):
    """The beginnings of one length.

    Attributes:
        nodes: of each of N texts, its beginning; −1 where the text is shorter.
        parents: of each of K beginnings, the one a token shorter.
        tokens: of each, its last token [K].
    """

    nodes: Indices
    parents: Indices
    tokens: TokenIds


def shared_prefix_levels(contexts: Indices, tokens: TokenIds, lengths: TokenIds) -> list[PrefixLevel]:
    """The levels that texts share, the first of the contexts; none if walking them is not worth it.

    Args:
        contexts: which context stands before each text [N]; below C, and each is there.
        tokens: ids [N, T].
        lengths: of the texts [N].
    """
    levels = [PrefixLevel(contexts, np.zeros(0, np.int64), np.zeros(0, np.int64))]
    spared = 0
    for depth in range(tokens.shape[1]):
        level = _next_prefix_level(levels[-1].nodes, tokens[:, depth], lengths > depth)
        alive = int(np.count_nonzero(lengths > depth))
        if len(level.tokens) > _MAX_PREFIX_RATIO * alive:
            break
        spared += alive - len(level.tokens)
        levels.append(level)
    return levels if spared > _MIN_SAVED_SHARE * lengths.sum() else []


def score_shared_prefixes(
    model: LanguageModel[Any], state: Any, levels: list[PrefixLevel], tokens: TokenIds, lengths: TokenIds
) -> Work[Any, FloatArray]:
    """Natural-log probabilities [N, T] of texts; 0 past a text's length.

    Args:
        model: any.
        state: after each context [C].
        levels: of the texts; at least two.
        tokens: ids [N, T].
        lengths: of the texts [N].
    """
    scores = np.zeros(tokens.shape, dtype=np.float32)
    for depth, level in enumerate(levels[1:]):
        ones = np.ones(len(level.tokens), dtype=np.int64)
        scored, state = yield from read(model, state.select(level.parents), level.tokens[:, None], ones)
        rows = np.flatnonzero(level.nodes >= 0)
        scores[rows, depth] = scored[level.nodes[rows], 0]
    depth = len(levels) - 1
    rows = np.flatnonzero(lengths > depth)
    if rows.size:
        rest = state.select(levels[-1].nodes[rows])
        scores[rows, depth:] = yield from score(model, rest, tokens[rows, depth:], lengths[rows] - depth)
    return scores


def _next_prefix_level(nodes: Indices, tokens: TokenIds, reached: npt.NDArray[np.bool_]) -> PrefixLevel:
    """The beginnings that are longer by one of the tokens [N], of the texts that are long enough."""
    rows = np.flatnonzero(reached)
    width = int(tokens.max()) + 1
    pairs, places = np.unique(nodes[rows] * width + tokens[rows], return_inverse=True)
    after = np.full(len(nodes), -1, dtype=np.int64)
    after[rows] = places
    return PrefixLevel(after, pairs // width, pairs % width)
