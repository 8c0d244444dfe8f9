"""Compiled reading of the lines of an ARPA file: a block of bytes in, arrays of n-grams out.

A kernel stops where it cannot go on, and says why by a code. It has used up the lines before
the place that it returns, and can be called again there once its caller has made room.
"""

from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.ngram.arpa.decimals import Int, read_number
from models.word_kernels import (
    HASH_PRIME,
    HASH_SEED,
    ByteArray,
    WordHashTable,
    find_word,
    has_capacity,
    insert_word,
)

IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]

# why a kernel stopped: nothing is wrong up to FULL
BLOCK_ENDS, SECTION_ENDS, FULL = 0, 1, 2
TOO_FEW_WORDS, TOO_MANY_FIELDS, UNKNOWN_WORD, NO_PREFIX, DUPLICATE, POSITIVE_LOG_PROB = 3, 4, 5, 6, 7, 8

PROB, BACKOFF = 0, 1
MAX_LOG_PROB = 1e-6
"""A log-probability so little above 0 is a rounding error."""

_ORDINARY, _BLANK, _END_OF_LINE = 0, 1, 2
_BYTE_KINDS = np.zeros(256, dtype=np.uint8)
"""Of each byte: part of a field, or between fields, or the end of a line."""
_BYTE_KINDS[list(b" \t\r")] = _BLANK
_BYTE_KINDS[ord("\n")] = _END_OF_LINE
_LINE_END, _BACKSLASH = ord("\n"), ord("\\")


class NGramRows(NamedTuple):
    """The n-grams of one section as they come; the arrays have room for more.

    Attributes:
        prefixes: the place of all but the last word among the n-grams one shorter, int32.
        words: the last word's id, int32.
        log10_probs: float32.
        log10_backoffs: float32; 0 where there is none.
        lines: the line in the file, int64.
    """

    prefixes: IntArray
    words: IntArray
    log10_probs: FloatArray
    log10_backoffs: FloatArray
    lines: npt.NDArray[np.int64]


class PrefixTrie(NamedTuple):
    """The n-grams of the orders before, so that prefixes are found.

    Nodes are numbered by order: V unigrams, then all bigrams in order, ….

    Attributes:
        words: the last word of every node past the unigrams [n - V], int32.
        first_children: where the nodes that continue a node start, and the last end [nodes + 1], int64;
            of the nodes whose children are listed.
        vocab_size: V.
        first_node: the first node of the order that prefixes are of.
    """

    words: IntArray
    first_children: npt.NDArray[np.int64]
    vocab_size: int
    first_node: int


class ParseStop(NamedTuple):
    """Where and why a kernel stopped.

    Attributes:
        code: why.
        field: where the field starts that is the reason.
        offset: the start of the first line that is not used up.
        line: its number.
        filled: rows that are filled.
        num_hard: numbers that Python has to read.
        missing: n-grams without a back-off weight, among the new ones.
    """

    code: int
    field: int
    offset: int
    line: int
    filled: int
    num_hard: int
    missing: int


@numba.njit(nogil=True, cache=True)
def read_ngrams(
    text: ByteArray,
    place: int,
    line: int,
    rows: NGramRows,
    count: int,
    order: int,
    table: WordHashTable,
    ids: IntArray,
    trie: PrefixTrie,
    hard: npt.NDArray[np.int64],
) -> ParseStop:
    """Read lines of n-grams of one order; the word of a unigram in row i is entered as number i.

    Args:
        text: whole lines.
        place: where to start in it.
        line: the number of the line there.
        rows: to be filled from `count` on.
        count: rows filled before.
        order: words in an n-gram.
        table: the words of all unigrams, or of those in the rows before.
        ids: the id of each word of the table; not read for unigrams.
        trie: the orders below.
        hard: to be filled with numbers that Python has to read: the row, `PROB` or `BACKOFF`,
            start and end of the field [H, 4].
    """
    code, field, num_hard, missing = BLOCK_ENDS, place, 0, 0
    while place < len(text):
        field = _field_start(text, place)
        if text[field] == _LINE_END:
            place = field + 1
            line += 1
            continue
        if text[field] == _BACKSLASH:
            code = SECTION_ENDS
            break
        if count == len(rows.words) or num_hard + 2 > len(hard):
            code = FULL
            break
        end = _field_end(text, field)
        prob, num_hard = _read_weight(text, field, end, count, PROB, hard, num_hard)
        if prob > MAX_LOG_PROB:
            code = POSITIVE_LOG_PROB
            break
        if order == 1:
            code, field, end, node, word = _read_new_word(text, end, count, table)
        else:
            code, field, end, node, word = _read_words(text, end, order, table, ids, trie)
        if code != BLOCK_ENDS:
            break
        field, backoff, num_hard, lacking = _read_backoff(text, end, count, hard, num_hard)
        if text[field] != _LINE_END:
            code = TOO_MANY_FIELDS
            break
        rows.prefixes[count] = node - trie.first_node
        rows.words[count] = word
        rows.log10_probs[count] = prob
        rows.log10_backoffs[count] = backoff
        rows.lines[count] = line
        missing += lacking
        count += 1
        line += 1
        place = field + 1
    return ParseStop(code, field, place, line, count, num_hard, missing)


@numba.njit(nogil=True, cache=True)
def _read_new_word(
    text: ByteArray, place: int, number: int, table: WordHashTable
) -> tuple[int, int, int, Int, Int]:
    """The word of a unigram, which is entered into the table; returns what `_read_words` does."""
    start = _field_start(text, place)
    if text[start] == _LINE_END:
        return TOO_FEW_WORDS, start, start, np.int64(0), np.int64(number)
    end, hashed = _hash_field(text, start)
    known, mixed, slot = find_word(table, text, start, end, hashed)
    if known >= 0:
        return DUPLICATE, start, end, np.int64(0), np.int64(number)
    if not has_capacity(table, number, end - start):
        return FULL, start, end, np.int64(0), np.int64(number)
    insert_word(table, number, text, start, end, mixed, slot)
    return BLOCK_ENDS, start, end, np.int64(0), np.int64(number)


@numba.njit(nogil=True, cache=True)
def _read_words(
    text: ByteArray, place: int, order: int, table: WordHashTable, ids: IntArray, trie: PrefixTrie
) -> tuple[int, int, int, Int, Int]:
    """The words of one n-gram.

    Returns:
        `BLOCK_ENDS` or what is wrong; the start and the end of the last field looked at; the
        node of all words but the last, and the last.
    """
    node, word, start, end = np.int64(0), np.int64(0), place, place
    for position in range(order):
        start = _field_start(text, end)
        if text[start] == _LINE_END:
            return TOO_FEW_WORDS, start, start, node, word
        end, hashed = _hash_field(text, start)
        number, _, _ = find_word(table, text, start, end, hashed)
        if number < 0:
            return UNKNOWN_WORD, start, end, node, word
        if position == 1:
            node = word
        elif position > 1:
            child = _find_child(trie, node, word)
            if child < 0:
                return NO_PREFIX, start, end, node, word
            node = child
        word = np.int64(ids[number])
    return BLOCK_ENDS, start, end, node, word


@numba.njit(nogil=True, cache=True)
def _find_child(trie: PrefixTrie, node: Int, word: Int) -> Int:
    """The node that continues another by a word, found by bisection; or −1."""
    begin, end = trie.first_children[node], trie.first_children[node + 1]
    last = end
    while begin < end:
        middle = (begin + end) >> 1
        if trie.words[middle] < word:
            begin = middle + 1
        else:
            end = middle
    return begin + trie.vocab_size if begin < last and trie.words[begin] == word else np.int64(-1)


@numba.njit(nogil=True, cache=True)
def _read_backoff(
    text: ByteArray, place: int, row: int, hard: npt.NDArray[np.int64], num_hard: int
) -> tuple[int, np.float32, int, int]:
    """What follows the words of a line: a back-off weight, or nothing.

    Returns:
        The place of the next field or line end; the weight; hard numbers; 1 if there is no weight.
    """
    start = _field_start(text, place)
    if text[start] == _LINE_END:
        return start, np.float32(0.0), num_hard, 1
    end = _field_end(text, start)
    backoff, num_hard = _read_weight(text, start, end, row, BACKOFF, hard, num_hard)
    return _field_start(text, end), backoff, num_hard, 0


@numba.njit(nogil=True, cache=True)
def _read_weight(
    text: ByteArray,
    start: int,
    end: int,
    row: int,
    column: int,
    hard: npt.NDArray[np.int64],
    num_hard: int,
) -> tuple[np.float32, int]:
    """A number, or 0 if Python has to read it, which is written down; how many of those there are."""
    easy, value = read_number(text, start, end)
    if easy and not np.isinf(value):  # Python says whether an infinity is allowed
        return value, num_hard
    hard[num_hard, 0], hard[num_hard, 1] = row, column
    hard[num_hard, 2], hard[num_hard, 3] = start, end
    return np.float32(0.0), num_hard + 1


@numba.njit(nogil=True, cache=True)
def _field_start(text: ByteArray, place: int) -> int:
    """The next byte that is no blank; a block ends with a line end, so there is one."""
    while _BYTE_KINDS[text[place]] == _BLANK:
        place += 1
    return place


@numba.njit(nogil=True, cache=True)
def _field_end(text: ByteArray, place: int) -> int:
    """The place after a field that starts here."""
    while _BYTE_KINDS[text[place]] == _ORDINARY:
        place += 1
    return place


@numba.njit(nogil=True, cache=True)
def _hash_field(text: ByteArray, place: int) -> tuple[int, np.uint64]:
    """The place after a field that starts here, and its hash."""
    value = HASH_SEED
    while _BYTE_KINDS[text[place]] == _ORDINARY:
        value = (value ^ np.uint64(text[place])) * HASH_PRIME
        place += 1
    return place, value
