"""N-gram counts of all orders from one sort, count pruning, and matches of held-out text.

The text's positions are sorted once by the N words that start at each, as in a suffix array
cut at depth N, in a partition of first words per core. The n-grams of every order k ≤ N are
runs of equal k-word prefixes in this list, in lexicographic order. The index of an
n-gram's prefix is that of the (k−1)-gram at its position; its suffix is at the next position.

Count pruning: rare n-grams are counted, but not listed. Totals of contexts include
their counts, so their mass goes to the back-off weights. Thresholds apply to
occurrences in the text, for all smoothings, and never decrease with the order. So
prefix and suffix of a listed n-gram, which occur at least as often, are also listed.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from models.arrays import Int32s, Int64s, UInt8s
from models.errors import InputError, check_range
from models.kernels.compilation import kernel
from models.kernels.threads import THREADS, run_parts, run_slices
from models.language_model import BOS, EOS
from models.ngram.build import NGrams, count_smaller_keys, sort_by_key
from training.corpus import EncodedCorpus
from training.progress import Progress

_BLOCK = 1024
"""Positions that a kernel reads at once."""

MAX_ORDER = 255
"""Maximum n-gram length: a byte in counting."""

MAX_POSITIONS = 2**31 - 1 - MAX_ORDER
"""Maximum positions in the text, of four bytes each."""

MAX_COUNT_OF_COUNTS = 7
"""Highest count with a count of counts."""


class SortedText(NamedTuple):
    """A partition's positions, sorted by the N words that start at each; equal ones in text order.

    Attributes:
        text: all words [L + N], int32.
        positions: sorted positions [l], int32.
        shared: words shared with the previous position in the sentence [l], uint8.
        extents: words left in it, at most N [l], uint8.
    """

    text: Int32s
    positions: Int32s
    shared: UInt8s
    extents: UInt8s


def sort_text(text: Int32s, vocab_size: int, *, order: int, progress: Progress) -> list[SortedText]:
    """Sort positions but the last `order` by their first `order` words, in partitions of first words.

    Args:
        text: words [L + order], each in [0, V).
        vocab_size: V.
        order: N.
        progress: advanced by `order` steps.
    """
    length = len(text) - order
    # first words of similar partitions, one per core
    smaller = np.concatenate([[0], np.cumsum(np.bincount(text[:length], minlength=vocab_size))])
    targets = np.linspace(0, length, THREADS.most + 1)
    bounds = np.unique([0, *np.searchsorted(smaller, targets[1:-1]), vocab_size])
    shares = smaller[bounds].tolist()

    positions, spare = np.empty(length, np.int32), np.empty(length, np.int32)

    def sort(share: slice) -> SortedText:
        low, high = bounds[share.start], bounds[share.stop]
        source = members = np.flatnonzero((text[:length] >= low) & (text[:length] < high)).astype(np.int32)
        for offset in reversed(range(order)):  # offset 0 is written to `positions`
            target = (positions, spare)[offset % 2][shares[share.start] : shares[share.stop]]
            words = text[offset:]  # stable sorts, last word first, as in a radix sort
            sort_by_key(words, source, count_smaller_keys(words, members, vocab_size), target)
            source = target
            if share.start == 0:
                progress.advance()
        return SortedText(text, source, *_share_prefixes(text, source, order))

    return run_slices(sort, list(range(len(bounds))))


@kernel()
def _share_prefixes(text: Int32s, positions: Int32s, order: int) -> tuple[UInt8s, UInt8s]:
    """Return `shared` and `extents` of the sorted positions [l]; see `SortedText`.

    A block's words are read by offset in their own loop, so scattered reads overlap.
    """
    shared, extents = np.empty(len(positions), np.uint8), np.empty(len(positions), np.uint8)
    # at one offset, from the position before the block
    words = np.empty(_BLOCK + 1, np.int32)
    same, inside = np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.uint8)  # up to the offset
    for start in range(0, len(positions), _BLOCK):
        size = min(_BLOCK, len(positions) - start)
        here, before = positions[start : start + size], positions[start - 1]
        common, extent = shared[start : start + size], extents[start : start + size]
        common[:] = extent[:] = 0
        same[:] = inside[:] = 1
        same[0] = start > 0  # before the first position is none
        for offset in range(order):
            words[0] = text[before + offset]
            for i in range(size):
                words[i + 1] = text[here[i] + offset]
            for i in range(size):
                same[i] &= inside[i] & (words[i] == words[i + 1])
                common[i] += same[i]
                extent[i] += inside[i]
                inside[i] &= words[i + 1] != EOS
    return shared, extents


class CountedNGrams(NamedTuple):
    """The n-grams of one order and their counts.

    Attributes:
        ngrams: words, prefixes, suffixes [n].
        counts: occurrences in the text [n], int32; may be 0 for unigrams, which list the full vocabulary.
    """

    ngrams: NGrams
    counts: Int32s


def count_ngrams(
    corpus: EncodedCorpus, vocab_size: int, *, order: int, progress: Progress
) -> Sequence[CountedNGrams]:
    """Count the n-grams of orders 1 to `order`, with `<s>` before and `</s>` after every sentence.

    No n-gram crosses a sentence's end, and only the first word of an n-gram can be `<s>`.

    Args:
        corpus: sentences of ids in [0, V), without `<s>` and `</s>`.
        vocab_size: V.
        order: length of the longest n-grams.
        progress: advanced after each pass over the text.

    Raises:
        InputError: the order is out of range; the corpus is empty, too
            large, or has an id beyond the vocabulary or of `<s>` or `</s>`.
    """
    check_range("ngram.order", order, 1, MAX_ORDER)
    if corpus.num_sentences == 0:
        raise InputError("the corpus has no sentence; at least 1 is needed", param="corpus")
    positions = corpus.num_tokens + corpus.num_sentences
    if positions > MAX_POSITIONS:
        raise InputError(
            f"the corpus has {positions} tokens with <s> and </s>; --engine memory counts at most {MAX_POSITIONS}",
            param="corpus",
        )
    check_ids(corpus, vocab_size, what="the corpus", param="corpus")
    # padded with </s>, so every position has `order` words after it
    text = np.append(corpus.with_boundaries(), np.full(order, EOS, np.int32))  # [L + N]
    with progress.stage("counting n-grams", 2 * order - 1):
        parts = sort_text(text, vocab_size, order=order, progress=progress)
        nowhere = np.zeros(vocab_size, np.int32)
        unigrams = NGrams(np.arange(vocab_size, dtype=np.int32), prefixes=nowhere, suffixes=nowhere)
        counts = np.bincount(text[:-order], minlength=vocab_size).astype(np.int32)
        counted = [CountedNGrams(unigrams, counts)]
        # by position: index of the n-gram that starts there; a unigram's is its word
        numbers = text
        for k in range(2, order + 1):
            longer, numbers = _count_order(parts, k, numbers)
            counted.append(longer)
            progress.advance()
    return counted


def check_ids(corpus: EncodedCorpus, vocab_size: int, *, what: str, param: str) -> None:
    """Check the ids of a text, called `what` in messages, before counting or matching.

    Raises:
        InputError: an id is outside [0, V), or that of `<s>` or `</s>`.
    """
    if len(corpus.tokens) == 0:
        return
    low, high = int(corpus.tokens.min()), int(corpus.tokens.max())
    if low < 0 or high >= vocab_size:
        problem = f"{what} has ids from {low} to {high}; the vocabulary has ids from 0 to {vocab_size - 1}"
        raise InputError(problem, param=param)
    if ((corpus.tokens == BOS) | (corpus.tokens == EOS)).any():
        problem = f"{what} has <s> or </s> (ids {BOS} and {EOS}) inside a sentence"
        raise InputError(problem, param=param)


def _count_order(parts: Sequence[SortedText], order: int, shorter: Int32s) -> tuple[CountedNGrams, Int32s]:
    """Count one order; return its n-grams, and their index at each position [L]."""
    # distinct n-grams by partition
    sizes = run_parts(
        lambda part: int(np.count_nonzero((part.shared < order) & (part.extents >= order))), parts
    )
    words, prefixes, suffixes, counts = (np.zeros(sum(sizes), np.int32) for _ in range(4))
    counted = CountedNGrams(NGrams(words, prefixes, suffixes), counts)
    numbers = np.zeros(sum(len(part.positions) for part in parts), np.int32)
    numbered_parts = list(zip(parts, accumulate(sizes, initial=0), strict=False))
    run_parts(lambda part: _list_ngrams(part[0], order, shorter, part[1], counted, numbers), numbered_parts)
    return counted, numbers


@kernel()
def _list_ngrams(
    part: SortedText, order: int, shorter: Int32s, number: int, counted: CountedNGrams, numbers: Int32s
) -> None:
    """Write an order's n-grams and counts [n] from index `number`, and indices by position [L].

    Equal n-grams are adjacent: one pass numbers them in order. Positions with fewer than `order` words
    left in the sentence have none. A block is numbered first, so scattered reads and writes overlap.
    """
    text, positions, shared, extents = part
    (words, prefixes, suffixes), counts = counted
    starts, numbered = np.empty(_BLOCK, np.int32), np.empty(_BLOCK, np.int32)
    for begin in range(0, len(positions), _BLOCK):
        size = min(_BLOCK, len(positions) - begin)
        here, extent = positions[begin : begin + size], extents[begin : begin + size]
        found = 0
        for i in range(size):
            starts[found] = here[i]  # overwritten unless a new n-gram starts there
            found += (shared[begin + i] < order) & (extent[i] >= order)
            numbered[i] = number + found - 1
        for i in range(size):
            numbers[here[i]] = numbered[i]  # never read if there is no n-gram
            if extent[i] >= order:
                counts[numbered[i]] += 1
        for k in range(found):
            words[number + k] = text[starts[k] + order - 1]
            prefixes[number + k] = shorter[starts[k]]
            suffixes[number + k] = shorter[starts[k] + 1]
        number += found


def thresholds_by_order(prune: Sequence[int], *, order: int) -> tuple[int, ...]:
    """Return a threshold per order; n-grams with counts up to it are dropped.

    Args:
        prune: thresholds of orders 1, 2, …, without a `threshold_problem`; the last is for all higher
            orders; empty means 0.
        order: length of the longest n-grams.
    """
    given = tuple(prune) or (0,)
    return given + given[-1:] * (order - len(given))


def threshold_problem(prune: Sequence[int], *, order: int) -> str | None:
    """Describe the thresholds' problem; None without one."""
    shown = list(prune)
    if len(shown) > order:
        return f"is {shown}, thresholds of {len(shown)} orders, but ngram.order is {order}"
    if shown and shown[0] != 0:
        return f"is {shown}; the first threshold must be 0, because tokenizer.min_count drops words"
    if shown != sorted(shown):
        return f"is {shown}; a threshold must not be below the previous one"
    return None


class OrderCounts(NamedTuple):
    """One order's counts, and statistics of its contexts, the n-grams of the order below.

    `totals`, `types` and `counts_of_counts`
    describe the text: they include pruned n-grams.

    Attributes:
        ngrams: the listed n-grams [n].
        counts: their counts [n], int32; 0 for `<s>`, never predicted.
        totals: sum of the counts after each context [m], int32.
        types: distinct words after each context [m], int32.
        counts_of_counts: n-grams with counts 0, 1, … 7 [8], int64.
    """

    ngrams: NGrams
    counts: Int32s
    totals: Int32s
    types: Int32s
    counts_of_counts: Int64s


class Observations:
    """A counted text for smoothing; each iteration is a fresh pass, to save memory.

    Args:
        counted: n-grams by order from 1.
        prune: count thresholds by order; see `thresholds_by_order`.

    Attributes:
        order: length of the longest n-grams.
        vocab_size: V.
    """

    def __init__(self, counted: Sequence[CountedNGrams], *, prune: Sequence[int] = ()) -> None:
        self._counted = counted
        self.order, self.vocab_size = len(counted), len(counted[0].counts)
        self.thresholds = thresholds_by_order(prune, order=len(counted))

    def orders(self, *, continuations: bool = False) -> Iterator[OrderCounts]:
        """Yield each order's occurrence or continuation counts, from 1.

        The latter are numbers of distinct preceding words. N-grams of the highest order, and
        those that start with `<s>`, as no word precedes, have occurrence counts.

        Source: Heafield et al. (2013), section 3.2, «adjusted counts».
        """
        num_contexts = 1
        # of the order below: mask of the listed n-grams, and their new indices
        listed = numbers = None
        for k, (every_ngram, occurrences) in enumerate(self._counted, start=1):
            counts = occurrences
            if continuations and k < self.order:
                counts = _count_predecessors(counts, self._counted[k].ngrams.suffixes)
            if k == 1:
                counts = counts.copy()
                counts[BOS] = 0
            totals, types, counts_of_counts = _by_context(every_ngram.prefixes, counts, num_contexts)
            if listed is not None:
                totals, types = totals[listed], types[listed]
            num_contexts = len(counts)
            threshold = self.thresholds[k - 1]
            # unigrams are the vocabulary
            listed = occurrences > threshold if threshold and k > 1 else None
            words, prefixes, suffixes = every_ngram
            if listed is not None:
                words, prefixes, suffixes = words[listed], prefixes[listed], suffixes[listed]
                counts = counts[listed]
            if numbers is not None:
                prefixes, suffixes = numbers[prefixes], numbers[suffixes]
            numbers = None if listed is None else np.cumsum(listed, dtype=np.int32) - np.int32(1)
            yield OrderCounts(NGrams(words, prefixes, suffixes), counts, totals, types, counts_of_counts)


@kernel()
def _count_predecessors(occurrences: Int32s, suffixes: Int32s) -> Int32s:
    """Count n-grams by their suffix, a shorter n-gram [n]; without any, its occurrences."""
    counts = np.zeros_like(occurrences)  # [n]
    for suffix in suffixes:  # each is one distinct word before its suffix
        counts[suffix] += 1
    for i in range(len(counts)):
        if counts[i] == 0:
            counts[i] = occurrences[i]
    return counts


@kernel()
def _by_context(prefixes: Int32s, counts: Int32s, num_contexts: int) -> tuple[Int32s, Int32s, Int64s]:
    """Compute totals and types by context [m], and counts of counts, in one pass."""
    totals, types = np.zeros(num_contexts, np.int32), np.zeros(num_contexts, np.int32)
    counts_of_counts = np.zeros(MAX_COUNT_OF_COUNTS + 1, np.int64)
    for i in range(len(counts)):
        count = counts[i]
        totals[prefixes[i]] += count
        types[prefixes[i]] += count > 0  # the unigram <s> has the count 0
        if count <= MAX_COUNT_OF_COUNTS:
            counts_of_counts[count] += 1
    return totals, types, counts_of_counts


class Matches(NamedTuple):
    """One order's counts for held-out tokens, including `</s>`; 0 for unseen n-grams and contexts.

    Attributes:
        counts: count of the n-gram that ends in the token [T], int32.
        totals: sum of the counts after its context [T], int32.
        pruned: part of `totals` due to unlisted n-grams [T], int32.
        types: listed words after the context with counts of 1, 2, and 3 or more [T, 3], int32.
    """

    counts: Int32s
    totals: Int32s
    pruned: Int32s
    types: Int32s


def match_counts(
    orders: Iterable[OrderCounts], held_out: EncodedCorpus, *, vocab_size: int
) -> Iterator[Matches]:
    """Yield all held-out tokens' matches with each order.

    Args:
        orders: counts by order from 1.
        held_out: sentences of ids in [0, V), without `<s>` and `</s>`.
        vocab_size: V.

    Raises:
        InputError: the held-out text has ids beyond the vocabulary, or of `<s>` or `</s>`.
    """
    check_ids(held_out, vocab_size, what="the held-out text", param="valid")
    text = held_out.with_boundaries()
    predicted = text != BOS
    contexts = np.zeros_like(text)
    for k, order in enumerate(orders, start=1):
        words, prefixes, _ = order.ngrams
        numbers = text if k == 1 else _find_ngrams(words, prefixes, contexts, text)
        listed, types = _listed_by_context(prefixes, order.counts, len(order.totals))
        at = contexts[predicted]
        by_context = (_values_at(at, values) for values in (order.totals, order.totals - listed, types))
        yield Matches(_values_at(numbers[predicted], order.counts), *by_context)
        # the first is wrong, but unused: `<s>` is not predicted
        contexts = np.roll(numbers, 1)


def _values_at(indices: Int32s, values: Int32s) -> Int32s:
    """Return values of n-grams or contexts [T, …]; 0 for an index of −1."""
    found = np.zeros((len(indices), *values.shape[1:]), np.int32)
    known = indices >= 0
    found[known] = values[indices[known]]
    return found


@kernel()
def _find_ngrams(words: Int32s, prefixes: Int32s, contexts: Int32s, text: Int32s) -> Int32s:
    """Find the n-gram that ends at each position by bisection; −1 if none does.

    `contexts` has the one of the order below that ends at the previous position [T].
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
