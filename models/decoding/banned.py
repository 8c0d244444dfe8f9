"""Sequences of tokens that are never completed.

Source: Aho and Corasick 1975. A node stands for the longest end of what was generated that begins a
sequence; what may not come next is known from it.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class BannedSequences:
    """An automaton over generated tokens that tells which would complete a sequence.

    Args:
        sequences: of ids, none of them empty.
    """

    START = 0

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._complete = [False]
        for sequence in sequences:
            self._add(sequence)
        self._failure_links = self._link()
        self._banned: dict[int, npt.NDArray[np.int32]] = {}

    def advance(self, node: int, token: int) -> int:
        """The node after one more token."""
        while token not in self._next[node]:
            if node == self.START:
                return node
            node = self._failure_links[node]
        return self._next[node][token]

    def banned(self, node: int) -> npt.NDArray[np.int32]:
        """The tokens that would complete a sequence; not to be written."""
        if node not in self._banned:
            ids: set[int] = set()
            end = node
            while True:
                ids |= {token for token, child in self._next[end].items() if self._complete[child]}
                if end == self.START:
                    break
                end = self._failure_links[end]
            self._banned[node] = np.fromiter(sorted(ids), np.int32, len(ids))
        return self._banned[node]

    def _add(self, sequence: Sequence[int]) -> None:
        node = self.START
        for token in sequence:
            child = self._next[node].get(token)
            if child is None:
                child = self._next[node][token] = len(self._next)
                self._next.append({})
                self._complete.append(False)
            node = child
        self._complete[node] = True

    def _link(self) -> list[int]:
        """For each node that of its longest proper end; nodes are visited in order of length."""
        shorter = [self.START] * len(self._next)
        level = list(self._next[self.START].values())
        while level:
            below = []
            for node in level:
                for token, child in self._next[node].items():
                    end = shorter[node]
                    while end != self.START and token not in self._next[end]:
                        end = shorter[end]
                    shorter[child] = self._next[end].get(token, self.START)
                    below.append(child)
            level = below
        return shorter
