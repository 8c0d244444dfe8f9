"""Compiled parsing of ARPA files: n-gram lines, decimals, lexicographic sorting.

A kernel converts a block of bytes to arrays of n-grams. If it cannot continue, it returns a code and
an offset: the lines before it are consumed, and the caller may grow the arrays and call again from
there.

Conversion between decimals and single precision is exact in both directions. Double
precision, with an error of a few units in the last place, suffices if the whole error range rounds
to one float. Otherwise, about once in ten million decimals, exact arithmetic in Python decides.
"""

import math
import re
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np

from models.arrays import Float32s, Int32s, Int64s, UInt8s, UInt32s
from models.kernels.compilation import kernel
from models.ngram.build import count_smaller_keys, sort_by_key
from models.ngram.scoring import U, find_arc
from models.word_kernels import HASH_PRIME, HASH_SEED, WordHashTable, find_word, has_capacity, insert_word

Int: TypeAlias = Any  # kernels treat Python and NumPy integers alike as int64

MAX_NUMBER_BYTES = 32
"""Maximum length of a decimal from `write_number`, with a margin."""

_POWERS = np.array([float(f"1e{exponent}") for exponent in range(64)])
_MARGIN = 2.0**-49
_MOST_DIGITS = 19  # decimal digits that fit into 64 bits
_MAX_NUMBER_LENGTH = 400  # characters; a longer field is not a number

_DECIMAL = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NAMED_NUMBERS = {b"inf": math.inf, b"infinity": math.inf, b"nan": math.nan}

_MOST_ZEROS = 6  # numbers further from 1 are written with an exponent

# bytes
_INF = (np.uint8(ord("i")), np.uint8(ord("n")), np.uint8(ord("f")))
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E, _SMALL_E = (np.uint8(c) for c in b"-+.09Ee")

# reasons why a kernel stops; codes above FULL are errors
BLOCK_ENDS, SECTION_ENDS, FULL = 0, 1, 2
TOO_FEW_WORDS, TOO_MANY_FIELDS, UNKNOWN_WORD, DUPLICATE, POSITIVE_LOG_PROB = 3, 4, 5, 6, 7

PROB, BACKOFF = 0, 1
MAX_LOG_PROB = 1e-6
"""Log-probabilities from 0 to this value are rounding errors."""

_ORDINARY, _BLANK, _END_OF_LINE = 0, 1, 2
_BYTE_KINDS = np.zeros(256, np.uint8)
"""Kind of each byte: part of a field, between fields, or end of a line."""
_BYTE_KINDS[list(b" \t\r")] = _BLANK
_BYTE_KINDS[ord("\n")] = _END_OF_LINE
_LINE_END, _BACKSLASH = ord("\n"), ord("\\")

ListedArcs: TypeAlias = tuple[Int64s, UInt32s, Int32s]
"""Arcs of the lower orders, to look up prefixes: the result of `number_arcs`."""


@numba.njit(nogil=True)
def read_number(text: UInt8s, start: int, end: int) -> tuple[bool, np.float32]:
    """Return True and the float nearest to a decimal; False if only `nearest_float` can."""
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


@numba.njit(nogil=True)
def _read_digits(text: UInt8s, offset: int, end: int) -> tuple[np.uint64, Int, int]:
    """Read digits with an optional decimal point.

    Digits past the nineteenth are dropped: they change the value by less than the margin.

    Returns:
        An integer, the power of ten of its unit, and the offset after the digits; −1 if there are none.
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


@numba.njit(nogil=True)
def _read_exponent(text: UInt8s, start: int, end: int) -> tuple[Int, bool]:
    """Read "e" and up to three digits; return the integer, and True if the syntax is valid."""
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
    """Return the float nearest to a decimal, infinity or NaN; None if the field is not a number."""
    if len(field) > _MAX_NUMBER_LENGTH:
        return None
    if not _DECIMAL.fullmatch(field):
        sign, name = (field[:1], field[1:]) if field[:1] in {b"+", b"-"} else (b"", field)
        value = _NAMED_NUMBERS.get(name.lower())
        return None if value is None else np.float32(-value if sign == b"-" else value)
    about = float(field)
    if about == 0 or not 1e-46 < abs(about) < 3.5e38:
        return np.float32(math.copysign(0.0 if abs(about) < 1 else math.inf, about))
    exact = Fraction(field.decode())
    with np.errstate(over="ignore", under="ignore"):
        first = np.float32(about)
        beside: list[np.float32] = [np.nextafter(first, np.float32(end)) for end in (-np.inf, np.inf)]

    def distance(value: np.float32) -> tuple[Fraction, int]:
        # infinity stands for 2^128, the next value after the largest float
        known = Fraction(float(value)) if np.isfinite(value) else Fraction(2**128) * int(np.sign(value))
        return abs(exact - known), int(value.view(np.int32)) & 1  # ties round to even

    return min(first, *beside, key=distance)


@numba.njit(nogil=True)
def write_number(value: np.float32, out: UInt8s, offset: int) -> int:
    """Write the shortest decimal of six or more digits that reads as this float.

    Returns:
        The offset after the decimal.
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


@numba.njit(nogil=True)
def _shortest(value: np.float32) -> tuple[Int, Int]:
    """Return an integer and a power of ten whose product reads as a float above 0."""
    size = np.float64(value)
    digits, shift = np.int64(0), np.int64(0)
    first = np.int64(math.floor(math.log10(size)))
    for count in range(6, 18):  # nine suffice; more if the margin leaves it undecided
        shift = count - 1 - first
        digits = np.int64(np.rint(size * _POWERS[shift] if shift >= 0 else size / _POWERS[-shift]))
        about = digits / _POWERS[shift] if shift >= 0 else digits * _POWERS[-shift]
        if np.float32(about * (1 - _MARGIN)) == value and np.float32(about * (1 + _MARGIN)) == value:
            break
    while digits % 10 == 0:
        digits //= 10
        shift -= 1
    return digits, -shift


@numba.njit(nogil=True)
def _num_digits(number: Int) -> int:
    """Number of decimal digits of a non-negative integer."""
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@numba.njit(nogil=True)
def _write_fixed(digits: Int, length: int, scale: Int, out: UInt8s, offset: int) -> int:
    """Write an integer of `length` digits times 10^`scale`."""
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


class NGramRows(NamedTuple):
    """N-grams of one section in file order; the arrays have capacity for more.

    Attributes:
        prefixes: index of the prefix (all but the last word) among the n-grams one shorter, int32; −1 − k
            for the k-th unlisted prefix.
        words: id of the last word, int32.
        log10_probs: float32.
        log10_backoffs: float32; 0 if the line has none.
        lines: line number in the file, int64.
    """

    prefixes: Int32s
    words: Int32s
    log10_probs: Float32s
    log10_backoffs: Float32s
    lines: Int64s


class ParseStop(NamedTuple):
    """Position and reason of a kernel's stop.

    Attributes:
        code: reason.
        field: offset of the field in question.
        offset: start of the first unconsumed line.
        line: number of that line.
        filled: number of filled rows.
        num_hard: number of fields that Python must convert.
        missing: number of new n-grams without a back-off weight.
        num_unlisted: number of filled rows of unlisted prefixes.
    """

    code: int
    field: int
    offset: int
    line: int
    filled: int
    num_hard: int
    missing: int
    num_unlisted: int


@kernel()
def read_ngrams(
    text: UInt8s,
    offset: int,
    line: int,
    rows: NGramRows,
    count: int,
    order: int,
    table: WordHashTable,
    ids: Int32s,
    listed: ListedArcs,
    hard: Int64s,
    unlisted: Int32s,
    num_unlisted: int,
) -> ParseStop:
    """Read lines of n-grams of one order; the word of a unigram in row i gets the number i.

    Args:
        text: complete lines.
        offset: start offset in the text.
        line: line number at that offset.
        rows: written from `count` on.
        count: number of rows filled already.
        order: words in an n-gram.
        table: words of all unigrams; for unigrams, of the filled rows.
        ids: id of each word of the table; not read for unigrams.
        listed: the lower orders; not read for unigrams.
        hard: written, fields that Python must convert: the row, `PROB` or `BACKOFF`, start
            and end [H, 4].
        unlisted: written from `num_unlisted` on, word ids of unlisted prefixes [K, order - 1].
        num_unlisted: number of these rows filled already.
    """
    code, field, num_hard, missing = BLOCK_ENDS, offset, 0, 0
    order_starts, first_arcs, arc_words = listed
    first_prefix = np.int64(order_starts[order - 2]) if order > 1 else np.int64(0)
    while offset < len(text):
        field = _field_start(text, offset)
        if text[field] == _LINE_END:
            offset = field + 1
            line += 1
            continue
        if text[field] == _BACKSLASH:
            code = SECTION_ENDS
            break
        if count == len(rows.words) or num_hard + 2 > len(hard) or num_unlisted == len(unlisted):
            code = FULL
            break
        end = _field_end(text, field)
        prob, num_hard = _read_weight(text, field, end, count, PROB, hard, num_hard)
        if prob > MAX_LOG_PROB:
            code = POSITIVE_LOG_PROB
            break
        if order == 1:
            code, field, end, prefix, word = _read_new_word(text, end, count, table)
        else:
            code, field, end, prefix, word = _read_words(
                text, end, order, table, ids, first_arcs, arc_words, unlisted[num_unlisted]
            )
        if code != BLOCK_ENDS:
            break
        field, backoff, lacking = _field_start(text, end), np.float32(0.0), 1
        if text[field] != _LINE_END:
            end = _field_end(text, field)
            backoff, num_hard = _read_weight(text, field, end, count, BACKOFF, hard, num_hard)
            field, lacking = _field_start(text, end), 0
        if text[field] != _LINE_END:
            code = TOO_MANY_FIELDS
            break
        rows.prefixes[count] = prefix - first_prefix if prefix >= 0 else -1 - num_unlisted
        num_unlisted += prefix < 0
        rows.words[count] = word
        rows.log10_probs[count] = prob
        rows.log10_backoffs[count] = backoff
        rows.lines[count] = line
        missing += lacking
        count += 1
        line += 1
        offset = field + 1
    return ParseStop(code, field, offset, line, count, num_hard, missing, num_unlisted)


@numba.njit(nogil=True)
def _read_new_word(
    text: UInt8s, offset: int, number: int, table: WordHashTable
) -> tuple[int, int, int, Int, Int]:
    """Read the word of a unigram and add it to the table; return as `_read_words`."""
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


@numba.njit(nogil=True)
def _read_words(
    text: UInt8s,
    offset: int,
    order: int,
    table: WordHashTable,
    ids: Int32s,
    first_arcs: UInt32s,
    words: Int32s,
    prefix: Int32s,
) -> tuple[int, int, int, Int, Int]:
    """Read the words of one n-gram, and write the ids of its prefix.

    Returns:
        `BLOCK_ENDS` or an error code; start and end of the last field read; the arc of the
        prefix, −1 if it is not listed; the last word.
    """
    # signed: with an unsigned arc, the kernel takes 1.5 times as long
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
        elif position > 1 and node >= 0:
            first, last = first_arcs[node + 1], first_arcs[node + 2]
            arc = find_arc(words, U(first), U(last), word)
            node = np.int64(arc) if arc != U(len(words)) else np.int64(-1)
        word = np.int64(ids[number])
        if position < order - 1:
            prefix[position] = word
    return BLOCK_ENDS, start, end, node, word


@numba.njit(nogil=True)
def _read_weight(
    text: UInt8s, start: int, end: int, row: int, column: int, hard: Int64s, num_hard: int
) -> tuple[np.float32, int]:
    """Return a number and `num_hard`; one that Python must convert is 0 and recorded in `hard`."""
    easy, value = read_number(text, start, end)
    if easy and not np.isinf(value):  # Python checks if infinity is allowed
        return value, num_hard
    hard[num_hard, 0], hard[num_hard, 1] = row, column
    hard[num_hard, 2], hard[num_hard, 3] = start, end
    return np.float32(0.0), num_hard + 1


@numba.njit(nogil=True)
def _field_start(text: UInt8s, offset: int) -> int:
    """Return the offset of the next non-blank byte; it exists, as a block ends with a line end."""
    while _BYTE_KINDS[text[offset]] == _BLANK:
        offset += 1
    return offset


@numba.njit(nogil=True)
def _field_end(text: UInt8s, offset: int) -> int:
    """Return the end of the field that starts at `offset`."""
    while _BYTE_KINDS[text[offset]] == _ORDINARY:
        offset += 1
    return offset


@numba.njit(nogil=True)
def _hash_field(text: UInt8s, offset: int) -> tuple[int, np.uint64]:
    """Return the end of the field that starts at `offset`, and its hash."""
    value = HASH_SEED
    while _BYTE_KINDS[text[offset]] == _ORDINARY:
        value = (value ^ np.uint64(text[offset])) * HASH_PRIME
        offset += 1
    return offset, value


def sort_rows(prefixes: Int32s, words: Int32s, *, num_prefixes: int, vocab_size: int) -> Int32s:
    """Return row numbers [n] in order of prefix, then last word [n]."""
    rows, by_word = np.arange(len(words), dtype=np.int32), np.empty_like(words)
    sort_by_key(words, rows, count_smaller_keys(words, rows, vocab_size), by_word)
    sort_by_key(prefixes, by_word, count_smaller_keys(prefixes, rows, num_prefixes), rows)
    return rows


@kernel()
def first_out_of_order(prefixes: Int32s, words: Int32s) -> int:
    """Return the first row that does not follow its predecessor in order; n if all do."""
    for row in range(1, len(words)):
        if prefixes[row] < prefixes[row - 1] or (
            prefixes[row] == prefixes[row - 1] and words[row] <= words[row - 1]
        ):
            return row
    return len(words)
