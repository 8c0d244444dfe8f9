"""What somebody writes: the words that were accepted, how often, and after which, the old ones fading.

A value. Learning makes another, so that whoever completes a word meanwhile sees the one or the other, whole.
It knows nothing of tokens: its words need not be in any model's vocabulary.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

SENTENCE_START = ""
"""Stands before the first word of a sentence."""

_LARGEST_UNIT = 1e9
_MIN_COUNT = 1e-12
"""A count below it is none: one fades so far within forty half-lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModelLimits:
    """What is remembered of one user at most.

    Attributes:
        max_words: different words; past it an eighth is forgotten, the rarest and longest unused.
        pairs_per_word: pairs of neighbours for each of these, on the average; likewise.
        max_word_characters: longer words are not learnt.
        half_life_words: after so many words more, one that was learnt counts half.
    """

    max_words: int = 1000
    pairs_per_word: int = 4
    max_word_characters: int = 64
    half_life_words: float = 1000.0

    @property
    def max_pairs(self) -> int:
        """Pairs of neighbours at most."""
        return self.max_words * self.pairs_per_word


class WordSequence(NamedTuple):
    """Words that were written one after the other.

    Attributes:
        previous: the word before them; `START` where they begin a sentence, None where nobody knows.
        words: they.
    """

    previous: str | None
    words: Sequence[str]


class WordCount(NamedTuple):
    """How often a word was written; by now, if counts fade."""

    text: str
    times: float


class PairCount(NamedTuple):
    """How often a word was written after another; `previous` is empty where it began a sentence."""

    previous: str
    text: str
    times: float


class UserModel:
    """Words and pairs of neighbours with their counts.

    Args:
        words: count of each word, in units.
        followers: for each word, and for `START`, the counts of words after it, in units.
        unit: what counts as one now. It grows with every word learnt, which is how older counts fade.
    """

    def __init__(
        self,
        words: Mapping[str, float] | None = None,
        followers: Mapping[str, Mapping[str, float]] | None = None,
        unit: float = 1.0,
    ) -> None:
        self._words = words or {}
        self._followers = followers or {}
        self._unit = unit

    def __len__(self) -> int:
        """Different words."""
        return len(self._words)

    @property
    def num_pairs(self) -> int:
        """Different pairs of neighbours."""
        return sum(map(len, self._followers.values()))

    @cached_property
    def total(self) -> float:
        """Of all words' counts."""
        return sum(self._words.values()) / self._unit

    def count(self, word: str) -> float:
        """How often a word was written; 0 if never."""
        return self._words.get(word, 0.0) / self._unit

    def followers(self, previous: str) -> dict[str, float]:
        """How often which words were written after another, or at the start of a sentence."""
        return {word: count / self._unit for word, count in self._followers.get(previous, {}).items()}

    @property
    def words(self) -> Iterable[str]:
        """All of them."""
        return self._words

    def likeliest(self, limit: int) -> list[str]:
        """The words with the highest counts."""
        return heapq.nlargest(limit, self._words, key=self._words.__getitem__)

    def words_with_prefix(self, prefix: str, *, ignore_case: bool = False) -> list[str]:
        """The words that begin so, the prefix itself included."""
        if not ignore_case:
            return [word for word in self._words if word.startswith(prefix)]
        folded = prefix.casefold()
        return [word for word in self._words if word.casefold().startswith(folded)]

    def updated(self, sentences: Iterable[WordSequence], bounds: UserModelLimits) -> "UserModel":
        """The model once these sentences have been written too."""
        words, followers, unit = dict(self._words), dict(self._followers), self._unit
        own: set[str] = set()  # whose followers are copies by now
        growth = 2.0 ** (1 / bounds.half_life_words)
        for sentence in sentences:
            previous = sentence.previous
            for word in sentence.words:
                if len(word) > bounds.max_word_characters:
                    previous = word  # which has no followers, either
                    continue
                unit *= growth
                words[word] = words.get(word, 0.0) + unit
                if previous is not None and len(previous) <= bounds.max_word_characters:
                    if previous not in own:
                        followers[previous] = dict(followers.get(previous, {}))
                        own.add(previous)
                    after: dict[str, float] = followers[previous]  # type: ignore[assignment]  # a copy of ours
                    after[word] = after.get(word, 0.0) + unit
                previous = word
        return UserModel(words, followers, unit).limited_to(bounds)

    def export(self) -> tuple[list[WordCount], list[PairCount]]:
        """All that is remembered, as `restored` takes it; what has faded to nothing is left out."""
        least = _MIN_COUNT * self._unit
        words = {word: count / self._unit for word, count in self._words.items() if count >= least}
        pairs = [
            PairCount(previous, word, count / self._unit)
            for previous, word, count in _flatten_pairs(self._followers)
            if count >= least and word in words
        ]
        return [WordCount(*item) for item in words.items()], pairs

    def limited_to(self, bounds: UserModelLimits) -> "UserModel":
        """What of it the bounds allow, its unit a moderate number."""
        words, followers = self._words, self._followers
        if len(words) > bounds.max_words:
            words = dict(
                heapq.nlargest(_pruned_size(bounds.max_words), words.items(), key=lambda item: item[1])
            )
            followers = _group_pairs(pair for pair in _flatten_pairs(followers) if pair[1] in words)
        if sum(map(len, followers.values())) > bounds.max_pairs:
            followers = _group_pairs(
                heapq.nlargest(
                    _pruned_size(bounds.max_pairs), _flatten_pairs(followers), key=lambda pair: pair[2]
                )
            )
        if self._unit > _LARGEST_UNIT:
            words = {word: count / self._unit for word, count in words.items()}
            followers = _group_pairs(
                (previous, word, n / self._unit) for previous, word, n in _flatten_pairs(followers)
            )
            return UserModel(words, followers)
        return UserModel(words, followers, self._unit)


def user_model_from_counts(
    words: Iterable[tuple[str, float]], pairs: Iterable[tuple[str, str, float]] = ()
) -> UserModel:
    """A model of given counts, each word and pair once, the latter of two neighbours among the words."""
    return UserModel(dict(words), _group_pairs(pairs))


def _pruned_size(limit: int) -> int:
    """What is kept where there is more than the limit: so that not every word more costs a look at all of them."""
    return limit - limit // 8


def _flatten_pairs(followers: Mapping[str, Mapping[str, float]]) -> Iterable[tuple[str, str, float]]:
    return ((previous, word, count) for previous, after in followers.items() for word, count in after.items())


def _group_pairs(flat: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    followers: dict[str, dict[str, float]] = {}
    for previous, word, count in flat:
        followers.setdefault(previous, {})[word] = count
    return followers
