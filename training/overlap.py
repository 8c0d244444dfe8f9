"""Overlap of a held-out text with the training text, by 64-bit hashes of sentences and word n-grams.

The held-out text's sentences of eight words or more are counted, and its runs of 8 and 13 words
within a sentence (13: Brown et al. 2020, appendix C). Case and punctuation do not matter: words that
are punctuation alone are skipped, so that a tokenised text and its original have the same n-grams.
Only the held-out text's hashes are in memory, some 16 to 32 bytes each; the training text is read in
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
    r"""Hash the words [N] of lines separated by "\n"; return also the offset of each line, then N [L + 1]."""
    raw = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    hashes = np.empty(len(raw) // 2 + 1, dtype=np.uint64)  # a word takes at least one byte and a separator
    offsets = np.zeros(int(np.count_nonzero(raw == _NEWLINE)) + 2, dtype=np.int64)
    count = _hash_words(raw, hashes, offsets)
    return hashes[:count], offsets


def hashed_ngrams(words: Hashes, offsets: Offsets, n: int) -> Hashes:
    """Hash all runs of n words within a line, in order [M]."""
    out = np.empty(int(np.maximum(np.diff(offsets) - n + 1, 0).sum()), dtype=np.uint64)
    _hash_ngrams(words, offsets, n, out)
    return out


def hashed_lines(words: Hashes, offsets: Offsets, least: int) -> Hashes:
    """Hash all lines of at least `least` words, in order [M]."""
    out = np.empty(int(np.count_nonzero(np.diff(offsets) >= least)), dtype=np.uint64)
    _hash_lines(words, offsets, least, out)
    return out


class HashSet:
    """A fixed set of hashes that records which of them were seen.

    Args:
        hashes: its members [M]; they may repeat.
    """

    def __init__(self, hashes: Hashes) -> None:
        # open addressing: a power of two of slots, at most half of them used
        slots = 1 << max(4, int(2 * len(hashes)).bit_length())
        self._keys = np.zeros(slots, dtype=np.uint64)
        self._seen = np.zeros(slots, dtype=np.bool_)
        _insert(self._keys, hashes)

    def mark_seen(self, hashes: Hashes) -> None:
        """Record members as seen; ignore other hashes."""
        _mark_seen(self._keys, self._seen, hashes)

    def num_seen(self, hashes: Hashes) -> int:
        """Count the seen hashes among some members, repeated hashes each time."""
        return int(_count_seen(self._keys, self._seen, hashes))


@numba.njit(nogil=True, cache=True)
def _hash_words(text: npt.NDArray[np.uint8], hashes: Hashes, offsets: Offsets) -> int:
    # one pass over the bytes: no strings are made
    position, line, count, length = 0, 0, 0, 0
    value = HASH_SEED
    while position <= len(text):
        width = 1  # bytes of white space; the end of the text counts as a newline
        byte = text[position] if position < len(text) else _NEWLINE
        kind = _KINDS[byte]
        if kind in {_PERHAPS_SPACE, _PERHAPS_PUNCTUATION}:
            width = wide_space_length(text, position)
            kind = _SPACE if width > 0 else 0
            if kind == 0 and byte == 0xE2 and _is_multibyte_punctuation(text, position):
                position += 3
                continue
        if kind == _PUNCTUATION:
            position += 1
            continue
        if kind != _SPACE:
            value = (value ^ np.uint64(byte)) * HASH_PRIME
            length += 1
            position += 1
            continue
        if length > 0:
            hashes[count] = _mix_hash(value)
            count += 1
            value, length = HASH_SEED, 0
        if byte == _NEWLINE:
            line += 1
            offsets[line] = count
        position += width
    return count


@numba.njit(nogil=True, cache=True)
def _is_multibyte_punctuation(text: npt.NDArray[np.uint8], position: int) -> bool:
    return position + 2 < len(text) and text[position + 1] == 0x80 and 0x90 <= text[position + 2] <= 0xA7


@numba.njit(nogil=True, cache=True, inline="always")
def _mix_hash(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _HALF)) * _MIX
    return value ^ (value >> _HALF)


@numba.njit(nogil=True, cache=True)
def _hash_ngrams(words: Hashes, offsets: Offsets, n: int, out: Hashes) -> None:
    outgoing_weight = _ONE  # weight of the word that leaves the window of n words
    for _ in range(n):
        outgoing_weight *= _STEP
    count = 0
    for line in range(len(offsets) - 1):  # n-grams do not cross lines
        value = np.uint64(0)
        for i in range(offsets[line], offsets[line + 1]):
            value = value * _STEP + words[i]  # rolling polynomial hash modulo 2⁶⁴
            outgoing = i - n
            if outgoing >= offsets[line]:
                value -= words[outgoing] * outgoing_weight
            if outgoing + 1 >= offsets[line]:
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
    """Find the slot of a key, or the free slot for it, by linear probing."""
    mask = len(keys) - 1
    slot = np.int64(_mix_hash(key)) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@numba.njit(nogil=True, cache=True)
def _insert(keys: Hashes, hashes: Hashes) -> None:
    for value in hashes:
        key = max(value, _ONE)  # 0 marks a free slot
        keys[_slot_of(keys, key)] = key


@numba.njit(nogil=True, cache=True)
def _mark_seen(keys: Hashes, seen: npt.NDArray[np.bool_], hashes: Hashes) -> None:
    for value in hashes:
        key = max(value, _ONE)
        slot = _slot_of(keys, key)
        if keys[slot] == key:
            seen[slot] = True


@numba.njit(nogil=True, cache=True)
def _count_seen(keys: Hashes, seen: npt.NDArray[np.bool_], hashes: Hashes) -> int:
    count = 0
    for value in hashes:
        count += seen[_slot_of(keys, max(value, _ONE))]
    return count


MIN_WORDS = 8
"""Minimum length of a counted sentence; shorter sentences may repeat by chance."""

NGRAMS = (8, 13)
WARN_SENTENCES = 0.01
WARN_NGRAMS = 0.05
"""Shares of sentences, and of runs of 13 words, above which figures are unreliable."""

_BLOCK_LINES = 8192


class OverlapCount(NamedTuple):
    """Number of sentences or runs of words of a held-out text that occur in the training text.

    Attributes:
        total: of the held-out text.
        seen: occurring in the training text.
        share: seen / total; None if total is 0.
    """

    total: int
    seen: int
    share: float | None


class Overlap(NamedTuple):
    """Overlap of a held-out text with the training text.

    Attributes:
        sentences: of `MIN_WORDS` words or more.
        ngrams: runs of words, by length.
    """

    sentences: OverlapCount
    ngrams: Mapping[int, OverlapCount]

    def as_facts(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "sentences": self.sentences._asdict(),
            "ngrams": {str(n): seen._asdict() for n, seen in self.ngrams.items()},
        }


class OverlapCounter:
    """Counts the overlap of a held-out text with a training text given in pieces.

    Args:
        held_out: its sentences.
    """

    def __init__(self, held_out: Sequence[str]) -> None:
        parts: list[list[Hashes]] = [list(_block_hashes(block)) for block in _blocks(held_out)]
        self._parts = [_concatenate([block[k] for block in parts]) for k in range(1 + len(NGRAMS))]
        self._sets = [HashSet(hashes) for hashes in self._parts]

    def add(self, sentences: Iterable[str], *, progress: Progress) -> None:
        """Add sentences of the training text.

        Args:
            sentences: to add.
            progress: counts sentences.
        """
        for block in _blocks(sentences):
            for hash_set, hashes in zip(self._sets, _block_hashes(block), strict=True):
                hash_set.mark_seen(hashes)
            progress.advance(block.count("\n") + 1)

    def result(self) -> Overlap:
        """Return the overlap so far."""
        sentences, *ngrams = map(_overlap_count, self._sets, self._parts)
        return Overlap(sentences, dict(zip(NGRAMS, ngrams, strict=True)))


def overlap(held_out: Sequence[str], training: Sentences, *, progress: Progress) -> Overlap:
    """Count a held-out text's sentences and runs of words that occur in a training text.

    Args:
        held_out: sentences.
        training: sentences.
        progress: counts training sentences.
    """
    counter = OverlapCounter(held_out)
    progress.start("looking for held-out text in the training text", len(training))
    counter.add(training, progress=progress)
    result = counter.result()
    progress.advance(0, overlap_phrase(result.as_facts()))
    progress.finish()
    return result


def overlaps(
    held_out: Mapping[str, Corpus | None], training: Corpus | StreamedCorpus, *, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Return the overlap facts of several texts by name; omit texts of None, or all if nothing is trained."""
    return {
        name: overlap(text.sentences, training.sentences, progress=progress).as_facts()
        for name, text in held_out.items()
        if text is not None and len(training.sentences)
    }


def overlap_with_files(
    held_out: Sequence[str], files: Sequence[Path], *, unit: str, progress: Progress
) -> Overlap:
    """Count the overlap of a held-out text with training files, read block by block.

    Args:
        held_out: sentences.
        files: the training text.
        unit: `line` or `paragraph`; see `training.corpus.read_corpus`.
        progress: counts training sentences.

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
    """Format an overlap's figures, from `Overlap.as_facts`, as a phrase."""
    longest = str(max(NGRAMS))
    return (
        f"{_share(facts['sentences'])} of its sentences of {MIN_WORDS} words or more and "
        f"{_share(facts['ngrams'][longest])} of its runs of {longest} words are in the training text"
    )


def is_suspicious(facts: Mapping[str, Any]) -> bool:
    """Return whether the overlap, from `Overlap.as_facts`, is so high that figures on the text are unreliable."""
    sentences, ngrams = facts["sentences"]["share"], facts["ngrams"][str(max(NGRAMS))]["share"]
    return (sentences or 0.0) > WARN_SENTENCES or (ngrams or 0.0) > WARN_NGRAMS


def _blocks(sentences: Iterable[str]) -> Iterator[str]:
    """Yield blocks of sentences, lower-cased, one a line."""
    rest = iter(sentences)
    while block := list(islice(rest, _BLOCK_LINES)):
        yield "\n".join(block).lower()


def _block_hashes(block: str) -> Iterator[Hashes]:
    """Yield the hashes of a block's sentences, then those of its runs of words by length."""
    words, offsets = hashed_words(block)
    yield hashed_lines(words, offsets, MIN_WORDS)
    for n in NGRAMS:
        yield hashed_ngrams(words, offsets, n)


def _concatenate(parts: Sequence[Hashes]) -> Hashes:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)


def _overlap_count(hash_set: HashSet, hashes: Hashes) -> OverlapCount:
    total, seen = len(hashes), hash_set.num_seen(hashes)
    return OverlapCount(total, seen, seen / total if total else None)


def _share(facts: Mapping[str, Any]) -> str:
    return "none" if facts["share"] is None else f"{facts['share']:.2%}"
