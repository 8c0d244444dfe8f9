"""The rows p(·|h) of a back-off model over a trie, taken in order by order.

A row lists some words; the others share what the shorter context's row gives them, times the
back-off weight. So what a row leaves to unlisted words is its back-off weight times its *room*:
what the shorter context's row gives to those same words. Both follow from the listed words,
and no row need sum to 1 for that.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.ngram.build import NGrams, NGramWeights
from training.ngram.trie import DoubleArray, Trie, lower_probs

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
