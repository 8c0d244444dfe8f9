"""Scoring texts that begin alike as a tree of tokens: each beginning is read once, and predicts once.

Level by level, the beginnings of one length are the rows of a state. What follows them is scored when enough rows have
gathered, whichever levels they are of, since products of many rows are what costs least.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from service.engine.calls import consume
from service.engine.choices import score_choices
from service.engine.job import Work
from service.engine.rows import concatenate_states

Indices = npt.NDArray[np.int64]

MAX_TREE_ROWS = 256
"""Beginnings whose next tokens are scored together, and which are read together."""

_PREFIX_COST, _LEVEL_COST = 1.75, 12
"""What a beginning, and a level, cost that is read by itself: as much as so many tokens of texts read side by side.

Measured of small int8 mixtures (1.9, 21) and of a float32 LSTM of 2x512 (1.6, 4).
"""


class TreeLevel(NamedTuple):
    """What follows the beginnings of one length.

    Attributes:
        rows: of each choice, the beginning that it follows, never falling [C].
        tokens: of each choice [C].
        choices: of each text, its choice; −1 where it has ended [N].
        continued: choices that something follows, which are the beginnings of the next level.
    """

    rows: Indices
    tokens: TokenIds
    choices: Indices
    continued: Indices


def build_tree(contexts: Indices, tokens: TokenIds, lengths: TokenIds) -> Work[Any, list[TreeLevel]]:
    """The levels of texts, as many as the longest has tokens. A use case.

    Args:
        contexts: which context stands before each text [N].
        tokens: ids [N, T].
        lengths: of the texts [N].
    """
    levels: list[TreeLevel] = []
    nodes = contexts
    for depth in range(int(lengths.max(initial=0))):
        level = _next_tree_level(nodes, tokens[:, depth], lengths - depth)
        levels.append(level)
        after = np.full(len(level.tokens), -1, dtype=np.int64)
        after[level.continued] = np.arange(len(level.continued))
        nodes = after[level.choices]
        yield None
    return levels


def tree_is_cheaper(levels: list[TreeLevel], num_contexts: int, lengths: TokenIds) -> bool:
    """Whether reading beginnings once, level by level, costs less than reading all texts side by side."""
    beginnings = num_contexts + sum(len(level.continued) for level in levels)
    return bool(_PREFIX_COST * beginnings + _LEVEL_COST * len(levels) <= lengths.sum())


def score_tree(
    model: LanguageModel[Any], state: Any, levels: list[TreeLevel], shape: tuple[int, ...]
) -> Work[Any, FloatArray]:
    """Natural-log probabilities [N, T] of texts; 0 past a text's length. A use case.

    Args:
        model: any; it gains most where it is a `ChoiceScorer`.
        state: after each context [K].
        levels: of the texts.
        shape: N and T.
    """
    scores = np.zeros(shape, dtype=np.float32)
    waiting: list[_PendingChoices] = []
    for depth, level in enumerate(levels):
        waiting.append(_PendingChoices(depth, state, level.rows, level.tokens, level.choices))
        while sum(len(some.state) for some in waiting) >= MAX_TREE_ROWS:
            waiting = yield from _score_pending(model, waiting, scores)
        if level.continued.size:
            parents, read = level.rows[level.continued], level.tokens[level.continued]
            state = yield from _advance_rows(model, state, parents, read)
    while waiting:
        waiting = yield from _score_pending(model, waiting, scores)
    return scores


class _PendingChoices(NamedTuple):
    """Choices of one level that are still to be scored.

    Attributes:
        depth: of the level.
        state: the beginnings.
        rows: of each choice.
        tokens: of each choice.
        choices: of each text; negative where it has none of these.
    """

    depth: int
    state: Any
    rows: Indices
    tokens: TokenIds
    choices: Indices

    def split(self, count: int) -> "tuple[_PendingChoices, _PendingChoices | None]":
        """The choices after the first so many beginnings, and the others."""
        if count >= len(self.state):
            return self, None
        cut = int(np.searchsorted(self.rows, count))
        first = self._replace(
            state=self.state.select(np.arange(count)),
            rows=self.rows[:cut],
            tokens=self.tokens[:cut],
            choices=np.where(self.choices < cut, self.choices, -1),
        )
        rest = self._replace(
            state=self.state.select(np.arange(count, len(self.state))),
            rows=self.rows[cut:] - count,
            tokens=self.tokens[cut:],
            choices=self.choices - cut,
        )
        return first, rest


def _next_tree_level(nodes: Indices, tokens: TokenIds, left: TokenIds) -> TreeLevel:
    """The choices after the beginnings that texts have come to [N].

    Args:
        nodes: the beginning of each text; any where none is left.
        tokens: that come next [N].
        left: how many tokens each text has left, the next included.
    """
    alive = np.flatnonzero(left > 0)
    width = int(tokens.max()) + 1
    pairs, places = np.unique(nodes[alive] * width + tokens[alive], return_inverse=True)
    choices = np.full(len(nodes), -1, dtype=np.int64)
    choices[alive] = places
    return TreeLevel(pairs // width, pairs % width, choices, np.unique(choices[left > 1]))


def _advance_rows(model: LanguageModel[Any], state: Any, rows: Indices, tokens: TokenIds) -> Work[Any, Any]:
    """The state after one token each, a bounded number of rows at a time."""
    parts = []
    for first in range(0, len(rows), MAX_TREE_ROWS):
        some = slice(first, first + MAX_TREE_ROWS)
        read = tokens[some, None]
        parts.append(
            (yield from consume(model, state.select(rows[some]), read, np.ones(len(read), np.int64)))
        )
    return parts[0] if len(parts) == 1 else concatenate_states(parts)


def _score_pending(
    model: LanguageModel[Any], waiting: list[_PendingChoices], scores: FloatArray
) -> Work[Any, list[_PendingChoices]]:
    """Score what follows the first beginnings that wait; what waits then."""
    taken: list[_PendingChoices] = []
    room, left = MAX_TREE_ROWS, list(waiting)
    while left and room:
        some, rest = left.pop(0).split(room)
        taken.append(some)
        room -= len(some.state)
        if rest is not None:
            left.insert(0, rest)
    firsts = np.cumsum([0, *(len(some.state) for some in taken)])
    state = taken[0].state if len(taken) == 1 else concatenate_states([some.state for some in taken])
    rows = np.concatenate([some.rows + first for some, first in zip(taken, firsts, strict=False)])
    told = yield from score_choices(model, state, rows, np.concatenate([some.tokens for some in taken]))
    begin = 0
    for some in taken:
        texts = np.flatnonzero(some.choices >= 0)
        scores[texts, some.depth] = told[begin + some.choices[texts]]
        begin += len(some.tokens)
    return left
