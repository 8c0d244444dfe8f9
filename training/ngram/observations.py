"""What smoothing needs to know of a counted text, order by order."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.ngram.build import NGrams
from models.vocabulary import BOS
from training.ngram.count_pruning import keep_listed, listed_mask, thresholds_by_order
from training.ngram.counting import CountedNGrams

IntArray: TypeAlias = npt.NDArray[np.int32]

MAX_COUNT_OF_COUNTS = 7
"""Counts of counts are kept up to this one."""


class OrderCounts(NamedTuple):
    """The counts of one order, and what is known of its contexts, the n-grams of the order below.

    Of the words after a context, `totals` and `types` include those whose n-gram was pruned,
    and `counts_of_counts` those n-grams themselves: they say how the text is, not what is listed.

    Attributes:
        ngrams: the n-grams that are listed [n].
        counts: theirs [n], int32; 0 for `<s>` as a unigram, which is never predicted.
        totals: the sum of the counts after each context [m], int32.
        types: how many different words came after each context [m], int32.
        counts_of_counts: how many n-grams have the count 0, 1, … 7 [8], int64.
    """

    ngrams: NGrams
    counts: IntArray
    totals: IntArray
    types: IntArray
    counts_of_counts: npt.NDArray[np.int64]


class Observations:
    """A counted text as smoothing looks at it; each look is a fresh pass, so that nothing is held twice.

    Args:
        counted: n-grams of the orders 1, 2, ….
        prune: by order, n-grams that occur at most so often are dropped; see `count_pruning`.

    Raises:
        InvalidInputError: the thresholds are wrong.
    """

    def __init__(self, counted: Sequence[CountedNGrams], *, prune: Sequence[int] = ()) -> None:
        self._counted = counted
        self.thresholds = thresholds_by_order(prune, order=len(counted))

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self._counted)

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self._counted[0].counts)

    def occurrences(self) -> Iterator[OrderCounts]:
        """How often each n-gram occurs in the text, by order from 1."""
        return self._orders(lambda k: self._counted[k - 1].counts)

    def continuations(self) -> Iterator[OrderCounts]:
        """How many different words come before each n-gram, by order from 1.

        An n-gram of the highest order has its occurrences, and so has one that starts with
        `<s>`, which nothing precedes.

        Source: Heafield et al. (2013), section 3.2, «adjusted counts».
        """
        return self._orders(self._continuation_counts)

    def _continuation_counts(self, order: int) -> IntArray:
        counts = self._counted[order - 1].counts
        if order == self.order:
            return counts
        return _count_predecessors(counts, self._counted[order].ngrams.suffixes)

    def _orders(self, counts_of: Callable[[int], IntArray]) -> Iterator[OrderCounts]:
        num_contexts = 1
        contexts = numbers = None  # of the order below: which are listed, and their new numbers
        for k, (every_ngram, occurrences) in enumerate(self._counted, start=1):
            counts = counts_of(k)
            if k == 1:
                counts = counts.copy()
                counts[BOS] = 0
            totals, types, counts_of_counts = _by_context(every_ngram.prefixes, counts, num_contexts)
            if contexts is not None:
                totals, types = totals[contexts], types[contexts]
            num_contexts = len(counts)
            contexts = listed_mask(occurrences, self.thresholds[k - 1], order=k)
            ngrams, numbers = keep_listed(every_ngram, kept=contexts, numbers=numbers)
            counts = counts if contexts is None else counts[contexts]
            yield OrderCounts(ngrams, counts, totals, types, counts_of_counts)


@numba.njit(nogil=True, cache=True)
def _count_predecessors(occurrences: IntArray, suffixes: IntArray) -> IntArray:
    """How many n-grams have each shorter one as their suffix [n]; its occurrences where none has."""
    counts = np.zeros_like(occurrences)
    for suffix in suffixes:
        counts[suffix] += 1
    for i in range(len(counts)):
        if counts[i] == 0:
            counts[i] = occurrences[i]
    return counts


@numba.njit(nogil=True, cache=True)
def _by_context(
    prefixes: IntArray, counts: IntArray, num_contexts: int
) -> tuple[IntArray, IntArray, npt.NDArray[np.int64]]:
    """Totals and types by context, and counts of counts, in one pass."""
    totals, types = np.zeros(num_contexts, np.int32), np.zeros(num_contexts, np.int32)
    counts_of_counts = np.zeros(MAX_COUNT_OF_COUNTS + 1, np.int64)
    for i in range(len(counts)):
        count = counts[i]
        totals[prefixes[i]] += count
        types[prefixes[i]] += count > 0
        if count <= MAX_COUNT_OF_COUNTS:
            counts_of_counts[count] += 1
    return totals, types, counts_of_counts
