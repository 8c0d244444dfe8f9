"""Counting n-grams: all orders from one sort, whatever the smoothing.

The text is sorted once by the N words that start at each position, as in a suffix array cut
at depth N. The n-grams of every order k ≤ N are then runs of equal k-word prefixes in that
one list, already in lexicographic order, and the number of an n-gram's prefix or suffix is
that of the (k−1)-gram at the same position or the next.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.ngram.build import NGrams
from models.vocabulary import BOS, EOS
from training.corpora.encoded import EncodedCorpus
from training.progress import Progress

IntArray: TypeAlias = npt.NDArray[np.int32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]

MAX_ORDER = 255
"""The length of an n-gram is kept in one byte while counting."""

MAX_POSITIONS = 2**31 - 1 - MAX_ORDER
"""Positions in the text are kept in four bytes."""


class CountedNGrams(NamedTuple):
    """The n-grams of one order and how often each occurs.

    Attributes:
        ngrams: words, prefixes, suffixes [n].
        counts: occurrences in the text [n], int32. Unigrams list the whole vocabulary, so theirs may be 0.
    """

    ngrams: NGrams
    counts: IntArray


def count_ngrams(
    corpus: EncodedCorpus, vocab_size: int, *, order: int, progress: Progress
) -> Sequence[CountedNGrams]:
    """The n-grams of orders 1 to `order`, with `<s>` before and `</s>` after every sentence.

    No n-gram crosses a sentence's end, and `<s>` is only ever the first word of one.

    Args:
        corpus: sentences of ids in [0, V), without `<s>` and `</s>`.
        vocab_size: V.
        order: the length of the longest n-grams.
        progress: told of each pass over the text.

    Raises:
        InvalidInputError: the order is out of range; the corpus is empty, too large, or has an
            id that is outside the vocabulary or stands for `<s>` or `</s>`.
    """
    if not 1 <= order <= MAX_ORDER:
        raise InvalidInputError(
            f"ngram.order is {order}, it can be 1 to {MAX_ORDER}", parameter="ngram.order"
        )
    _check_corpus(corpus, vocab_size)
    # so many </s> more, that every position has `order` words after it
    text = np.append(corpus.with_boundaries(), np.full(order, EOS, dtype=np.int32))
    length = len(text) - order
    progress.start("counting n-grams", 2 * order - 1)
    positions = np.arange(length, dtype=np.int32)
    for offset in reversed(range(order)):
        first = np.zeros(vocab_size, np.int64)
        first[1:] = np.cumsum(np.bincount(text[offset : offset + length], minlength=vocab_size))[:-1]
        positions = _sorted_by_word(text, positions, offset, first)
        progress.advance()
    shared, extents = _shared_prefixes(text, positions, order)
    counted = [_unigrams(text[:length], vocab_size)]
    numbers = text  # by position: the number of the n-gram that starts there; a unigram's is its word
    for k in range(2, order + 1):
        longer, numbers = _count_order(text, positions, shared, extents, k, numbers)
        counted.append(longer)
        progress.advance()
    progress.finish()
    return counted


def _check_corpus(corpus: EncodedCorpus, vocab_size: int) -> None:
    if corpus.num_sentences == 0:
        raise InvalidInputError("the corpus has no sentence; at least 1 is needed", parameter="corpus")
    positions = corpus.num_tokens + corpus.num_sentences
    if positions > MAX_POSITIONS:
        raise InvalidInputError(
            f"the corpus has {positions} tokens with <s> and </s>, at most {MAX_POSITIONS} can be counted in memory",
            parameter="corpus",
        )
    if len(corpus.tokens) == 0:
        return
    low, high = int(corpus.tokens.min()), int(corpus.tokens.max())
    if low < 0 or high >= vocab_size:
        raise InvalidInputError(
            f"the corpus has ids from {low} to {high}, the vocabulary's are 0 to {vocab_size - 1}",
            parameter="corpus",
        )
    if ((corpus.tokens == BOS) | (corpus.tokens == EOS)).any():
        raise InvalidInputError(
            f"the corpus has <s> or </s> (ids {BOS} and {EOS}) inside a sentence", parameter="corpus"
        )


def _unigrams(text: IntArray, vocab_size: int) -> CountedNGrams:
    nowhere = np.zeros(vocab_size, dtype=np.int32)
    words = np.arange(vocab_size, dtype=np.int32)
    counts = np.bincount(text, minlength=vocab_size).astype(np.int32)
    return CountedNGrams(NGrams(words, prefixes=nowhere, suffixes=nowhere), counts)


def _count_order(
    text: IntArray,
    positions: IntArray,
    shared: ByteArray,
    extents: ByteArray,
    order: int,
    shorter: IntArray,
) -> tuple[CountedNGrams, IntArray]:
    """The n-grams of one order, and the number of the one that starts at each position."""
    size = int(np.count_nonzero((shared < order) & (extents >= order)))
    words, prefixes, suffixes, counts, numbers = _list_ngrams(
        text, positions, shared, extents, order, shorter, size
    )
    return CountedNGrams(NGrams(words, prefixes, suffixes), counts), numbers


@numba.njit(nogil=True, cache=True)
def _sorted_by_word(
    text: IntArray, positions: IntArray, offset: int, first: npt.NDArray[np.int64]
) -> IntArray:
    """Sort positions, stably, by the word `offset` further on: one pass of a radix sort.

    `first` [V] holds how many words are smaller than each; it is used up.
    """
    out = np.empty_like(positions)
    for position in positions:
        word = text[position + offset]
        out[first[word]] = position
        first[word] += 1
    return out


@numba.njit(nogil=True, cache=True)
def _shared_prefixes(text: IntArray, positions: IntArray, order: int) -> tuple[ByteArray, ByteArray]:
    """How many words each sorted position shares with the one before, and has left in its sentence."""
    shared = np.zeros(len(positions), np.uint8)
    extents = np.zeros(len(positions), np.uint8)
    before = positions[0]
    for i in range(len(positions)):
        here = positions[i]
        extent = 1
        while extent < order and text[here + extent - 1] != EOS:
            extent += 1
        common = 0
        while i > 0 and common < extent and text[here + common] == text[before + common]:
            common += 1
        shared[i] = common
        extents[i] = extent
        before = here
    return shared, extents


@numba.njit(nogil=True, cache=True)
def _list_ngrams(
    text: IntArray,
    positions: IntArray,
    shared: ByteArray,
    extents: ByteArray,
    order: int,
    shorter: IntArray,
    size: int,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Words, prefixes, suffixes and counts [size] of one order, and the n-gram's number by position.

    Positions whose sentence ends too soon are passed over.
    """
    words, prefixes, suffixes = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    counts = np.zeros(size, np.int32)
    numbers = np.zeros(len(positions), np.int32)
    number = -1
    for i in range(len(positions)):
        if extents[i] < order:
            continue
        position = positions[i]
        if shared[i] < order:
            number += 1
            words[number] = text[position + order - 1]
            prefixes[number] = shorter[position]
            suffixes[number] = shorter[position + 1]
        counts[number] += 1
        numbers[position] = number
    return words, prefixes, suffixes, counts, numbers
