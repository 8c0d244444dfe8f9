"""Sequences of tokens that are not looked into yet, the most probable first."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace, nlargest
from itertools import count, islice
from operator import neg
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.completion.words import WordState

Masses: TypeAlias = npt.NDArray[np.float64]
"""How probable things are, not as logarithms [n]."""

_MIN_PRUNED_CHILDREN = 1 << 14
"""Kept in any case: each takes a hundred bytes."""


@dataclass(frozen=True, slots=True)
class Node:
    """A sequence of tokens whose next token's distribution is known.

    Attributes:
        states: what the model remembers of it is a row of this.
        row: which.
        mass: how probable it is.
        text: what it spells, from where the current word begins.
        num_matched: bytes spelled of those that must be.
        word_state: where it stands, as far as words go.
        num_words: that have ended.
    """

    states: Any
    row: int
    mass: float
    text: bytes = b""
    num_matched: int = 0
    word_state: WordState = field(default_factory=WordState)
    num_words: int = 0


class Child(NamedTuple):
    """A sequence with one more token, not looked into.

    Attributes:
        parent: what is before it.
        token: its last.
        mass: how probable it is.
        num_words: that have ended in it.
    """

    parent: Node
    token: int
    mass: float
    num_words: int


class _Siblings:
    """Children of one node, the most probable first."""

    __slots__ = ("_masses", "_next", "_parent", "_sums", "_tokens", "num_words")

    def __init__(self, parent: Node, num_words: int, tokens: TokenIds, masses: Masses) -> None:
        self._parent, self.num_words = parent, num_words
        self._tokens: list[int] = tokens.tolist()
        self._masses: list[float] = masses.tolist()
        self._sums: list[float] = [*masses[::-1].cumsum()[::-1].tolist(), 0.0]
        self._next = 0

    def __len__(self) -> int:
        return len(self._masses) - self._next

    @property
    def best(self) -> float:
        """The mass of the first; 0 if none is left."""
        return self._masses[self._next] if self._next < len(self._masses) else 0.0

    @property
    def mass(self) -> float:
        """That of all that are left."""
        return self._sums[self._next]

    def pop(self) -> Child:
        """Take the first away."""
        at, self._next = self._next, self._next + 1
        return Child(self._parent, self._tokens[at], self._masses[at], self.num_words)

    def cut(self, least: float) -> float:
        """Drop those of less than this mass; how much all they had."""
        past = bisect_right(self._masses, -least, lo=self._next, key=neg)
        dropped = self._sums[past]
        del self._tokens[past:], self._masses[past:]
        self._sums = [mass - dropped for mass in self._sums[: past + 1]]
        return dropped

    @property
    def masses(self) -> list[float]:
        """Of those not taken."""
        return self._masses[self._next :]

    def left(self) -> Iterator[Child]:
        """Those not taken."""
        for token, mass in islice(zip(self._tokens, self._masses, strict=True), self._next, None):
            yield Child(self._parent, token, mass, self.num_words)


class Frontier:
    """All children, by falling mass; of equal ones those that came first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Siblings]] = []
        self._numbers = count()
        self._num_children = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def best(self) -> float:
        """The greatest mass; 0 if there is no child."""
        return -self._heap[0][0] if self._heap else 0.0

    @property
    def mass(self) -> float:
        """That of all children in which no word has ended."""
        return sum(siblings.mass for _, _, siblings in self._heap if not siblings.num_words)

    def add(self, parent: Node, num_words: int, tokens: TokenIds, masses: Masses) -> None:
        """Put in children of a node.

        Args:
            parent: the node.
            num_words: that have ended in each.
            tokens: their last [n].
            masses: each above 0 [n].
        """
        if not len(tokens):
            return
        order = np.argsort(-masses, kind="stable")
        siblings = _Siblings(parent, num_words, tokens[order], masses[order])
        heappush(self._heap, (-siblings.best, next(self._numbers), siblings))
        self._num_children += len(siblings)

    def prune(self, most: int) -> float:
        """Where there are very many children, drop all but the most probable, which bounds memory.

        Args:
            most: that can still be looked into.

        Returns:
            The mass of those dropped in which no word has ended.
        """
        if self._num_children <= max(_MIN_PRUNED_CHILDREN, 2 * most):
            return 0.0
        every = np.concatenate([siblings.masses for _, _, siblings in self._heap])
        least = float(np.partition(every, len(every) - most)[len(every) - most])
        dropped = 0.0
        for _, _, siblings in self._heap:
            mass = siblings.cut(least)
            dropped += 0.0 if siblings.num_words else mass
        self._heap = [entry for entry in self._heap if len(entry[2])]
        heapify(self._heap)
        self._num_children = sum(len(siblings) for _, _, siblings in self._heap)
        return dropped

    def pop(self) -> Child:
        """Take the most probable child out; there is one."""
        _, number, siblings = self._heap[0]
        child = siblings.pop()
        self._num_children -= 1
        if siblings.best:
            heapreplace(self._heap, (-siblings.best, number, siblings))
        else:
            heappop(self._heap)
        return child

    def first(self, limit: int) -> list[Child]:
        """The most probable children in which no word has ended; they stay in."""
        words = (siblings for _, _, siblings in self._heap if not siblings.num_words)
        every = (child for siblings in words for child in islice(siblings.left(), limit))
        return nlargest(limit, every, key=lambda child: child.mass)
