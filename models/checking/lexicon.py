"""Word lists with search by edit distance, and the user dictionary."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from models.normaliser import Normaliser

Indices = npt.NDArray[np.int64]
_MAX_CACHED_QUERIES = 1 << 14
_MAX_CACHED_MATCHES = 1 << 20
"""Maximum matches in the cache, of nine bytes each; a short word can have thousands."""


class FuzzyMatches(NamedTuple):
    """Words near another one.

    Attributes:
        indices: their indices in the word list [N].
        edits: edit distance of each, at least 1 [N].
    """

    indices: Indices
    edits: npt.NDArray[np.uint8]


NO_FUZZY_MATCHES = FuzzyMatches(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8))


class FuzzyLexicon:
    """Finds words by edit distance: insertions, deletions, substitutions, transpositions (OSA).

    An edit changes a word's length by at most one and its letter set by at most two letters, so words that differ by
    more are not compared. A letter set has 64 hashed letters, so one vectorised step compares all sets. Results are
    cached; the least recently used are evicted.

    Args:
        words: distinct words.
    """

    def __init__(self, words: Sequence[str]) -> None:
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        self._order = np.argsort(lengths, kind="stable")
        self._words = [words[i] for i in self._order.tolist()]
        self._lengths = lengths[self._order]
        self._longest = int(lengths.max(initial=0))
        self._letters = _letter_sets(self._words, self._lengths)
        self._cached: OrderedDict[tuple[str, int], FuzzyMatches] = OrderedDict()
        self._num_cached_matches = 0

    def fuzzy_matches(self, word: str, max_edits: int) -> FuzzyMatches:
        """Find the words at 1 to `max_edits` edits from a word, which need not be in the list."""
        if len(word) > self._longest + max_edits:
            return NO_FUZZY_MATCHES  # not cached: clients can send words of any length
        key = (word, max_edits)
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = self._search(word, max_edits)
            self._num_cached_matches += len(found.indices)
            while len(self._cached) > _MAX_CACHED_QUERIES or self._num_cached_matches > _MAX_CACHED_MATCHES:
                _, forgotten = self._cached.popitem(last=False)
                self._num_cached_matches -= len(forgotten.indices)
        else:
            self._cached.move_to_end(key)
        return found

    def _search(self, word: str, max_edits: int) -> FuzzyMatches:
        first, last = np.searchsorted(self._lengths, [len(word) - max_edits, len(word) + max_edits + 1])
        letters = _letter_sets([word], np.array([len(word)]))
        differing = np.bitwise_count(self._letters[first:last] ^ letters)
        close = np.flatnonzero(differing <= 2 * max_edits) + first
        if not close.size:
            return NO_FUZZY_MATCHES
        compared = [self._words[i] for i in close.tolist()]
        edits = cdist([word], compared, scorer=OSA.distance, score_cutoff=max_edits, dtype=np.uint8)[0]
        within = np.flatnonzero((edits > 0) & (edits <= max_edits))
        return FuzzyMatches(self._order[close[within]], edits[within])


def _letter_sets(words: Sequence[str], lengths: Indices) -> npt.NDArray[np.uint64]:
    """Encode each word's letter set in 64 bits [N]; letters may share a bit."""
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    bits = np.left_shift(np.uint64(1), (codes % 64).astype(np.uint64))
    sets = np.zeros(len(words), dtype=np.uint64)
    filled = np.flatnonzero(lengths)
    if filled.size:
        begins = (np.cumsum(lengths) - lengths)[filled]
        sets[filled] = np.bitwise_or.reduceat(bits, begins)
    return sets


dictionary_key = Normaliser("nfkc", lowercase=True)
"""Converter of words to keys of the user dictionary, without differences of case and Unicode form."""


class UserDictionary:
    """User dictionary, insensitive to case and Unicode form.

    Args:
        words: spelling of each word, by its `dictionary_key`.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def __len__(self) -> int:
        return len(self._words)

    @cached_property
    def _lexicon(self) -> tuple[FuzzyLexicon, list[str]]:
        return FuzzyLexicon(list(self._words)), list(self._words.values())

    def __contains__(self, word: str) -> bool:
        return bool(self._words) and dictionary_key(word) in self._words

    def fuzzy_matches(self, word: str, max_edits: int) -> Iterator[tuple[str, int]]:
        """Yield the words at 1 to `max_edits` edits between keys, as they are spelled, and their edit distances."""
        lexicon, spellings = self._lexicon
        found = lexicon.fuzzy_matches(dictionary_key(word), max_edits)
        for index, edits in zip(found.indices.tolist(), found.edits.tolist(), strict=True):
            yield spellings[index], edits
