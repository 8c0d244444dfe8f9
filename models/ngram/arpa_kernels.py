"""Compiled parsing of ARPA files: n-gram lines, decimals, lexicographic sorting.

A kernel turns a block of bytes into arrays of n-grams. Where it cannot continue, it stops and
returns a code; it has consumed the lines before the returned offset and can be called again there
once its caller has grown the arrays.

Decimals become single precision and back exactly. Both ways work in double precision with a margin:
a conversion with an error of a few units in the last place counts if that whole range rounds to one
float. Otherwise, once in some ten million decimals, exact arithmetic in Python decides.
"""

import math
import re
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.ngram.access import U, find_arc
from models.ngram.build import NGrams
from models.word_kernels import (
    HASH_PRIME,
    HASH_SEED,
    ByteArray,
    WordHashTable,
    find_word,
    has_capacity,
    insert_word,
)

Int: TypeAlias = Any  # in kernels a whole number is an int64, whether Python or NumPy made it

MAX_NUMBER_BYTES = 32
"""The longest decimal that `write_number` writes, with a margin."""

_POWERS = np.array([float(f"1e{exponent}") for exponent in range(64)])
_MARGIN = 2.0**-49
_MOST_DIGITS = 19  # of a decimal that fits 64 bits
_MAX_NUMBER_LENGTH = 400  # characters of a number: more is no number anybody wrote on purpose
_DECIMAL = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NAMED_NUMBERS = {b"inf": math.inf, b"infinity": math.inf, b"nan": math.nan}
_MOST_ZEROS = 6  # a number so far from 1 is written with an exponent
_INF = (np.uint8(ord("i")), np.uint8(ord("n")), np.uint8(ord("f")))
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E, _SMALL_E = (np.uint8(c) for c in b"-+.09Ee")


@numba.njit(nogil=True, cache=True)
def read_number(text: ByteArray, start: int, end: int) -> tuple[bool, np.float32]:
    """The float nearest to a decimal, and whether it was easy; else ask `nearest_float`."""
    negative = text[start] == _MINUS
    offset = start + 1 if negative or text[start] == _PLUS else start
    mantissa, exponent, offset = _read_digits(text, offset, end)
    good = offset > 0
    if good and offset < end:
        written, good = _read_exponent(text, offset, end)
        exponent += written
    value: Any = np.float64(mantissa)
    if mantissa > 0:
        good = good and -len(_POWERS) < exponent < len(_POWERS)
        if good:
            value = value * _POWERS[exponent] if exponent >= 0 else value / _POWERS[-exponent]
    if negative:
        value = -value
    nearest = np.float32(value * (1 - _MARGIN))
    return good and nearest == np.float32(value * (1 + _MARGIN)), nearest


@numba.njit(nogil=True, cache=True)
def _read_digits(text: ByteArray, offset: int, end: int) -> tuple[np.uint64, Int, int]:
    """Digits with perhaps a point among them: as a whole number, and a power of ten for it.

    Those past the nineteenth are dropped: they weigh less than the margin.

    Returns:
        The number, the exponent, and the offset after the digits; −1 if there is none.
    """
    mantissa, num_kept = np.uint64(0), 0
    exponent: Int = 0
    seen, fraction = False, False
    while offset < end:
        byte = text[offset]
        if _ZERO <= byte <= _NINE:
            seen = True
            if num_kept < _MOST_DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(byte - _ZERO)
                num_kept += 1 if mantissa > 0 else 0
                exponent -= fraction
            else:
                exponent += not fraction
        elif byte == _POINT and not fraction:
            fraction = True
        else:
            break
        offset += 1
    return mantissa, exponent, offset if seen else -1


@numba.njit(nogil=True, cache=True)
def _read_exponent(text: ByteArray, start: int, end: int) -> tuple[Int, bool]:
    """An "e" and a whole number of up to three digits: the number, and whether that is so."""
    offset = start + 1
    if text[start] != _E and text[start] != _SMALL_E:
        return 0, False
    negative = offset < end and text[offset] == _MINUS
    if offset < end and (negative or text[offset] == _PLUS):
        offset += 1
    if not offset < end <= offset + 3:
        return 0, False
    value: Int = 0
    while offset < end:
        if not _ZERO <= text[offset] <= _NINE:
            return 0, False
        value = value * 10 + np.int64(text[offset] - _ZERO)
        offset += 1
    return -value if negative else value, True


def nearest_float(field: bytes) -> np.float32 | None:
    """The float nearest to any decimal, infinity or NaN; None if it is no number."""
    if len(field) > _MAX_NUMBER_LENGTH:
        return None
    if not _DECIMAL.fullmatch(field):
        sign, name = (field[:1], field[1:]) if field[:1] in {b"+", b"-"} else (b"", field)
        value = _NAMED_NUMBERS.get(name.lower())
        return None if value is None else np.float32(-value if sign == b"-" else value)
    approximate = float(field)
    if approximate == 0 or not 1e-46 < abs(approximate) < 3.5e38:
        return np.float32(math.copysign(0.0 if abs(approximate) < 1 else math.inf, approximate))
    return _nearest_to(Fraction(field.decode()), approximate)


def _nearest_to(exact: Fraction, approximate: float) -> np.float32:
    """The float nearest to a fraction that is about `approximate`; of two as near, the even one."""
    with np.errstate(over="ignore", under="ignore"):
        first = np.float32(approximate)
        around = [first, *(np.nextafter(first, np.float32(end)) for end in (-np.inf, np.inf))]

    def distance(value: np.float32) -> tuple[Fraction, int]:
        # beyond the largest float lies 2^128, for which infinity stands
        known = Fraction(float(value)) if np.isfinite(value) else Fraction(2**128) * int(np.sign(value))
        return abs(exact - known), int(value.view(np.int32)) & 1

    return min(around, key=distance)


@numba.njit(nogil=True, cache=True)
def write_number(value: np.float32, out: ByteArray, offset: int) -> int:
    """Write the shortest decimal of six digits or more that reads as this float; zeros at its end go.

    Returns:
        The offset after it.
    """
    if np.signbit(value):
        out[offset] = _MINUS
        offset += 1
    if value == 0:
        out[offset] = _ZERO
        return offset + 1
    if np.isinf(value):
        out[offset], out[offset + 1], out[offset + 2] = _INF
        return offset + 3
    digits, scale = _shortest(np.float32(abs(value)))
    length = _num_digits(digits)
    if -_MOST_ZEROS <= length + scale <= _MOST_ZEROS:
        return _write_fixed(digits, length, scale, out, offset)
    offset = _write_fixed(digits, length, 1 - length, out, offset)
    out[offset] = _SMALL_E
    exponent = length + scale - 1
    if exponent < 0:
        out[offset + 1] = _MINUS
        offset += 1
    return _write_fixed(abs(exponent), _num_digits(abs(exponent)), 0, out, offset + 1)


@numba.njit(nogil=True, cache=True)
def _shortest(value: np.float32) -> tuple[Int, Int]:
    """A whole number and the power of ten that it must be multiplied with, for a float above 0."""
    size = np.float64(value)
    digits, shift = np.int64(0), np.int64(0)
    first = np.int64(math.floor(math.log10(size)))
    for count in range(6, 18):  # nine always do; more, should a conversion be in doubt
        shift = count - 1 - first
        digits = np.int64(np.rint(size * _POWERS[shift] if shift >= 0 else size / _POWERS[-shift]))
        approximate = digits / _POWERS[shift] if shift >= 0 else digits * _POWERS[-shift]
        if (
            np.float32(approximate * (1 - _MARGIN)) == value
            and np.float32(approximate * (1 + _MARGIN)) == value
        ):
            break
    while digits % 10 == 0:
        digits //= 10
        shift -= 1
    return digits, -shift


@numba.njit(nogil=True, cache=True)
def _num_digits(number: Int) -> int:
    """Return the number of decimal digits of a non-negative integer."""
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@numba.njit(nogil=True, cache=True)
def _write_fixed(digits: Int, length: int, scale: Int, out: ByteArray, offset: int) -> int:
    """Write `digits`, of which there are `length`, times ten to the power of `scale`."""
    before = max(length + scale, 1)  # digits before the point
    after = max(-scale, 0)
    end: int = offset + before + (after + 1 if after > 0 else 0)
    spot = end - 1
    for power in range(-after, before):
        if power == 0 and after > 0:
            out[spot] = _POINT
            spot -= 1
        if power < scale:
            out[spot] = _ZERO
        else:
            out[spot] = _ZERO + np.uint8(digits % 10)
            digits //= 10
        spot -= 1
    return end


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
    """The n-grams of one section as they come; the arrays have capacity for more.

    Attributes:
        prefixes: the index of all but the last word among the n-grams one shorter, int32.
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
    """Position and reason of a kernel's stop.

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
    offset: int,
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
        offset: where to start in it.
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
    code, field, num_hard, missing = BLOCK_ENDS, offset, 0, 0
    while offset < len(text):
        field = _field_start(text, offset)
        if text[field] == _LINE_END:
            offset = field + 1
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
        offset = field + 1
    return ParseStop(code, field, offset, line, count, num_hard, missing)


@numba.njit(nogil=True, cache=True)
def _read_new_word(
    text: ByteArray, offset: int, number: int, table: WordHashTable
) -> tuple[int, int, int, Int, Int]:
    """The word of a unigram, which is entered into the table; returns what `_read_words` does."""
    start = _field_start(text, offset)
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
    text: ByteArray, offset: int, order: int, table: WordHashTable, ids: IntArray, trie: PrefixTrie
) -> tuple[int, int, int, Int, Int]:
    """The words of one n-gram.

    Returns:
        `BLOCK_ENDS` or what is wrong; the start and the end of the last field looked at; the
        node of all words but the last, and the last.
    """
    node, word, start, end = np.int64(0), np.int64(0), offset, offset
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
            first, last = trie.first_children[node], trie.first_children[node + 1]
            child = find_arc(trie.words, U(first), U(last), word)
            if child == U(len(trie.words)):
                return NO_PREFIX, start, end, node, word
            node = np.int64(child) + trie.vocab_size
        word = np.int64(ids[number])
    return BLOCK_ENDS, start, end, node, word


@numba.njit(nogil=True, cache=True)
def _read_backoff(
    text: ByteArray, offset: int, row: int, hard: npt.NDArray[np.int64], num_hard: int
) -> tuple[int, np.float32, int, int]:
    """Read the optional back-off weight after the words of a line.

    Returns:
        The offset of the next field or line end; the weight; hard numbers; 1 if there is no weight.
    """
    start = _field_start(text, offset)
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
def _field_start(text: ByteArray, offset: int) -> int:
    """The next byte that is no blank; a block ends with a line end, so there is one."""
    while _BYTE_KINDS[text[offset]] == _BLANK:
        offset += 1
    return offset


@numba.njit(nogil=True, cache=True)
def _field_end(text: ByteArray, offset: int) -> int:
    """Return the offset after a field that starts here."""
    while _BYTE_KINDS[text[offset]] == _ORDINARY:
        offset += 1
    return offset


@numba.njit(nogil=True, cache=True)
def _hash_field(text: ByteArray, offset: int) -> tuple[int, np.uint64]:
    """Return the offset after a field that starts here, and its hash."""
    value = HASH_SEED
    while _BYTE_KINDS[text[offset]] == _ORDINARY:
        value = (value ^ np.uint64(text[offset])) * HASH_PRIME
        offset += 1
    return offset, value


def sort_rows(prefixes: IntArray, words: IntArray, *, num_prefixes: int, vocab_size: int) -> IntArray:
    """The rows' numbers [n] in lexicographic order of n-grams of one order, given by prefix and last word [n]."""
    by_word = _counting_sort(words, np.arange(len(words), dtype=np.int32), vocab_size)
    order: IntArray = _counting_sort(prefixes, by_word, num_prefixes)
    return order


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
def first_out_of_order(prefixes: IntArray, words: IntArray) -> int:
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
    slots = np.zeros(num_keys + 1, np.int64)  # [num_keys + 1], counts, then the next slot of each key
    for key in keys:
        slots[key + 1] += 1
    for key in range(num_keys):
        slots[key + 1] += slots[key]
    out = np.empty_like(rows)  # [n]
    for row in rows:  # in their present order, so that the sort is stable
        key = keys[row]
        out[slots[key]] = row
        slots[key] += 1
    return out
