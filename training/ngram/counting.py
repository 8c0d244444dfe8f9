"""Counting n-grams: all orders from one sort, whatever the smoothing.

The text is sorted once by the N words that start at each position, as in a suffix array cut
at depth N. The n-grams of every order k ≤ N are then runs of equal k-word prefixes in that
one list, already in lexicographic order, and the number of an n-gram's prefix or suffix is
that of the (k−1)-gram at the same position or the next.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

from models.errors import InvalidInputError
from models.ngram.build import NGrams
from models.ngram.threads import run_slices
from models.vocabulary import BOS, EOS
from training.corpora.encoded import EncodedCorpus
from training.ngram.sorting import ByteArray, IntArray, SortedText, sort_text
from training.progress import Progress

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
    progress.start("counting n-grams", 2 * order - 1)
    in_order = sort_text(text, vocab_size, order=order, progress=progress)
    counted = [_unigrams(text[:-order], vocab_size)]
    numbers = text  # by position: the number of the n-gram that starts there; a unigram's is its word
    for k in range(2, order + 1):
        longer, numbers = _count_order(in_order, k, numbers)
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
    check_ids(corpus, vocab_size, what="the corpus", parameter="corpus")


def check_ids(corpus: EncodedCorpus, vocab_size: int, *, what: str, parameter: str) -> None:
    """Make sure that a text can be counted, or looked up in counts.

    Args:
        corpus: the text.
        vocab_size: V.
        what: how a message calls the text.
        parameter: where it came from.

    Raises:
        InvalidInputError: it has an id outside [0, V), or one that stands for `<s>` or `</s>`.
    """
    if len(corpus.tokens) == 0:
        return
    low, high = int(corpus.tokens.min()), int(corpus.tokens.max())
    if low < 0 or high >= vocab_size:
        raise InvalidInputError(
            f"{what} has ids from {low} to {high}, the vocabulary's are 0 to {vocab_size - 1}",
            parameter=parameter,
        )
    if ((corpus.tokens == BOS) | (corpus.tokens == EOS)).any():
        raise InvalidInputError(
            f"{what} has <s> or </s> (ids {BOS} and {EOS}) inside a sentence", parameter=parameter
        )


def _unigrams(text: IntArray, vocab_size: int) -> CountedNGrams:
    nowhere = np.zeros(vocab_size, dtype=np.int32)
    words = np.arange(vocab_size, dtype=np.int32)
    counts = np.bincount(text, minlength=vocab_size).astype(np.int32)
    return CountedNGrams(NGrams(words, prefixes=nowhere, suffixes=nowhere), counts)


def _count_order(in_order: SortedText, order: int, shorter: IntArray) -> tuple[CountedNGrams, IntArray]:
    """The n-grams of one order, and the number of the one that starts at each position."""
    sizes = run_slices(
        lambda share: _count_distinct(in_order.shared[share], in_order.extents[share], order), in_order.shares
    )
    begins = np.concatenate([[0], np.cumsum(sizes)])
    words, prefixes, suffixes, counts = (np.zeros(begins[-1], np.int32) for _ in range(4))
    numbers = np.zeros(len(in_order.positions), np.int32)

    def list_share(share: slice) -> None:
        number = int(begins[in_order.shares.index(share.start)])
        _list_ngrams(
            in_order.text,
            in_order.positions[share],
            in_order.shared[share],
            in_order.extents[share],
            order,
            shorter,
            number,
            words,
            prefixes,
            suffixes,
            counts,
            numbers,
        )

    run_slices(list_share, in_order.shares)
    return CountedNGrams(NGrams(words, prefixes, suffixes), counts), numbers


@numba.njit(nogil=True, cache=True)
def _count_distinct(shared: ByteArray, extents: ByteArray, order: int) -> int:
    """How many different n-grams of one order some positions have."""
    size = 0
    for i in range(len(shared)):
        size += shared[i] < order <= extents[i]
    return size


@numba.njit(nogil=True, cache=True)
def _list_ngrams(
    text: IntArray,
    positions: IntArray,
    shared: ByteArray,
    extents: ByteArray,
    order: int,
    shorter: IntArray,
    number: int,
    words: IntArray,
    prefixes: IntArray,
    suffixes: IntArray,
    counts: IntArray,
    numbers: IntArray,
) -> None:
    """Write one order's words, prefixes, suffixes and counts [n] from `number` on, and numbers by position [L].

    Positions whose sentence ends too soon are passed over.
    """
    number -= 1
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
