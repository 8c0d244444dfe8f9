"""Matches of held-out text with counted n-grams, order by order, for fitting smoothing parameters."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from models.arrays import Int32s
from models.kernels.compilation import kernel
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.ngram.counts import OrderCounts, check_ids


class Matches(NamedTuple):
    """Counts of one order for every held-out token, including `</s>`; 0 for unseen n-grams and contexts.

    Attributes:
        counts: count of the n-gram that ends in the token [T], int32.
        totals: sum of the counts after its context [T], int32.
        pruned: part of `totals` due to unlisted n-grams [T], int32.
        types: number of listed words after the context with a count of 1, 2, and 3 or more [T, 3], int32.
    """

    counts: Int32s
    totals: Int32s
    pruned: Int32s
    types: Int32s


def match_counts(
    orders: Iterable[OrderCounts], held_out: EncodedCorpus, *, vocab_size: int
) -> Iterator[Matches]:
    """Yield the matches of all held-out tokens with each order.

    Args:
        orders: the counts of the orders 1, 2, ….
        held_out: sentences of ids in [0, V), without `<s>` and `</s>`.
        vocab_size: V.

    Raises:
        InvalidInputError: the held-out text has ids outside the vocabulary, or ids of `<s>` or `</s>`.
    """
    check_ids(held_out, vocab_size, what="the held-out text", parameter="valid")
    text = held_out.with_boundaries()
    predicted = text != BOS
    contexts = np.zeros_like(text)
    for k, order in enumerate(orders, start=1):
        words, prefixes, _ = order.ngrams
        numbers = text if k == 1 else _find_ngrams(words, prefixes, contexts, text)
        listed, types = _listed_by_context(prefixes, order.counts, len(order.totals))
        at = contexts[predicted]
        yield Matches(
            counts=_values_at(numbers[predicted], order.counts),
            totals=_values_at(at, order.totals),
            pruned=_values_at(at, order.totals - listed),
            types=_values_at(at, types),
        )
        contexts = np.roll(numbers, 1)  # the first value is wrong, but unused: `<s>` is not predicted


def _values_at(indices: Int32s, values: Int32s) -> Int32s:
    """Return values of n-grams or contexts [T, …]; 0 for an index of −1."""
    found = np.zeros((len(indices), *values.shape[1:]), dtype=np.int32)
    known = indices >= 0
    found[known] = values[indices[known]]
    return found


@kernel()
def _find_ngrams(words: Int32s, prefixes: Int32s, contexts: Int32s, text: Int32s) -> Int32s:
    """Find the n-gram that ends at each position by bisection; −1 if none ends there.

    `contexts` has the n-gram of the order below that ends at the previous position [T].
    """
    numbers = np.full(len(text), -1, np.int32)  # [T]
    for position in range(len(text)):
        context, word = contexts[position], text[position]
        if context < 0:
            continue
        begin, end = 0, len(words)  # n-grams are sorted by (prefix, word)
        while begin < end:
            middle = (begin + end) >> 1
            if prefixes[middle] < context or (prefixes[middle] == context and words[middle] < word):
                begin = middle + 1
            else:
                end = middle
        if begin < len(words) and prefixes[begin] == context and words[begin] == word:
            numbers[position] = begin
    return numbers


@kernel()
def _listed_by_context(prefixes: Int32s, counts: Int32s, num_contexts: int) -> tuple[Int32s, Int32s]:
    """Sum the listed counts after each context [m], and count the counts of 1, 2, and 3 or more [m, 3]."""
    listed, types = np.zeros(num_contexts, np.int32), np.zeros((num_contexts, 3), np.int32)
    for i in range(len(counts)):
        listed[prefixes[i]] += counts[i]
        if counts[i] > 0:
            types[prefixes[i], min(counts[i], 3) - 1] += 1
    return listed, types
