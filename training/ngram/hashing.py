"""Word n-grams of raw text as 64-bit hashes, and sets of such hashes.

Case is folded by the caller; punctuation is skipped, and so are words that are nothing else, so
that a tokenised text and its original have the same n-grams. Two different n-grams share a hash
with a chance of 2⁻⁶⁴.
"""

from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.word_kernels import HASH_PRIME, HASH_SEED, wide_space_length

Hashes: TypeAlias = npt.NDArray[np.uint64]
Offsets: TypeAlias = npt.NDArray[np.int64]

_NEWLINE = 10
_SPACE, _PERHAPS_SPACE, _PUNCTUATION, _PERHAPS_PUNCTUATION = 1, 2, 3, 4
_KINDS = np.zeros(256, dtype=np.uint8)
_KINDS[[*range(0x21, 0x30), *range(0x3A, 0x41), *range(0x5B, 0x61), *range(0x7B, 0x7F)]] = _PUNCTUATION
_KINDS[[*range(0x09, 0x0E), *range(0x1C, 0x21)]] = _SPACE
_KINDS[[0xC2, 0xE1, 0xE3]] = _PERHAPS_SPACE
_KINDS[0xE2] = _PERHAPS_PUNCTUATION  # U+2010 to U+2027: dashes, curly quotes, dots; else perhaps white space

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


def hashed_words(text: str) -> tuple[Hashes, Offsets]:
    r"""The words of lines, "\n" between them, as hashes [N], and where each line starts, N at the end [L + 1]."""
    raw = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    hashes = np.empty(len(raw) // 2 + 1, dtype=np.uint64)
    offsets = np.zeros(int(np.count_nonzero(raw == _NEWLINE)) + 2, dtype=np.int64)
    count = _hash_words(raw, hashes, offsets)
    return hashes[:count], offsets


def hashed_ngrams(words: Hashes, offsets: Offsets, n: int) -> Hashes:
    """All runs of n words inside a line, in order [M]."""
    out = np.empty(int(np.maximum(np.diff(offsets) - n + 1, 0).sum()), dtype=np.uint64)
    _hash_ngrams(words, offsets, n, out)
    return out


def hashed_lines(words: Hashes, offsets: Offsets, least: int) -> Hashes:
    """All lines of at least so many words, in order [M]."""
    out = np.empty(int(np.count_nonzero(np.diff(offsets) >= least)), dtype=np.uint64)
    _hash_lines(words, offsets, least, out)
    return out


class HashSet:
    """A fixed set of hashes that remembers which of them it has met since.

    Args:
        hashes: its members [M]; they may repeat.
    """

    def __init__(self, hashes: Hashes) -> None:
        slots = 1 << max(4, int(2 * len(hashes)).bit_length())
        self._keys = np.zeros(slots, dtype=np.uint64)
        self._met = np.zeros(slots, dtype=np.bool_)
        _insert(self._keys, hashes)

    def mark_seen(self, hashes: Hashes) -> None:
        """Remember those that are members; others are ignored."""
        _mark_seen(self._keys, self._met, hashes)

    def num_seen(self, hashes: Hashes) -> int:
        """How many of some members have been met, one that repeats as often as it stands there."""
        return int(_count_seen(self._keys, self._met, hashes))


@numba.njit(nogil=True, cache=True)
def _hash_words(text: npt.NDArray[np.uint8], hashes: Hashes, offsets: Offsets) -> int:
    place, line, count, length = 0, 0, 0, 0
    value = HASH_SEED
    while place <= len(text):
        width = 1  # of white space; the end of the text is some
        byte = text[place] if place < len(text) else _NEWLINE
        kind = _KINDS[byte]
        if kind in {_PERHAPS_SPACE, _PERHAPS_PUNCTUATION}:
            width = wide_space_length(text, place)
            kind = _SPACE if width > 0 else 0
            if kind == 0 and byte == 0xE2 and _is_multibyte_punctuation(text, place):
                place += 3
                continue
        if kind == _PUNCTUATION:
            place += 1
            continue
        if kind != _SPACE:
            value = (value ^ np.uint64(byte)) * HASH_PRIME
            length += 1
            place += 1
            continue
        if length > 0:
            hashes[count] = _mix_hash(value)
            count += 1
            value, length = HASH_SEED, 0
        if byte == _NEWLINE:
            line += 1
            offsets[line] = count
        place += width
    return count


@numba.njit(nogil=True, cache=True)
def _is_multibyte_punctuation(text: npt.NDArray[np.uint8], place: int) -> bool:
    return place + 2 < len(text) and text[place + 1] == 0x80 and 0x90 <= text[place + 2] <= 0xA7


@numba.njit(nogil=True, cache=True, inline="always")
def _mix_hash(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _HALF)) * _MIX
    return value ^ (value >> _HALF)


@numba.njit(nogil=True, cache=True)
def _hash_ngrams(words: Hashes, offsets: Offsets, n: int, out: Hashes) -> None:
    leaving = _ONE  # the weight of the word that falls out
    for _ in range(n):
        leaving *= _STEP
    count = 0
    for line in range(len(offsets) - 1):
        value = np.uint64(0)
        for i in range(offsets[line], offsets[line + 1]):
            value = value * _STEP + words[i]
            past = i - n
            if past >= offsets[line]:
                value -= words[past] * leaving
            if past + 1 >= offsets[line]:
                out[count] = value
                count += 1


@numba.njit(nogil=True, cache=True)
def _hash_lines(words: Hashes, offsets: Offsets, least: int, out: Hashes) -> None:
    count = 0
    for line in range(len(offsets) - 1):
        length = offsets[line + 1] - offsets[line]
        if length >= least:
            value = np.uint64(length)
            for i in range(offsets[line], offsets[line + 1]):
                value = value * _STEP + words[i]
            out[count] = value
            count += 1


@numba.njit(nogil=True, cache=True, inline="always")
def _slot_of(keys: Hashes, key: np.uint64) -> np.int64:
    """Where the key is, or could be entered."""
    mask = len(keys) - 1
    slot = np.int64(_mix_hash(key)) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@numba.njit(nogil=True, cache=True)
def _insert(keys: Hashes, hashes: Hashes) -> None:
    for hashed in hashes:
        key = max(hashed, _ONE)  # 0 is a free slot
        keys[_slot_of(keys, key)] = key


@numba.njit(nogil=True, cache=True)
def _mark_seen(keys: Hashes, met: npt.NDArray[np.bool_], hashes: Hashes) -> None:
    for hashed in hashes:
        key = max(hashed, _ONE)
        slot = _slot_of(keys, key)
        if keys[slot] == key:
            met[slot] = True


@numba.njit(nogil=True, cache=True)
def _count_seen(keys: Hashes, met: npt.NDArray[np.bool_], hashes: Hashes) -> int:
    count = 0
    for hashed in hashes:
        count += met[_slot_of(keys, max(hashed, _ONE))]
    return count
