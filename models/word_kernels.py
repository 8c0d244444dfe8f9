"""Compiled splitting, counting and encoding of UTF-8 words, and their hash table.

The table uses open addressing by a 64-bit hash. A slot holds the upper half of a word's hash and
the word's number plus one, or 0 if it is free. Words are compared byte by byte, so lookups are
exact even if hashes collide. The kernels release the interpreter lock.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import Int32s, Int64s, UInt8s, UInt64s
from models.kernels.compilation import kernel, tuple_type

HASH_SEED = np.uint64(0xCBF29CE484222325)  # FNV-1a
HASH_PRIME = np.uint64(0x100000001B3)
_HASH_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_TAG = np.uint64(0xFFFFFFFF00000000)
_NEWLINE = 10

ASCII_SPACES = np.zeros(256, np.bool_)
"""Whether each byte is white space, not part of a word."""
ASCII_SPACES[list(b" \t\r\n\f\v")] = True

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
"""Type of a text that a kernel reads."""

_INTS = types.int32[::1]
_PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]  # numba ships no annotations

_MIN_SLOTS = 1 << 10


class WordHashTable(NamedTuple):
    """Hash table of W words; the arrays may have capacity for more.

    Attributes:
        slots: hash and number [S], uint64; S is a power of two.
        starts: offset of each word's bytes, then the end of the last [S / 2 + 1], int64.
        spelling: bytes of all words, uint8.
    """

    slots: UInt64s
    starts: Int64s
    spelling: UInt8s


WORD_TABLE_TYPE = tuple_type(WordHashTable, types.uint64[::1], types.int64[::1], types.uint8[::1])


@numba.njit(nogil=True)
def _hash_word(text: UInt8s, start: int) -> tuple[int, np.uint64]:
    """Return the end of the word that begins at `start`, and its hash before mixing."""
    value, at = HASH_SEED, start
    while at < len(text) and not ASCII_SPACES[text[at]]:
        value = (value ^ np.uint64(text[at])) * HASH_PRIME
        at += 1
    return at, value


@numba.njit(nogil=True)
def hash_bytes(text: UInt8s, start: int, end: int) -> np.uint64:
    """Hash a range of bytes, before mixing."""
    value = HASH_SEED
    for position in range(start, end):
        value = (value ^ np.uint64(text[position])) * HASH_PRIME
    return value


@numba.njit(nogil=True)
def find_word(
    table: WordHashTable, text: UInt8s, start: int, end: int, hashed: np.uint64
) -> tuple[np.int64, np.uint64, np.int64]:
    """Look up a word by its bytes and hash.

    Returns:
        The number or −1; the mixed hash; the slot of the word, or the free slot for it.
    """
    # mix all bits: the low ones select the slot, which stores the upper half
    mixed = (hashed ^ (hashed >> _HALF)) * _HASH_MIX
    mixed ^= mixed >> _HALF
    mask = len(table.slots) - 1
    slot = np.int64(mixed) & mask
    # linear probing, at most half full
    while True:
        held = table.slots[slot]
        if held == 0:
            return np.int64(-1), mixed, slot
        if (held ^ mixed) & _TAG == 0:
            number = np.int64(held & ~_TAG) - 1
            begin = table.starts[number]
            if table.starts[number + 1] - begin == end - start:
                same = 0
                while same < end - start and table.spelling[begin + same] == text[start + same]:
                    same += 1
                if same == end - start:
                    return number, mixed, slot
        slot = (slot + 1) & mask


@numba.njit(nogil=True)
def insert_word(
    table: WordHashTable, number: int, text: UInt8s, start: int, end: int, mixed: np.uint64, slot: np.int64
) -> None:
    """Add a word not found by `find_word`, with the next number; the arrays must have capacity."""
    begin = table.starts[number]
    for offset in range(end - start):
        table.spelling[begin + offset] = text[start + offset]
    table.starts[number + 1] = begin + end - start
    table.slots[slot] = (mixed & _TAG) | np.uint64(number + 1)


@kernel(types.int64(WORD_TABLE_TYPE, types.int64, BYTES))
def find_or_insert_word(table: WordHashTable, num_words: int, word: UInt8s) -> int:
    """Return a word's number; add a new one, for which the arrays must have capacity."""
    number, mixed, slot = find_word(table, word, 0, len(word), hash_bytes(word, 0, len(word)))
    if number < 0:
        insert_word(table, num_words, word, 0, len(word), mixed, slot)
        return num_words
    return int(number)


@kernel(types.void(WORD_TABLE_TYPE, types.int64))
def fill_slots(table: WordHashTable, num_words: int) -> None:
    """Insert the first words of a table into its slots, which must all be free."""
    for number in range(num_words):
        start, end = table.starts[number], table.starts[number + 1]
        hashed = hash_bytes(table.spelling, start, end)
        _, mixed, slot = find_word(table, table.spelling, start, end, hashed)
        table.slots[slot] = (mixed & _TAG) | np.uint64(number + 1)


@kernel(types.void(BYTES, WORD_TABLE_TYPE, _INTS, types.int64, _INTS, types.int64[::1]))
def encode_lines(
    text: UInt8s, table: WordHashTable, ids: Int32s, unknown: int, out: Int32s, offsets: Int64s
) -> None:
    r"""Write the ids of all words of lines joined by "\n".

    Args:
        text: the lines.
        table: the words that have ids.
        ids: id of each word of the table [W].
        unknown: id of every other word.
        out: written; as long as half the number of bytes, rounded up.
        offsets: written, number of words before each line, then in total [L + 1].
    """
    at, line, count = 0, 0, 0
    offsets[0] = 0
    while at < len(text):
        if ASCII_SPACES[text[at]]:
            if text[at] == _NEWLINE:
                line += 1
                offsets[line] = count
            at += 1
            continue
        end, hashed = _hash_word(text, at)
        number, _, _ = find_word(table, text, at, end, hashed)
        out[count] = ids[number] if number >= 0 else unknown
        count += 1
        at = end
    offsets[line + 1] = count


@kernel(_PAIR(BYTES, types.int64, WORD_TABLE_TYPE, types.int64, types.int64[::1]))
def count_occurrences(
    text: UInt8s, position: int, table: WordHashTable, num_words: int, counts: Int64s
) -> tuple[int, int]:
    """Count the words of a text from a position on, and add new words to the table.

    Stops before a word for which the table has no capacity.

    Returns:
        The position reached, and the number of words in the table.
    """
    while position < len(text):
        if ASCII_SPACES[text[position]]:
            position += 1
            continue
        end, hashed = _hash_word(text, position)
        number, mixed, slot = find_word(table, text, position, end, hashed)
        if number < 0:
            if not has_capacity(table, num_words, end - position):
                return position, num_words
            insert_word(table, num_words, text, position, end, mixed, slot)
            counts[num_words] = 1
            num_words += 1
        else:
            counts[number] += 1
        position = end
    return position, num_words


@numba.njit(nogil=True)
def has_capacity(table: WordHashTable, num_words: int, length: int) -> bool:
    """True if another word of `length` bytes fits, with half of the slots free."""
    return 2 * (num_words + 1) <= len(table.slots) and table.starts[num_words] + length <= len(table.spelling)


class WordTable:
    """Distinct words, numbered from 0 in order of insertion.

    Args:
        words: initial words, without duplicates.

    Attributes:
        table: the arrays, with capacity for more words; replaced by `grow`.
        size: number of words in the table.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        encoded = [word.encode("utf-8", "surrogatepass") for word in words]
        self.size = len(encoded)
        starts = np.zeros(self.size + 1, np.int64)
        np.cumsum([len(word) for word in encoded], out=starts[1:])
        spelling = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
        self.table = WordHashTable(np.zeros(0, np.uint64), starts, spelling)
        self._rebuild(self.size)

    @property
    def capacity(self) -> int:
        """Number of words that fit without growing."""
        return len(self.table.starts) - 1

    def grow(self, num_bytes: int) -> None:
        """Ensure capacity for a word of `num_bytes`; arrays at least double to grow."""
        if self.size == self.capacity:
            self._rebuild(2 * self.capacity)
        used, capacity = int(self.table.starts[self.size]), len(self.table.spelling)
        if used + num_bytes > capacity:
            spelling = np.zeros(max(2 * capacity, used + num_bytes), np.uint8)
            spelling[:used] = self.table.spelling[:used]
            self.table = self.table._replace(spelling=spelling)

    def add(self, word: bytes) -> int:
        """Return the number of a word; a new word is added."""
        text = np.frombuffer(word, np.uint8)
        self.grow(len(text))
        number: int = find_or_insert_word(self.table, self.size, text)
        self.size = max(self.size, number + 1)
        return number

    def all_words(self) -> list[bytes]:
        """Return the words in order of number."""
        ends = self.table.starts[: self.size + 1].tolist()
        spelling = self.table.spelling[: ends[-1]].tobytes()
        return [spelling[begin:end] for begin, end in pairwise(ends)]

    def _rebuild(self, num_words: int) -> None:
        slots = _MIN_SLOTS
        while slots < 2 * num_words:
            slots *= 2
        starts = np.zeros(slots // 2 + 1, np.int64)
        starts[: self.size + 1] = self.table.starts[: self.size + 1]
        self.table = WordHashTable(np.zeros(slots, np.uint64), starts, self.table.spelling)
        fill_slots(self.table, self.size)
