"""Overlap of a held-out text with the training text, by 64-bit hashes of sentences and word n-grams.

Counted are the held-out text's sentences of eight words or more, and its runs of 8 and 13 words
inside a sentence (13: Brown et al. 2020, appendix C). Case and punctuation do not matter: words that
are punctuation alone are skipped, so that a tokenised text and its original have the same n-grams.
Only the held-out text's hashes are kept, some 16 to 32 bytes each; the training text is read in
blocks. Two different n-grams have the same hash with a probability of 2⁻⁶⁴.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from models.word_kernels import HASH_PRIME, HASH_SEED, wide_space_length
from training.corpus import Corpus, Sentences, StreamedCorpus, read_sentences
from training.progress import Progress

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


MIN_WORDS = 8
"""A shorter sentence may well be seen twice by chance."""

NGRAMS = (8, 13)
WARN_SENTENCES = 0.01
WARN_NGRAMS = 0.05
"""Shares of sentences, and of runs of 13 words, beyond which figures are not to be trusted."""

_BLOCK_LINES = 8192


class OverlapCount(NamedTuple):
    """What the training text has of some parts of a held-out text.

    Attributes:
        total: parts.
        seen: those that occur in the training text.
        share: seen / total; None where there is none.
    """

    total: int
    seen: int
    share: float | None


class Overlap(NamedTuple):
    """What of a held-out text occurs in the training text.

    Attributes:
        sentences: of `MIN_WORDS` words or more.
        ngrams: runs of words by their length.
    """

    sentences: OverlapCount
    ngrams: Mapping[int, OverlapCount]

    def as_facts(self) -> dict[str, Any]:
        """The figures as JSON can carry them."""
        return {
            "sentences": self.sentences._asdict(),
            "ngrams": {str(n): seen._asdict() for n, seen in self.ngrams.items()},
        }


class OverlapCounter:
    """Looks for one held-out text in a training text that comes in pieces.

    Args:
        held_out: its sentences.
    """

    def __init__(self, held_out: Sequence[str]) -> None:
        parts: list[list[Hashes]] = [list(_block_hashes(block)) for block in _blocks(held_out)]
        self._parts = [_concatenate([block[k] for block in parts]) for k in range(1 + len(NGRAMS))]
        self._sets = [HashSet(hashes) for hashes in self._parts]

    def add(self, sentences: Iterable[str], *, progress: Progress) -> None:
        """Look at some of the training text.

        Args:
            sentences: of it.
            progress: told of sentences.
        """
        for block in _blocks(sentences):
            for known, hashes in zip(self._sets, _block_hashes(block), strict=True):
                known.mark_seen(hashes)
            progress.advance(block.count("\n") + 1)

    def result(self) -> Overlap:
        """What was found so far."""
        sentences, *ngrams = map(_overlap_count, self._sets, self._parts)
        return Overlap(sentences, dict(zip(NGRAMS, ngrams, strict=True)))


def overlap(held_out: Sequence[str], training: Sentences, *, progress: Progress) -> Overlap:
    """Look for a held-out text's sentences and runs of words in a training text.

    Args:
        held_out: sentences.
        training: sentences.
        progress: told of training sentences.
    """
    counter = OverlapCounter(held_out)
    progress.start("looking for held-out text in the training text", len(training))
    counter.add(training, progress=progress)
    found = counter.result()
    progress.advance(0, overlap_phrase(found.as_facts()))
    progress.finish()
    return found


def overlaps(
    held_out: Mapping[str, Corpus | None], training: Corpus | StreamedCorpus, *, progress: Progress
) -> dict[str, dict[str, Any]]:
    """`overlap` of several texts by name, as facts; nothing of a text that is None, or where nothing is trained."""
    return {
        name: overlap(text.sentences, training.sentences, progress=progress).as_facts()
        for name, text in held_out.items()
        if text is not None and len(training.sentences)
    }


def overlap_with_files(
    held_out: Sequence[str], files: Sequence[Path], *, unit: str, progress: Progress
) -> Overlap:
    """The same for files, of which no more than a block is in memory.

    Args:
        held_out: sentences.
        files: the training text.
        unit: what a sentence is in them, `line` or `paragraph`.
        progress: told of training sentences.

    Raises:
        FormatError: a file is missing, empty, binary, damaged or not UTF-8.
    """
    counter = OverlapCounter(held_out)
    progress.start("looking for held-out text in the training text", None)
    for file in files:
        counter.add(read_sentences(file, unit=unit), progress=progress)
    progress.finish()
    return counter.result()


def overlap_phrase(facts: Mapping[str, Any]) -> str:
    """An overlap's figures, from `Overlap.as_facts`, in a phrase."""
    longest = str(max(NGRAMS))
    return (
        f"{_share(facts['sentences'])} of its sentences of {MIN_WORDS} words or more and "
        f"{_share(facts['ngrams'][longest])} of its runs of {longest} words are in the training text"
    )


def is_suspicious(facts: Mapping[str, Any]) -> bool:
    """Whether so much of a held-out text, from `Overlap.as_facts`, was seen that its figures are not to be trusted."""
    sentences, ngrams = facts["sentences"]["share"], facts["ngrams"][str(max(NGRAMS))]["share"]
    return (sentences or 0.0) > WARN_SENTENCES or (ngrams or 0.0) > WARN_NGRAMS


def _blocks(sentences: Iterable[str]) -> Iterator[str]:
    """Many sentences a block, folded to lower case, a line each."""
    rest = iter(sentences)
    while block := list(islice(rest, _BLOCK_LINES)):
        yield "\n".join(block).lower()


def _block_hashes(block: str) -> Iterator[Hashes]:
    """The hashes of a block's sentences, and of its runs of words by length."""
    words, offsets = hashed_words(block)
    yield hashed_lines(words, offsets, MIN_WORDS)
    for n in NGRAMS:
        yield hashed_ngrams(words, offsets, n)


def _concatenate(parts: Sequence[Hashes]) -> Hashes:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)


def _overlap_count(known: HashSet, hashes: Hashes) -> OverlapCount:
    total, seen = len(hashes), known.num_seen(hashes)
    return OverlapCount(total, seen, seen / total if total else None)


def _share(facts: Mapping[str, Any]) -> str:
    return "none" if facts["share"] is None else f"{facts['share']:.2%}"
