"""N-grams of a back-off model as one trie, and the rows p(·|h) over it, order by order.

Estimators and files give n-grams order by order; changing a finished model (pruning it, mixing
several) needs its probabilities after a *shorter* context, perhaps more than one order down: where an
n-gram's suffix is not listed, the next shorter one counts.

A row lists some words; the others share what the shorter context's row gives them, times the
back-off weight. So the mass that a row leaves to unlisted words is its back-off weight times what the
shorter context's row gives to those same words. Both follow from the listed words, and no row need
sum to 1 for that.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.ngram.build import NGrams, NGramWeights

DoubleArray: TypeAlias = npt.NDArray[np.float64]
NodeArray: TypeAlias = npt.NDArray[np.uint32]


class Trie(NamedTuple):
    """Nodes by length, then in lexicographic order: 0 is the empty context, then unigrams, bigrams, ….

    Attributes:
        starts: the first node of each length from 0, and the number of nodes at the end [order + 2], int64.
        words: the last word of each node [nodes], int32.
        first_children: where the nodes start that continue a node by one word, for nodes below
            the highest order, and the number of nodes at the end [starts[order] + 1], uint32.
        suffixes: the node of the longest proper suffix that is listed [nodes], uint32.
    """

    starts: npt.NDArray[np.int64]
    words: npt.NDArray[np.int32]
    first_children: NodeArray
    suffixes: NodeArray

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return len(self.starts) - 2

    def nodes(self, length: int) -> slice:
        """The nodes of so many words."""
        return slice(int(self.starts[length]), int(self.starts[length + 1]))


def link(ngrams: Sequence[NGrams]) -> Trie:
    """Join n-grams to a trie, and find the suffixes that are not given.

    Args:
        ngrams: of the orders 1, 2, …; a suffix of −1 is looked for, and then for shorter ones.
    """
    sizes = [1, *(len(one_order.words) for one_order in ngrams)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    fan_outs = [
        np.bincount(one_order.prefixes, minlength=size)
        for one_order, size in zip(ngrams, sizes[:-1], strict=True)
    ]
    first_children = np.empty(starts[-2] + 1, dtype=np.uint32)
    first_children[0] = 1
    first_children[1:] = 1 + np.cumsum(np.concatenate(fan_outs))
    words = np.concatenate([np.zeros(1, np.int32), *(one_order.words for one_order in ngrams)])
    trie = Trie(starts, words, first_children, np.zeros(starts[-1], dtype=np.uint32))
    for length, one_order in enumerate(ngrams[1:], start=2):
        _link_order(trie, length, one_order.suffixes)
    return trie


def suffixes_by_order(trie: Trie) -> list[npt.NDArray[np.int32]]:
    """Each n-gram's suffix as its place in the order below, −1 where it is not listed; by order from 1."""
    unigrams = np.zeros(int(trie.starts[2] - 1), dtype=np.int32)
    places = [
        trie.suffixes[trie.nodes(length)].astype(np.int64) - trie.starts[length - 1]
        for length in range(2, trie.order + 1)
    ]
    return [unigrams, *(np.maximum(one_order, -1).astype(np.int32) for one_order in places)]


def lower_probs(trie: Trie, length: int, probs: DoubleArray, backoffs: DoubleArray) -> DoubleArray:
    """What a model says of each n-gram's last word after its context without the first word.

    Args:
        trie: the n-grams.
        length: of the n-grams asked about, at least 2; there are n.
        probs: the probability of each shorter node's last word, by node.
        backoffs: the back-off weight of each shorter node, by node.

    Returns:
        Probabilities [n].
    """
    suffixes = trie.suffixes[trie.nodes(length)]
    if suffixes.size and suffixes.min() < trie.starts[length - 1]:
        return _lower_probs(trie, length, probs, backoffs)
    return probs[suffixes]


@numba.njit(nogil=True, cache=True)
def _child(trie: Trie, node: np.int64, word: np.int64) -> np.int64:
    """The node that continues a node by a word, else −1; unigrams are dense."""
    if node == 0:
        return 1 + word
    begin, end = np.int64(trie.first_children[node]), np.int64(trie.first_children[node + 1])
    stop = end
    while begin < end:
        middle = (begin + end) >> 1
        if trie.words[middle] < word:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < stop and trie.words[begin] == word else np.int64(-1)


@numba.njit(nogil=True, cache=True)
def _link_order(trie: Trie, length: int, given: npt.NDArray[np.int32]) -> None:
    """Fill in the suffixes of one length; those of shorter nodes are there."""
    first, shorter = trie.starts[length], trie.starts[length - 1]
    for parent in range(shorter, first):
        for node in range(np.int64(trie.first_children[parent]), np.int64(trie.first_children[parent + 1])):
            if given[node - first] >= 0:
                trie.suffixes[node] = shorter + given[node - first]
                continue
            context = np.int64(trie.suffixes[parent])
            found = _child(trie, context, np.int64(trie.words[node]))
            while found < 0:
                context = np.int64(trie.suffixes[context])
                found = _child(trie, context, np.int64(trie.words[node]))
            trie.suffixes[node] = found


@numba.njit(nogil=True, cache=True)
def _lower_probs(trie: Trie, length: int, probs: DoubleArray, backoffs: DoubleArray) -> DoubleArray:
    """Walk from the shortened context to the one whose word is the n-gram's listed suffix."""
    first = trie.starts[length]
    out = np.empty(trie.starts[length + 1] - first, np.float64)
    for parent in range(trie.starts[length - 1], first):
        for node in range(np.int64(trie.first_children[parent]), np.int64(trie.first_children[parent + 1])):
            suffix = np.int64(trie.suffixes[node])
            found = length - 1  # the length of the suffix
            while suffix < trie.starts[found]:
                found -= 1
            context, weight = np.int64(trie.suffixes[parent]), 1.0
            while context >= trie.starts[found]:  # longer than the suffix's own context
                weight *= backoffs[context]
                context = np.int64(trie.suffixes[context])
            out[node - first] = weight * probs[suffix]
    return out


Orders: TypeAlias = Sequence[tuple[NGrams, NGramWeights]]
"""A back-off model as its n-grams and weights of the orders 1, 2, …."""

MIN_LOWER_MASS = 1e-9
"""Less room than this is rounding, as probabilities are stored in single precision."""


class ContextMasses(NamedTuple):
    """What the contexts [m] of one order's n-grams [n] do with the words they do not list.

    Attributes:
        lower: probability of each n-gram's last word after its context without the first word [n].
        lower_unlisted: mass of a context's unlisted words after the context without its first word [m].
        unlisted: mass of those words after the context itself [m].
    """

    lower: DoubleArray
    lower_unlisted: DoubleArray
    unlisted: DoubleArray


class BackoffRows:
    """Probabilities, back-off weights and row sums of a model, by node below the trie's highest order.

    Args:
        trie: the n-grams; those that the model itself does not list have the weight 1.
    """

    def __init__(self, trie: Trie) -> None:
        size = int(trie.starts[-2])
        self.trie = trie
        self.probs = np.ones(size)
        self.backoffs = np.ones(size)
        self.sums = np.ones(size)

    def contexts(self, ngrams: NGrams, length: int) -> ContextMasses:
        """What follows from the shorter n-grams for those of `length` words, at least 2."""
        nodes = self.trie.nodes(length - 1)
        lower = lower_probs(self.trie, length, self.probs, self.backoffs)
        room = self.sums[self.trie.suffixes[nodes]]
        room -= np.bincount(ngrams.prefixes, lower, minlength=len(room))
        np.maximum(room, MIN_LOWER_MASS, out=room)
        return ContextMasses(lower, room, room * self.backoffs[nodes])

    def add_order(
        self, ngrams: NGrams, length: int, probs: DoubleArray, *, left: DoubleArray | float
    ) -> None:
        """Take in the n-grams of `length` words [n].

        Args:
            ngrams: all that the trie has.
            length: their length; shorter ones were entered before.
            probs: of their last words [n].
            left: what their contexts' rows leave to words that are not among them.
        """
        contexts = self.trie.nodes(length - 1)
        listed = np.bincount(ngrams.prefixes, probs, minlength=contexts.stop - contexts.start)
        self.sums[contexts] = listed + left
        self.set_probs(length, probs)

    def set_probs(self, length: int, probs: DoubleArray) -> None:
        """The probabilities of n-grams of `length` words [n]; not kept for the highest order."""
        if length < self.trie.order:
            self.probs[self.trie.nodes(length)] = probs

    def set_backoffs(self, length: int, backoffs: DoubleArray) -> None:
        """The back-off weights of n-grams of `length` words [n]; not kept for the highest order."""
        if length < self.trie.order:
            self.backoffs[self.trie.nodes(length)] = backoffs


def from_log10(log10: npt.NDArray[np.float32]) -> DoubleArray:
    """Probabilities or weights in double precision from their decimal logarithms."""
    values: DoubleArray = np.power(10.0, log10, dtype=np.float64)
    return values
