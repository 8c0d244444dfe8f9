"""What comes next, by what somebody wrote before: the word after the previous one, else the word alone.

P(w | h) = (c(h, w) + T(h) · P(w)) / (c(h) + T(h)), where c counts, T(h) is how many different words follow h,
and P(w) = c(w) / Σ c. Counts that have faded below one count in T as what is left of them.

Source: Witten and Bell 1991, method C, interpolated as in Chen and Goodman 1998.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from models.completion.personal import UserModel


class ScoredPhrase(NamedTuple):
    """A word, or words with a space between, and their probability."""

    text: str
    probability: float


def most_probable(rated: Iterable[ScoredPhrase], limit: int) -> list[ScoredPhrase]:
    """The likeliest, the likeliest first; of equally likely ones the first by spelling."""
    return heapq.nsmallest(limit, rated, key=_rank_key)


def _rank_key(one: ScoredPhrase) -> tuple[float, str]:
    return -one.probability, one.text


class PrefixMatches(NamedTuple):
    """The words that begin alike.

    Attributes:
        mass: that one of them comes next.
        words: the likeliest of them, the likeliest first.
    """

    mass: float
    words: list[ScoredPhrase]


class NextWordModel:
    """The words of several personal models, their counts added, after one word.

    Args:
        models: a user's, say, and a dictionary; with no words at all every probability is 0.
        previous: the word before; `START` at the start of a sentence.
    """

    def __init__(self, models: Sequence[UserModel], previous: str) -> None:
        self._models = [model for model in models if len(model)]
        self._total = sum(model.total for model in self._models)
        after: Counter[str] = Counter()
        for model in self._models:
            after.update(model.followers(previous))
        self._after = after
        self._num_after = after.total()
        self._novelty = sum(min(1.0, count) for count in after.values())

    def __bool__(self) -> bool:
        """Whether there are any words."""
        return bool(self._models)

    @cached_property
    def followers(self) -> list[ScoredPhrase]:
        """The words that were written after the previous one, the likeliest first."""
        return sorted(self._rated(self._after), key=_rank_key)

    def probability(self, word: str) -> float:
        """That a word comes next; 0 for one that was never written."""
        if not self._models:
            return 0.0
        alone = sum([model.count(word) for model in self._models]) / self._total
        if not self._novelty:
            return alone
        return (self._after.get(word, 0.0) + self._novelty * alone) / (self._num_after + self._novelty)

    def words_with_prefix(self, prefix: str, *, ignore_case: bool, limit: int) -> PrefixMatches:
        """The words that begin so, the prefix itself included; with no prefix any."""
        if not prefix:
            likeliest = (word for model in self._models for word in model.likeliest(limit))
            words = {*self._after, *likeliest}
            return PrefixMatches(float(bool(self)), most_probable(self._rated(words), limit))
        words = {
            word
            for model in self._models
            for word in model.words_with_prefix(prefix, ignore_case=ignore_case)
        }
        rated = self._rated(words)
        return PrefixMatches(math.fsum(one.probability for one in rated), most_probable(rated, limit))

    def _rated(self, words: Iterable[str]) -> list[ScoredPhrase]:
        return [ScoredPhrase(word, self.probability(word)) for word in words]

    def fuzzy_matches(self, prefix: str, edits: int, *, ignore_case: bool) -> dict[str, int]:
        """The words that begin so after at most so many corrections, and how many.

        Distance: inserted, deleted, changed and swapped neighbouring characters, none touched twice.
        """
        words = list({word for model in self._models for word in model.words})
        typed, texts = prefix, words
        if ignore_case:
            typed, texts = prefix.casefold(), [word.casefold() for word in words]
        lengths = range(max(1, len(typed) - edits), len(typed) + edits + 1)
        distances = [
            cdist([typed], [text[:length] for text in texts], scorer=OSA.distance, score_cutoff=edits)[0]
            for length in lengths
        ]
        least = np.min(distances, axis=0)
        return {words[place]: int(least[place]) for place in np.flatnonzero(least <= edits).tolist()}


class NextWordModels:
    """The words of several personal models after any word; what follows each is put together once.

    Args:
        models: as of `NextWordModel`.
    """

    def __init__(self, models: Sequence[UserModel]) -> None:
        self._models = models
        self._known: dict[str, NextWordModel] = {}

    def after(self, previous: str) -> NextWordModel:
        """The words after this one."""
        words = self._known.get(previous)
        if words is None:
            words = self._known[previous] = NextWordModel(self._models, previous)
        return words


def phrase_probability(words: NextWordModels, previous: str, several: Sequence[str]) -> float:
    """That several words come one after the other."""
    probability = 1.0
    for before, word in pairwise((previous, *several)):
        probability *= words.after(before).probability(word)
        if not probability:
            break
    return probability


def extend_phrases(
    words: NextWordModels, first: Iterable[ScoredPhrase], max_words: int, limit: int
) -> list[ScoredPhrase]:
    """How words go on: phrases of 2 to `max_words` words whose neighbours were neighbours before.

    Args:
        words: that they are made of.
        first: the words that phrases begin with, the likeliest ones.
        max_words: of a phrase.
        limit: phrases of each length at most, the likeliest.
    """
    found: list[ScoredPhrase] = []
    longest = list(first)
    for _ in range(max_words - 1):
        longer = (_phrase_extensions(words, phrase) for phrase in longest)
        longest = list(islice(heapq.merge(*longer, key=_rank_key), limit))
        found += longest
    return found


def _phrase_extensions(words: NextWordModels, phrase: ScoredPhrase) -> Iterator[ScoredPhrase]:
    """A phrase with each word that followed its last, the likeliest first."""
    for word, probability in words.after(phrase.text.rpartition(" ")[2]).followers:
        yield ScoredPhrase(f"{phrase.text} {word}", phrase.probability * probability)
