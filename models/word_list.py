"""Word lists: up to a million words and phrases with weights, compiled to sorted arrays in a file.

A list is written once and mapped by all processes. Its texts are sorted by their bytes, so those that
begin alike follow each other: a prefix is found by bisection, its weight is a sum.

    entries     the texts, by the form in which they are compared, which they follow if they differ from it
    exact       their words, for completion by prefix
    folded      the same words without case
    pairs       words after words in phrases
"""

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from models.arrays import AnyArray, Int64s, UInt8s, UInt64s, letter_sets
from models.calls import Steps
from models.completion.token_trie import prefix_interval
from models.completion.words import largest_indices
from models.errors import BAD_DATA_ERRORS, ManifestError
from models.tensor_files import map_tensors, write_tensors
from models.words import PLAIN, matching_form, plain_form, word_pattern

MAX_ENTRIES = 1_000_000
"""Maximum entries of a list, equal ones included."""

MAX_CORRECTED = 20_000
"""Words that typing errors are corrected to: those with the largest weights."""

MAX_WEIGHT = 1e9
"""Maximum weight of an entry, and of the sum of equal ones."""

Casing = Literal["exact", "ignore"]

_MAX_FOLLOWERS = 256
"""Maximum words that extend a phrase by one word."""

_FORMAT = 1
_BEFORE_TEXT = b"\n"
"""Separator of a key and its text, which have no line breaks."""

_TABLES = "entries", "exact", "folded", "pairs"
_WINDOW = 8
"""Bytes of texts compared at once."""

_TEXTS_AT_ONCE = 1 << 16


class WordListInfo(NamedTuple):
    """Name and properties of a list.

    Attributes:
        name: its name.
        version: 1, or one more than that of the list which it replaced.
        casing: whether entries are compared in their case, or in any.
        language: language such as `en-US`; None for any.
        entries: number of distinct entries.
        words: number of distinct words in them.
        longest: number of words in the longest entry.
    """

    name: str
    version: int = 1
    casing: Casing = "ignore"
    language: str | None = None
    entries: int = 0
    words: int = 0
    longest: int = 0


class _SortedTexts:
    """Texts in the order of their bytes, with weights.

    Attributes:
        weights: weight of each text [N].
    """

    def __init__(self, arrays: dict[str, AnyArray], name: str) -> None:
        self._spelling = arrays[f"{name}.spelling"].data
        starts = arrays[f"{name}.starts"]
        self.weights = arrays[f"{name}.weights"]
        sizes = len(starts), len(self._spelling)
        if sizes != (len(self.weights) + 1, starts[-1]) or starts[0] or np.diff(starts).min(initial=0) < 0:
            raise ValueError(f"{name} has arrays of other lengths")
        self._starts = starts.data

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._spelling[self._starts[index] : self._starts[index + 1]])

    def interval(self, prefix: bytes) -> tuple[int, int]:
        """Return the first text that starts with these bytes, and the one after the last."""
        return prefix_interval(self, prefix)

    def weight(self, text: bytes) -> float:
        """Return a text's weight; 0 if it is not there."""
        index = bisect_left(self, text)
        return float(self.weights[index]) if index < len(self) and self[index] == text else 0.0

    def sum(self, first: int, past: int) -> float:
        """Return the weight of all texts of an interval."""
        return float(self.weights[first:past].sum())

    def heaviest(self, first: int, past: int, count: int) -> list[int]:
        """Return the texts of an interval with the largest weights, heaviest first."""
        found = np.sort(largest_indices(self.weights[first:past], count)) + first
        ordered: list[int] = found[np.argsort(-self.weights[found], kind="stable")].tolist()
        return ordered


class WordList:
    """A compiled list, mapped from its file.

    Args:
        path: the file.

    Attributes:
        info: its name, version and properties.
        total: sum of the weights of all words.
        derived: what users of the list keep as long as it is mapped.

    Raises:
        ManifestError: the file is missing or damaged, or of a later release.
    """

    def __init__(self, path: Path) -> None:
        arrays = map_tensors(path)
        try:
            described: dict[str, Any] = json.loads(arrays["info"].tobytes())
            if described.pop("format") > _FORMAT:
                raise ValueError("it is of a later release")
            self.info = WordListInfo(**described)
            self._entries, self._exact, self._folded, self._pairs = (
                _SortedTexts(arrays, name) for name in _TABLES
            )
        except (*BAD_DATA_ERRORS, IndexError) as error:
            raise ManifestError(f"{path} is not a word list: {error}") from None
        self.total = self._exact.sum(0, len(self._exact))
        self.derived: dict[str, Any] = {}

    def __len__(self) -> int:
        """Number of distinct words in all entries."""
        return len(self._exact)

    def key(self, text: str) -> str:
        """Return the form in which entries are compared."""
        return _entry_key(text, self.info.casing)

    def __contains__(self, text: str) -> bool:
        """True if a text is an entry, in any Unicode form."""
        key, index = self.key(text).encode(), 0
        for begins in (key, key + _BEFORE_TEXT):  # another text may follow the key
            index = bisect_left(self._entries, begins, index)
            found = self._entries[index] if index < len(self._entries) else b""
            if not key or not found.startswith(key):
                return False
            if found.partition(_BEFORE_TEXT)[0] == key:
                return True
        return False

    def has_part_in(self, text: str) -> bool:
        """True if an entry is in a text, between white space or other characters that are in no word."""
        words = self.key(text).split()
        return any(
            " ".join(parts[first:past]) in self
            for parts in {tuple(words), tuple(word_pattern().findall(" ".join(words)))}
            for first in range(len(parts))
            for past in range(first + 1, min(first + self.info.longest, len(parts)) + 1)
        )

    def num_with_prefix(self, prefix: str) -> int:
        """Return the number of entries that begin with a text, in the form of `key`."""
        first, past = self._entries.interval(self.key(prefix).encode())
        return past - first

    def entries(self) -> Iterator[tuple[str, float]]:
        """Yield all entries with their weights, sorted."""
        for index, weight in enumerate(self._entries.weights):
            yield _text(self._entries[index]), float(weight)

    def heaviest(self, count: int) -> list[tuple[str, float]]:
        """Return the entries with the largest weights, heaviest first."""
        found = self._entries.heaviest(0, len(self._entries), count)
        return [(_text(self._entries[index]), float(self._entries.weights[index])) for index in found]

    def count(self, word: str) -> float:
        """Return the weight of a word; 0 if no entry has it."""
        heavy: dict[str, float] = vars(self).get("corrected", {})  # if they are known, without a bisection
        return heavy.get(word) or self._exact.weight(_word_key(word, ignore_case=False))

    def pairs_after(self, previous: str) -> "FollowingWords":
        """Return the words after another word; no entry tells what begins a sentence."""
        return FollowingWords(self._pairs, f"{previous} ".encode() if previous else None)

    def with_prefix(
        self, prefixes: Sequence[str], limit: int, *, ignore_case: bool
    ) -> Steps[tuple[float, list[str]]]:
        """Return the weight of all words with one of several beginnings, and the heaviest words.

        Args:
            prefixes: beginnings, in their `matching_form`.
            limit: maximum words returned for each beginning.
            ignore_case: match words in any case.
        """
        yield
        words, weight, found = self._folded if ignore_case else self._exact, 0.0, list[str]()
        for prefix in set(prefixes):
            if any(one != prefix and prefix.startswith(one) for one in prefixes):
                continue  # the words with a shorter beginning include those with this one
            first, past = words.interval(prefix.encode())
            weight += words.sum(first, past)
            if prefix:
                found += [_text(words[index]) for index in words.heaviest(first, past, limit)]
            else:
                found += islice(self.corrected, limit)
        return weight, found

    @cached_property
    def corrected(self) -> dict[str, float]:
        """Weights of the heaviest words, which typing errors are corrected to, in descending order."""
        heaviest = self._exact.heaviest(0, len(self._exact), MAX_CORRECTED)
        return {_text(self._exact[index]): float(self._exact.weights[index]) for index in heaviest}

    def corrected_to(self, typed: str, edits: int) -> list[str]:
        """Return the words that typed letters may be corrected to: those with all but `edits` of them, and others."""
        words = list(self.corrected)
        if not typed.isascii():  # without case it may have more letters
            return words
        missing = np.bitwise_count(letter_sets([typed.lower()]) & ~self._letters)
        return [words[index] for index in np.flatnonzero(missing <= edits).tolist()]

    @cached_property
    def _letters(self) -> UInt64s:
        """Letters of each corrected word without case, as by `letter_sets`."""
        return letter_sets([matching_form(word, ignore_case=True) for word in self.corrected])


class FollowingWords:
    """Words after another word, in the phrases of a list.

    Args:
        pairs: all pairs.
        before: the bytes of the word before and a space; None if no word is before.

    Attributes:
        total: sum of their weights.
        novelty: sum of their weights, of each at most 1.
    """

    def __init__(self, pairs: _SortedTexts, before: bytes | None) -> None:
        self._pairs, self._before = pairs, before or b""
        first, past = (0, 0) if before is None else pairs.interval(before)
        weights = pairs.weights[first:past]
        self._is_empty = first == past
        self.total, self.novelty = float(weights.sum()), float(np.minimum(weights, 1).sum())

    def count(self, word: str) -> float:
        """Return the weight of a word after the other; 0 if it is not there."""
        return 0.0 if self._is_empty else self._pairs.weight(self._before + word.encode())

    def with_prefix(self, prefix: str = "", limit: int = _MAX_FOLLOWERS) -> tuple[float, list[str]]:
        """Return the weight of all words with a beginning, in its case, and the heaviest words."""
        if self._is_empty:
            return 0.0, []
        first, past = self._pairs.interval(self._before + prefix.encode())
        found = self._pairs.heaviest(first, past, limit)
        return self._pairs.sum(first, past), [
            self._pairs[index][len(self._before) :].decode() for index in found
        ]


class WordListBuilder:
    """Compiler of one list.

    Args:
        info: name and properties; its numbers are set at the end.

    Attributes:
        num_added: number of entries added, equal ones included.
    """

    def __init__(self, info: WordListInfo) -> None:
        self._info = info
        self.num_added = self._longest = 0
        self._tables = {name: _UnsortedTexts() for name in _TABLES}

    def add(self, entries: Iterable[tuple[str, float]]) -> None:
        """Add entries, composed and without null characters; the weights of equal ones are added up."""
        rows: dict[str, list[tuple[bytes, float]]] = {name: [] for name in _TABLES}
        for given, weight in entries:
            parts = given.split()
            text = " ".join(parts)
            key = _entry_key(text, self._info.casing)
            rows["entries"].append((_keyed(key, text), weight))
            for word in parts:
                rows["exact"].append((_word_key(word, ignore_case=False), weight))
                rows["folded"].append((_word_key(word, ignore_case=True), weight))
            rows["pairs"] += [(f"{one} {word}".encode(), weight) for one, word in pairwise(parts)]
            self._longest = max(self._longest, key.count(" ") + 1)
        self.num_added += len(rows["entries"])
        for name, some in rows.items():
            self._tables[name].add(some)

    def write(self, path: Path, *, version: int = 1) -> None:
        """Write the list, of a version, to a file. It cannot be written again.

        Raises:
            OSError: it cannot be written.
        """
        arrays = {
            f"{name}.{part}": array
            for name in _TABLES
            for part, array in self._tables.pop(name).sorted().items()
        }
        # an export can be stored again
        arrays["entries.weights"] = np.minimum(arrays["entries.weights"], MAX_WEIGHT)
        info = self._info._replace(
            version=version,
            entries=len(arrays["entries.weights"]),
            words=len(arrays["exact.weights"]),
            longest=self._longest,
        )
        described = json.dumps({"format": _FORMAT, **info._asdict()}).encode()
        write_tensors(path, {**arrays, "info": np.frombuffer(described, np.uint8)})


class _UnsortedTexts:
    """Texts with weights, in the order of their addition."""

    def __init__(self) -> None:
        self._spelling, self._lengths, self._weights = bytearray(), array("q"), array("d")

    def add(self, rows: Sequence[tuple[bytes, float]]) -> None:
        """Add texts."""
        for text, weight in rows:
            self._spelling += text
            self._lengths.append(len(text))
            self._weights.append(weight)

    def sorted(self) -> dict[str, AnyArray]:
        """Return the arrays of `_SortedTexts`; the weights of equal texts are added up."""
        lengths, weights = np.array(self._lengths, np.int64), np.array(self._weights)
        spelling = np.frombuffer(self._spelling + bytes(_WINDOW), np.uint8)
        starts = np.cumsum(lengths) - lengths
        ranks = _ranks(spelling, starts, lengths)
        order = np.argsort(ranks, kind="stable")
        firsts = np.flatnonzero(np.diff(ranks[order], prepend=-1))
        if len(firsts):
            weights = np.add.reduceat(weights[order], firsts)
        distinct = order[firsts]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[distinct])])
        sorted_spelling = np.empty(ends[-1], np.uint8)
        for first in range(0, len(distinct), _TEXTS_AT_ONCE):
            some = distinct[first : first + _TEXTS_AT_ONCE]
            begins = ends[first : first + len(some)]
            within = np.arange(begins[0], ends[first + len(some)])
            sorted_spelling[within] = spelling[within + np.repeat(starts[some] - begins, lengths[some])]
        return {"spelling": sorted_spelling, "starts": ends, "weights": weights}


def _ranks(spelling: UInt8s, starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the place of each text among all sorted ones [N]; equal texts have that of the first of them.

    Sorts by the first eight bytes, then those that are equal by the next eight: each step is a sort of numbers, and
    other threads run meanwhile. A list's sort of a million texts would stop them for a second.
    """
    ranks, unsure, depth = np.zeros(len(starts), np.int64), np.arange(len(starts)), 0
    windows = np.lib.stride_tricks.sliding_window_view(spelling, _WINDOW)
    while unsure.size:
        left = lengths[unsure] - depth
        # bytes behind a text's end count as 0, which is in no text
        read = np.where(left > 0, starts[unsure] + depth, len(windows) - 1)
        keys = windows[read] * (np.arange(_WINDOW) < left[:, None])
        numbers = np.ascontiguousarray(keys.astype(np.uint8)).view(">u8").ravel().astype(np.uint64)
        order = np.lexsort((numbers, ranks[unsure]))
        unsure, numbers = unsure[order], numbers[order]
        before = ranks[unsure]
        is_first = np.diff(before, prepend=-1) != 0
        is_other = is_first | np.concatenate([[True], numbers[1:] != numbers[:-1]])
        places = np.arange(len(unsure))
        starts_of = [np.maximum.accumulate(np.where(one, places, 0)) for one in (is_first, is_other)]
        ranks[unsure] = before + starts_of[1] - starts_of[0]
        groups = np.flatnonzero(is_other)
        sizes = np.diff(groups, append=len(unsure))
        depth += _WINDOW
        goes_on = (sizes > 1) & (np.maximum.reduceat(lengths[unsure], groups) > depth)
        unsure = unsure[np.repeat(goes_on, sizes)]
    return ranks


def _entry_key(text: str, casing: Casing) -> str:
    plain = plain_form(text)
    return " ".join((PLAIN(plain.casefold()) if casing == "ignore" else plain).split())


def _word_key(word: str, *, ignore_case: bool) -> bytes:
    return _keyed(matching_form(word, ignore_case=ignore_case), word)


def _keyed(key: str, text: str) -> bytes:
    """Return bytes by which a text is sorted: its key, and itself if it differs."""
    return (key if key == text else f"{key}\n{text}").encode()


def _text(keyed: bytes) -> str:
    return keyed.rpartition(_BEFORE_TEXT)[2].decode()
