"""Compiled word splitting, counting and encoding of UTF-8 text, and the hash table of its words.

The table uses open addressing over a 64-bit hash. A slot holds the upper half of a word's hash and
the word's number plus one, or 0 if it is free. Words are compared byte by byte, so look-ups are
exact whatever the hash. `WordTable` owns the arrays and grows them. The kernels release the
interpreter lock.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

ByteArray: TypeAlias = npt.NDArray[np.uint8]

HASH_SEED = np.uint64(0xCBF29CE484222325)  # FNV-1a's
HASH_PRIME = np.uint64(0x100000001B3)
_HASH_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_TAG = np.uint64(0xFFFFFFFF00000000)
_NEWLINE = 10

_SPACE, _MAYBE_SPACE = 1, 2
_BYTE_KINDS = np.zeros(256, dtype=np.uint8)
"""Of each byte: 0, part of a word; or white space; or the first of a character that may be white space."""
_BYTE_KINDS[[*range(0x09, 0x0E), *range(0x1C, 0x21)]] = _SPACE
_BYTE_KINDS[[0xC2, 0xE1, 0xE2, 0xE3]] = _MAYBE_SPACE


class WordHashTable(NamedTuple):
    """W words and where to find them; the arrays may have room for more.

    Attributes:
        slots: hash and number [S], uint64; S is a power of two.
        starts: where each word's bytes start, and the end of the last [S / 2 + 1], int64.
        spelling: the words one after the other, uint8.
    """

    slots: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    spelling: ByteArray


@numba.njit(nogil=True, cache=True)
def wide_space_length(text: ByteArray, place: int) -> int:
    """How many bytes the white space beyond ASCII has that starts here, as `str.isspace` knows it; else 0."""
    first, left = text[place], len(text) - place
    if first == 0xC2:  # U+0085, U+00A0
        return 2 if left > 1 and (text[place + 1] == 0x85 or text[place + 1] == 0xA0) else 0
    if left < 3:
        return 0
    second, third = text[place + 1], text[place + 2]
    if first == 0xE1:  # U+1680
        return 3 if second == 0x9A and third == 0x80 else 0
    if first == 0xE3:  # U+3000
        return 3 if second == 0x80 and third == 0x80 else 0
    if second == 0x80:  # U+2000 to U+200A, U+2028, U+2029, U+202F
        return 3 if 0x80 <= third <= 0x8A or 0xA8 <= third <= 0xA9 or third == 0xAF else 0
    return 3 if second == 0x81 and third == 0x9F else 0  # U+205F


@numba.njit(nogil=True, cache=True)
def _space_length(text: ByteArray, place: int) -> int:
    """How many bytes the white space has that starts here; else 0."""
    kind = _BYTE_KINDS[text[place]]
    if kind == _MAYBE_SPACE:
        return wide_space_length(text, place)
    return 1 if kind == _SPACE else 0


@numba.njit(nogil=True, cache=True)
def _hash_word(text: ByteArray, start: int) -> tuple[int, np.uint64]:
    """Where the word that starts here ends, and its hash before mixing."""
    value, place = HASH_SEED, start
    while place < len(text):
        byte = text[place]
        kind = _BYTE_KINDS[byte]
        if kind != 0 and (kind == _SPACE or wide_space_length(text, place) > 0):
            break
        value = (value ^ np.uint64(byte)) * HASH_PRIME
        place += 1
    return place, value


@numba.njit(nogil=True, cache=True)
def hash_bytes(text: ByteArray, start: int, end: int) -> np.uint64:
    """The hash of some bytes, before mixing."""
    value = HASH_SEED
    for place in range(start, end):
        value = (value ^ np.uint64(text[place])) * HASH_PRIME
    return value


@numba.njit(nogil=True, cache=True)
def _mix_hash(hashed: np.uint64) -> np.uint64:
    """The hash with all its bits stirred: slots are told by the lowest, words in them by the upper half."""
    mixed = (hashed ^ (hashed >> _HALF)) * _HASH_MIX
    return mixed ^ (mixed >> _HALF)


@numba.njit(nogil=True, cache=True)
def find_word(
    table: WordHashTable, text: ByteArray, start: int, end: int, hashed: np.uint64
) -> tuple[np.int64, np.uint64, np.int64]:
    """The number of a word given by its bytes and hash.

    Returns:
        The number or −1; the mixed hash; the slot where the word is, or could be entered.
    """
    mixed = _mix_hash(hashed)
    mask = len(table.slots) - 1
    slot = np.int64(mixed) & mask
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


@numba.njit(nogil=True, cache=True)
def insert_word(
    table: WordHashTable, number: int, text: ByteArray, start: int, end: int, mixed: np.uint64, slot: np.int64
) -> None:
    """Add a word that `find` did not find, as the next number; the arrays have room for it."""
    begin = table.starts[number]
    for offset in range(end - start):
        table.spelling[begin + offset] = text[start + offset]
    table.starts[number + 1] = begin + end - start
    table.slots[slot] = (mixed & _TAG) | np.uint64(number + 1)


@numba.njit(nogil=True, cache=True)
def find_or_insert_word(table: WordHashTable, num_words: int, word: ByteArray) -> int:
    """The number of a word, which is entered as the next if it is new; the arrays have room for it."""
    number, mixed, slot = find_word(table, word, 0, len(word), hash_bytes(word, 0, len(word)))
    if number < 0:
        insert_word(table, num_words, word, 0, len(word), mixed, slot)
        return num_words
    return int(number)


@numba.njit(nogil=True, cache=True)
def fill_slots(table: WordHashTable, num_words: int) -> None:
    """Enter the first words of a table into its slots, which are all free."""
    mask = len(table.slots) - 1
    for number in range(num_words):
        mixed = _mix_hash(hash_bytes(table.spelling, table.starts[number], table.starts[number + 1]))
        slot = np.int64(mixed) & mask
        while table.slots[slot] != 0:
            slot = (slot + 1) & mask
        table.slots[slot] = (mixed & _TAG) | np.uint64(number + 1)


@numba.njit(nogil=True, cache=True)
def encode_lines(
    text: ByteArray,
    table: WordHashTable,
    ids: npt.NDArray[np.int32],
    unknown: int,
    out: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
) -> None:
    r"""The ids of all words of lines that are joined by "\n".

    Args:
        text: the lines.
        table: the words that have ids.
        ids: the id of each [W].
        unknown: the id of every other word.
        out: room for the ids: half of the bytes, rounded up.
        offsets: how many words stand before each line, and in all [L + 1].
    """
    place, line, count = 0, 0, 0
    offsets[0] = 0
    while place < len(text):
        width = _space_length(text, place)
        if width > 0:
            if text[place] == _NEWLINE:
                line += 1
                offsets[line] = count
            place += width
            continue
        end, hashed = _hash_word(text, place)
        number, _, _ = find_word(table, text, place, end, hashed)
        out[count] = ids[number] if number >= 0 else unknown
        count += 1
        place = end
    offsets[line + 1] = count


@numba.njit(nogil=True, cache=True)
def count_occurrences(
    text: ByteArray, place: int, table: WordHashTable, num_words: int, counts: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Count the words of a text from a place on, entering those not seen before.

    Stops before a word for which the table has no room.

    Returns:
        How far it came, and how many words the table holds now.
    """
    while place < len(text):
        width = _space_length(text, place)
        if width > 0:
            place += width
            continue
        end, hashed = _hash_word(text, place)
        number, mixed, slot = find_word(table, text, place, end, hashed)
        if number < 0:
            if not has_capacity(table, num_words, end - place):
                return place, num_words
            insert_word(table, num_words, text, place, end, mixed, slot)
            counts[num_words] = 1
            num_words += 1
        else:
            counts[number] += 1
        place = end
    return place, num_words


@numba.njit(nogil=True, cache=True)
def has_capacity(table: WordHashTable, num_words: int, length: int) -> bool:
    """Whether one more word of so many bytes can be entered, and half of the slots stay free."""
    return 2 * (num_words + 1) <= len(table.slots) and table.starts[num_words] + length <= len(table.spelling)


@numba.njit(nogil=True, cache=True)
def count_words_in_bytes(text: ByteArray) -> int:
    """How many words a text has: runs between white space."""
    place, count, inside = 0, 0, 0
    while place < len(text):
        kind = _BYTE_KINDS[text[place]]  # looked at here as well: a branch lets the processor read ahead
        width = 0 if kind == 0 else _space_length(text, place)
        if width > 0:
            inside = 0
            place += width
        else:
            count += 1 - inside
            inside = 1
            place += 1
    return count


_MIN_SLOTS = 1 << 10


class WordTable:
    """Distinct words, numbered from 0 as they come.

    Args:
        words: to start with, each once.

    Attributes:
        table: the arrays, with room for more words; other ones after `grow`.
        size: how many words are in them.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        spelt = [encode_utf8(word) for word in words]
        self.size = len(spelt)
        starts = np.zeros(self.size + 1, dtype=np.int64)
        np.cumsum([len(word) for word in spelt], out=starts[1:])
        spelling = np.frombuffer(bytearray(b"".join(spelt)), dtype=np.uint8)
        self.table = WordHashTable(np.zeros(0, np.uint64), starts, spelling)
        self._rebuild(self.size)

    @property
    def capacity(self) -> int:
        """How many words there is room for."""
        return len(self.table.starts) - 1

    def grow(self, num_bytes: int) -> None:
        """Make room for another word of up to so many bytes, and for many more like it."""
        if self.size == self.capacity:
            self._rebuild(2 * self.capacity)
        used, room = int(self.table.starts[self.size]), len(self.table.spelling)
        if used + num_bytes > room:
            spelling = np.zeros(max(2 * room, used + num_bytes), dtype=np.uint8)
            spelling[:used] = self.table.spelling[:used]
            self.table = self.table._replace(spelling=spelling)

    def add(self, word: bytes) -> int:
        """The number of a word, which is entered if it is new."""
        text = np.frombuffer(word, dtype=np.uint8)
        self.grow(len(text))
        number: int = find_or_insert_word(self.table, self.size, text)
        self.size = max(self.size, number + 1)
        return number

    def all_words(self) -> list[bytes]:
        """The words, by number."""
        ends = self.table.starts[: self.size + 1].tolist()
        whole = self.table.spelling[: ends[-1]].tobytes()
        return [whole[begin:end] for begin, end in pairwise(ends)]

    def _rebuild(self, num_words: int) -> None:
        slots = _MIN_SLOTS
        while slots < 2 * num_words:
            slots *= 2
        starts = np.zeros(slots // 2 + 1, dtype=np.int64)
        starts[: self.size + 1] = self.table.starts[: self.size + 1]
        self.table = WordHashTable(np.zeros(slots, np.uint64), starts, self.table.spelling)
        fill_slots(self.table, self.size)


def encode_utf8(text: str) -> bytes:
    """A text in UTF-8; half a surrogate pair, which is no character, keeps its number."""
    return text.encode("utf-8", "surrogatepass")
