"""N-grams in the order of a file to n-grams in the order of their words, and to a trie."""

from typing import NamedTuple

import numba
import numpy as np

from models.ngram.arpa.kernels import IntArray, PrefixTrie
from models.ngram.build import NGrams


class RowOrder(NamedTuple):
    """How rows must be taken to be in lexicographic order.

    Attributes:
        order: the rows' numbers in that order [n], int32; None if they are in it already.
        duplicate: the place in that order of a row that equals the one before; −1 if there is none.
    """

    order: IntArray | None
    duplicate: int


def sort_rows(prefixes: IntArray, words: IntArray, *, num_prefixes: int, vocab_size: int) -> RowOrder:
    """Sort n-grams of one order, given by prefix and last word [n]."""
    if _first_out_of_order(prefixes, words) == len(words):
        return RowOrder(None, -1)
    by_word = _counting_sort(words, np.arange(len(words), dtype=np.int32), vocab_size)
    order = _counting_sort(prefixes, by_word, num_prefixes)
    return RowOrder(order, _first_duplicate(prefixes, words, order))


def extend_trie(trie: PrefixTrie, ngrams: NGrams, *, num_prefixes: int) -> PrefixTrie:
    """A trie with the n-grams of the next order as children of its last nodes."""
    fan_outs = np.bincount(ngrams.prefixes, minlength=num_prefixes)
    ends = np.cumsum(fan_outs)
    ends += trie.first_children[-1]
    return PrefixTrie(
        np.concatenate([trie.words, ngrams.words]),
        np.concatenate([trie.first_children, ends]),
        trie.vocab_size,
        trie.first_node + num_prefixes,
    )


@numba.njit(nogil=True, cache=True)
def _first_out_of_order(prefixes: IntArray, words: IntArray) -> int:
    """The first row that does not come after the one before; n if all do."""
    for row in range(1, len(words)):
        if prefixes[row] < prefixes[row - 1] or (
            prefixes[row] == prefixes[row - 1] and words[row] <= words[row - 1]
        ):
            return row
    return len(words)


@numba.njit(nogil=True, cache=True)
def _counting_sort(keys: IntArray, rows: IntArray, num_keys: int) -> IntArray:
    """Rows in the order of their keys, those of equal keys as they were: one pass of a radix sort."""
    places = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        places[key + 1] += 1
    for key in range(num_keys):
        places[key + 1] += places[key]
    out = np.empty_like(rows)
    for row in rows:
        key = keys[row]
        out[places[key]] = row
        places[key] += 1
    return out


@numba.njit(nogil=True, cache=True)
def _first_duplicate(prefixes: IntArray, words: IntArray, order: IntArray) -> int:
    """The first place in the order whose row equals the one before; −1 if there is none."""
    for place in range(1, len(order)):
        row, before = order[place], order[place - 1]
        if prefixes[row] == prefixes[before] and words[row] == words[before]:
            return place
    return -1
