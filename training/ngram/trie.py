"""N-grams of a back-off model as one trie, and the rows p(·|h) over it, order by order.

Estimators and files provide n-grams order by order. Pruning or mixing finished
models also needs probabilities after a *shorter* context, possibly several
orders down: in place of an unlisted suffix, the next shorter one is used.

A row lists some words; the probability of an unlisted word is the back-off weight times its probability
in the shorter context's row. So the mass of a row's unlisted words is that weight times their mass in
the shorter context's row. Both follow from the listed words, even if a row does not sum to 1.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import Float32s, Float64s, Int32s, Int64s, UInt32s
from models.kernels.compilation import kernel
from models.ngram.build import NGrams, NGramWeights, number_arcs, suffix_states


class Trie(NamedTuple):
    """Nodes by length, then in lexicographic order: 0 is the empty context, then unigrams, bigrams, ….

    Nodes and arcs are the states and arcs of an automaton: arc a leads to node a + 1.

    Attributes:
        starts: first node of each length from 0, then the number of nodes [order + 2], int64.
        first_arcs: first arc of each node below the highest order, then their end [starts[order] + 1], uint32.
        suffixes: node of the longest listed proper suffix [nodes], int32.
    """

    starts: Int64s
    first_arcs: UInt32s
    suffixes: Int32s

    @property
    def order(self) -> int:
        """Length of the longest n-gram."""
        return len(self.starts) - 2

    def nodes(self, length: int) -> slice:
        """Return the range of nodes with `length` words."""
        return slice(int(self.starts[length]), int(self.starts[length + 1]))


def link(ngrams: Sequence[NGrams]) -> Trie:
    """Build a trie of n-grams, and find missing suffixes.

    Args:
        ngrams: n-grams by order from 1; the longest listed suffix replaces a suffix of −1.
    """
    order_starts, first_arcs, words = number_arcs(ngrams)
    suffixes = suffix_states(ngrams, order_starts, first_arcs, words)
    return Trie(np.concatenate([[0], order_starts + 1]), first_arcs, suffixes)


def suffixes_by_order(trie: Trie) -> list[Int32s]:
    """Return each n-gram's suffix as an index into the order below, −1 if unlisted; by order from 1."""
    return [
        np.maximum(trie.suffixes[trie.nodes(length)] - np.int32(trie.starts[length - 1]), np.int32(-1))
        for length in range(1, trie.order + 1)
    ]


@kernel()
def _lower_probs(trie: Trie, length: int, probs: Float64s, backoffs: Float64s) -> Float64s:
    """Back off from the shortened context to the context of each n-gram's longest listed suffix."""
    first = trie.starts[length]
    out = np.empty(trie.starts[length + 1] - first, np.float64)  # [n], by node
    for parent in range(trie.starts[length - 1], first):
        for node in range(np.int64(trie.first_arcs[parent]) + 1, np.int64(trie.first_arcs[parent + 1]) + 1):
            suffix = np.int64(trie.suffixes[node])
            found = length - 1  # length of the suffix
            while suffix < trie.starts[found]:
                found -= 1
            context, weight = np.int64(trie.suffixes[parent]), 1.0
            while context >= trie.starts[found]:  # longer than the suffix's own context
                weight *= backoffs[context]
                context = np.int64(trie.suffixes[context])
            out[node - first] = weight * probs[suffix]
    return out


Orders: TypeAlias = Sequence[tuple[NGrams, NGramWeights]]
"""A back-off model as n-grams and weights, by order from 1."""

MIN_LOWER_MASS = 1e-9
"""Minimum lower-order mass; less is rounding error of stored float32 probabilities."""


class ContextMasses(NamedTuple):
    """Lower-order and unlisted masses at the contexts [m] of one order's n-grams [n].

    Attributes:
        lower: probability of each n-gram's last word after its context without the first word [n].
        lower_unlisted: mass of a context's unlisted words after the context without its first word [m].
        unlisted: mass of the unlisted words after the context itself [m].
    """

    lower: Float64s
    lower_unlisted: Float64s
    unlisted: Float64s


class BackoffRows:
    """Probabilities, back-off weights and row sums of a model, by node below the trie's highest order.

    Args:
        trie: the n-grams; those that the model does not list have the back-off weight 1.
    """

    def __init__(self, trie: Trie) -> None:
        size = int(trie.starts[-2])
        self.trie = trie
        self.probs = np.ones(size)
        self.backoffs = np.ones(size)
        self.sums = np.ones(size)

    def lower_probs(self, length: int) -> Float64s:
        """Compute the probability of each n-gram's last word after its context without the first word [n].

        Args:
            length: length of the n-grams, at least 2.
        """
        suffixes = self.trie.suffixes[self.trie.nodes(length)]
        if suffixes.size and suffixes.min() < self.trie.starts[length - 1]:
            return _lower_probs(self.trie, length, self.probs, self.backoffs)
        return self.probs[suffixes]

    def contexts(self, ngrams: NGrams, length: int) -> ContextMasses:
        """Compute masses at contexts of n-grams of `length` words from shorter n-grams."""
        if length == 1:  # the unigrams list every word
            return ContextMasses(np.zeros(len(ngrams.words)), np.zeros(1), np.zeros(1))
        nodes = self.trie.nodes(length - 1)
        lower = self.lower_probs(length)
        lower_unlisted = self.sums[self.trie.suffixes[nodes]]
        lower_unlisted -= np.bincount(ngrams.prefixes, lower, minlength=len(lower_unlisted))
        np.maximum(lower_unlisted, MIN_LOWER_MASS, out=lower_unlisted)
        return ContextMasses(lower, lower_unlisted, lower_unlisted * self.backoffs[nodes])

    def add_order(self, ngrams: NGrams, length: int, probs: Float64s, *, left: Float64s) -> None:
        """Add the n-grams of `length` words [n].

        Args:
            ngrams: all n-grams of this length in the trie.
            length: their length; shorter n-grams must have been added.
            probs: probabilities of their last words [n].
            left: mass of the unlisted words in the rows of their contexts [m].
        """
        contexts = self.trie.nodes(length - 1)
        listed = np.bincount(ngrams.prefixes, probs, minlength=contexts.stop - contexts.start)
        self.sums[contexts] = listed + left
        self.set_probs(length, probs)

    def set_probs(self, length: int, probs: Float64s) -> None:
        """Set the probabilities of n-grams of `length` words [n]; the highest order is not stored."""
        if length < self.trie.order:
            self.probs[self.trie.nodes(length)] = probs

    def set_backoffs(self, length: int, backoffs: Float64s) -> None:
        """Set the back-off weights of n-grams of `length` words [n]; the highest order has none."""
        if length < self.trie.order:
            self.backoffs[self.trie.nodes(length)] = backoffs


def from_log10(log10: Float32s) -> Float64s:
    """Convert decimal logarithms to probabilities or weights in double precision."""
    return np.power(10.0, log10, dtype=np.float64)
