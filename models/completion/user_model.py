"""User model of autocompletion: decaying counts of accepted words, word pairs and corrected spellings.

    P(w | h) = (c(h, w) + T(h) · P(w)) / (c(h) + T(h)),    P(w) = c(w) / Σ c

c is a count and T(h) the number of distinct words after h; counts that have decayed
below one add their value to T instead of 1. Source: Witten and Bell 1991, method C,
interpolated as in Chen and Goodman 1998.

A `UserModel` is immutable: learning creates a new one, so concurrent readers see
either. It does not depend on tokens: its words need not be in any model's
vocabulary.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from models.calls import Steps
from models.completion.corrections import EDIT_PENALTY, MAX_EDITS, share_of
from models.word_list import WordList
from models.words import MAX_WORD_RUN, dictionary_key, matching_form, visible_form, word_pattern

SENTENCE_START = ""
"""Previous word of the first word of a sentence."""

_LARGEST_UNIT = 1e9
_MIN_COUNT = 1e-12
"""Minimum count; a count of 1 decays to it within forty half-lives."""

_SENTENCE_BREAK = re.compile(r"(?<=[.!?…])\s+|[\r\n]+")
"""Sentence boundaries; a full stop inside a number or an address is not one."""

_SENTENCE_END = re.compile(r"([.!?…][\"'\u2019”»)\]]*|[\r\n])\s*\Z")
_LOOKBACK_CHARS = 256
"""Number of characters before a word in which the previous word is searched."""

_MAX_SHARED = 1000
"""Maximum words after another one that are looked up in word lists for pairs that both have."""

_LETTERS_OF_SPELLING = 3
"""Minimum letters of the beginning of a corrected spelling by which it is found."""

_WORDS_PER_STEP = 1024
"""Words compared or rated per step, about a millisecond."""

_Table: TypeAlias = Mapping[str, Mapping[str, float]]
_Triples: TypeAlias = list[tuple[str, str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModelLimits:
    """Size limits of one user's model.

    Attributes:
        max_words: maximum distinct words; above it an eighth is removed, by lowest
            decayed count.
        pairs_per_word: maximum word pairs per word of `max_words`, on average, and
            maximum corrections; removed likewise.
        max_word_characters: longer words are not learnt.
        half_life_words: number of further words after which a word's count is
            halved.
    """

    max_words: int = 1000
    pairs_per_word: int = 4
    max_word_characters: int = 64
    half_life_words: float = 1000.0

    @property
    def max_pairs(self) -> int:
        """Maximum word pairs, and maximum corrections."""
        return self.max_words * self.pairs_per_word


class WordSequence(NamedTuple):
    """Consecutive words.

    Attributes:
        previous: the word before; `SENTENCE_START` at the start of a sentence, None
            if unknown.
        words: the words.
    """

    previous: str | None
    words: Sequence[str]


class UserModel:
    """Words, word pairs and corrections with their counts.

    Args:
        words: count of each word, in units; also an attribute, as are `unit` and
            `corrections`.
        followers: counts of words after each word and `SENTENCE_START`, in units.
        unit: current weight of an occurrence. It grows with each word learnt, so
            older counts decay.
        corrections: counts of words by the spelling that each replaced, in units.
    """

    def __init__(
        self,
        words: Mapping[str, float] | None = None,
        followers: _Table | None = None,
        unit: float = 1.0,
        corrections: _Table | None = None,
    ) -> None:
        self.words = words or {}
        self._followers = followers or {}
        self.unit = unit
        self.corrections = corrections or {}

    @property
    def _tables(self) -> tuple[_Table, _Table]:
        return self._followers, self.corrections

    def __len__(self) -> int:
        """Number of distinct words."""
        return len(self.words)

    @property
    def num_pairs(self) -> int:
        """Number of distinct word pairs."""
        return sum(map(len, self._followers.values()))

    @cached_property
    def offered(self) -> "UserModel":
        """The model without the words that are misspelt: corrected more often than kept as they are."""
        misspelt = {
            spelling
            for spelling, meant in self.corrections.items()
            if 0 < self.words.get(spelling, 0.0) < sum(meant.values())
        }
        others = self.without(misspelt) if misspelt else self
        return UserModel(others.words, others._followers, self.unit, self.corrections)  # noqa: SLF001 - same class

    @cached_property
    def total(self) -> float:
        """Sum of the counts of all words."""
        return sum(self.words.values()) / self.unit

    def count(self, word: str) -> float:
        """Return the count of a word; 0 if it was never written."""
        return self.words.get(word, 0.0) / self.unit

    def followers(self, previous: str) -> dict[str, float]:
        """Return the counts of words after another word, or at the start of a sentence."""
        return {word: count / self.unit for word, count in self._followers.get(previous, {}).items()}

    def likeliest(self, limit: int) -> list[str]:
        """Return the words with the highest counts."""
        return heapq.nlargest(limit, self.words, key=self.words.__getitem__)

    def with_prefix(
        self, prefixes: Sequence[str], limit: int, *, ignore_case: bool
    ) -> Steps[tuple[float, list[str]]]:
        """Return 0 and all words with one of several beginnings; "" begins any, of which it finds the likeliest.

        See `WordList.with_prefix`; the weight there is of words that may not be
        among those found.
        """
        yield
        if "" in prefixes:
            return 0.0, self.likeliest(limit)
        beginnings, found = tuple(prefixes), list[str]()
        for some in _divide(self.words):
            found += [
                word for word in some if matching_form(word, ignore_case=ignore_case).startswith(beginnings)
            ]
            yield
        return 0.0, found

    def includes(self, other: "UserModel") -> bool:
        """True if another model's words, pairs and corrections are in this one."""
        return other.words.keys() <= self.words.keys() and all(
            later.keys() <= mine.get(first, {}).keys()
            for mine, theirs in zip(self._tables, other._tables, strict=True)  # noqa: SLF001 - of the same class
            for first, later in theirs.items()
        )

    def without(self, words: Collection[str]) -> "UserModel":
        """Return the model without some words, their pairs, and corrections of and to them."""
        kept = {word: count for word, count in self.words.items() if word not in words}
        followers, corrections = (
            _group_pairs(one for one in _flatten_pairs(table) if one[0] not in words and one[1] not in words)
            for table in self._tables
        )
        return UserModel(kept, followers, self.unit, corrections)

    def updated(
        self, sentences: Sequence[WordSequence], bounds: UserModelLimits, typed: str | None = None
    ) -> "UserModel":
        """Return the model after learning sentences, and the spelling that the first word replaced."""
        words, unit = dict(self.words), self.unit
        changed: dict[str, dict[str, float]] = {}  # copies of followers
        growth = 2.0 ** (1 / bounds.half_life_words)
        for sentence in sentences:
            last = sentence.previous
            for word in sentence.words:
                if len(word) > bounds.max_word_characters:
                    last = word  # has no followers either
                    continue
                unit *= growth
                words[word] = words.get(word, 0.0) + unit
                if last is not None and len(last) <= bounds.max_word_characters:
                    after = changed.get(last)
                    if after is None:
                        after = changed[last] = dict(self._followers.get(last, {}))
                    after[word] = after.get(word, 0.0) + unit
                last = word
        corrections = self.corrections
        first = next(chain.from_iterable(sentence.words for sentence in sentences), "")
        if typed and first in words and not dictionary_key(first).startswith(dictionary_key(typed)):
            meant = corrections.get(spelling := visible_form(typed), {})
            count = meant.get(first, 0.0) + self.unit * growth
            corrections = {**corrections, spelling: {**meant, first: count}}
        return UserModel(words, {**self._followers, **changed}, unit, corrections).limited_to(bounds)

    def export(self) -> tuple[list[tuple[str, float]], _Triples, _Triples]:
        """Return words, pairs and corrections with counts, without those decayed to almost 0.

        See `user_model_from_counts`; a pair's first word is empty at the start of a
        sentence.
        """
        least = _MIN_COUNT * self.unit
        words = {word: count / self.unit for word, count in self.words.items() if count >= least}
        pairs, corrections = (
            [
                (first, word, count / self.unit)
                for first, word, count in _flatten_pairs(table)
                if count >= least and word in words
            ]
            for table in self._tables
        )
        return list(words.items()), pairs, corrections

    def limited_to(self, bounds: UserModelLimits) -> "UserModel":
        """Return the model pruned to the limits, its unit rescaled if very large."""
        words = self.words
        # pruned to so few that pruning stays rare
        max_words, max_pairs = (most - most // 8 for most in (bounds.max_words, bounds.max_pairs))
        if len(words) > bounds.max_words:
            words = dict(heapq.nlargest(max_words, words.items(), key=itemgetter(1)))

        def limited(table: _Table) -> _Table:
            if words is not self.words:
                table = _group_pairs(one for one in _flatten_pairs(table) if one[1] in words)
            if sum(map(len, table.values())) > bounds.max_pairs:
                table = _group_pairs(heapq.nlargest(max_pairs, _flatten_pairs(table), key=itemgetter(2)))
            return table

        model = UserModel(words, limited(self._followers), self.unit, limited(self.corrections))
        return user_model_from_counts(*model.export()) if self.unit > _LARGEST_UNIT else model


def user_model_from_counts(
    words: Iterable[tuple[str, float]],
    pairs: Iterable[tuple[str, str, float]] = (),
    corrections: Iterable[tuple[str, str, float]] = (),
) -> UserModel:
    """Create a model from counts of distinct words, distinct pairs and distinct corrections of them."""
    return UserModel(dict(words), _group_pairs(pairs), corrections=_group_pairs(corrections))


def _flatten_pairs(followers: _Table) -> Iterable[tuple[str, str, float]]:
    return ((previous, word, count) for previous, after in followers.items() for word, count in after.items())


def _group_pairs(flat: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    followers: dict[str, dict[str, float]] = {}
    for previous, word, count in flat:
        followers.setdefault(previous, {})[word] = count
    return followers


def split_word_sequences(text: str, context: str | None = None) -> list[WordSequence]:
    """Split a text into sentences that have words.

    Args:
        text: any text.
        context: text before it; empty at the start of a sentence, None if unknown.
    """
    several = sentence_words(text)
    before = None if context is None else previous_word(context)
    return [WordSequence(SENTENCE_START if index else before, words) for index, words in enumerate(several)]


def sentence_words(text: str) -> list[list[str]]:
    """Return the words of each sentence of a text; sentences without words are omitted."""
    return [words for piece in _SENTENCE_BREAK.split(text) if (words := _words(piece))]


def previous_word(text: str) -> str:
    """Return a text's last word; `SENTENCE_START` if the next one starts a sentence."""
    tail = text[-_LOOKBACK_CHARS:]
    if _SENTENCE_END.search(tail) is not None:
        return SENTENCE_START
    return (_words(tail) or [""])[-1]


def _words(text: str) -> list[str]:
    """Return a text's words as they are seen; longer ones in runs from their end, as by `last_word_start`."""
    found: list[str] = []
    for word in map(visible_form, word_pattern().findall(text)):
        ends = range(len(word), 0, -MAX_WORD_RUN)
        found += reversed([word[max(end - MAX_WORD_RUN, 0) : end] for end in ends])
    return found


class ScoredPhrase(NamedTuple):
    """Word, or words separated by spaces, with their probability."""

    text: str
    probability: float


def _rank_key(one: ScoredPhrase) -> tuple[float, str]:
    """Sort phrases by descending probability; equal ones by text."""
    return -one.probability, one.text


class NextWordModel:
    """Next-word distribution of several user models and word lists with summed counts, after one word.

    Args:
        models: such as a user's model and a dictionary; without words every
            probability is 0.
        previous: the word before; `SENTENCE_START` at the start of a sentence.
    """

    def __init__(self, models: Sequence[UserModel | WordList], previous: str) -> None:
        self._models = [model for model in models if len(model)]
        self._total = sum(model.total for model in self._models)
        self._after = Counter[str]()
        self._lists = [model for model in self._models if isinstance(model, WordList)]
        self._pairs = [words.pairs_after(previous) for words in self._lists]
        for model in self._models:
            if isinstance(model, UserModel):
                self._after.update(model.followers(previous))
        self._followers: list[ScoredPhrase] | None = None
        self._num_after = self._after.total() + sum(pairs.total for pairs in self._pairs)
        self._novelty = sum(min(1.0, count) for count in self._after.values())
        for pairs in self._pairs:
            self._novelty += pairs.novelty
            for word, count in islice(self._after.items(), _MAX_SHARED if pairs.total else 0):
                more = pairs.count(word)  # the same pair is new once
                self._novelty -= min(1.0, count) + min(1.0, more) - min(1.0, count + more)
        # each list takes a bisection a word
        self._words_per_step = _WORDS_PER_STEP // (1 + 8 * len(self._lists))

    def __bool__(self) -> bool:
        """True if there are any words."""
        return bool(self._models)

    def followers(self, limit: int) -> Steps[list[ScoredPhrase]]:
        """Return the likeliest words seen after the previous one; the first limit holds for all calls."""
        if self._followers is None:
            words = {*self._after, *(word for pairs in self._pairs for word in pairs.with_prefix()[1])}
            self._followers = (yield from self.rate(words, limit))[1]
        return self._followers

    def probability(self, word: str) -> float:
        """Return the probability of a next word; 0 for an unknown word."""
        if not self._models:
            return 0.0
        alone = sum([model.count(word) for model in self._models]) / self._total
        if not self._novelty:
            return alone
        after = self._after.get(word, 0.0) + sum([pairs.count(word) for pairs in self._pairs])
        return (after + self._novelty * alone) / (self._num_after + self._novelty)

    def words_with_prefix(
        self, *prefixes: str, ignore_case: bool, limit: int, also: Mapping[str, float] | None = None
    ) -> Steps[tuple[float, list[ScoredPhrase]]]:
        """Return the mass of words with a prefix, itself included, and the likeliest; "" matches all.

        Words of `also` are among them, times their penalties.
        """
        also = also or {}
        words, others = yield from self._begun_with(prefixes, limit, ignore_case=ignore_case)
        mass, likeliest = yield from self.rate(words.union(also), limit, lambda word: also.get(word, 1.0))
        return float(bool(self)) if "" in prefixes else mass + others, likeliest

    def _begun_with(
        self, prefixes: Sequence[str], limit: int, *, ignore_case: bool
    ) -> Steps[tuple[set[str], float]]:
        """Return words with a prefix, the heaviest of word lists, and the mass of all others of these lists."""
        fold = partial(matching_form, ignore_case=ignore_case)
        beginnings = tuple(map(fold, prefixes))
        words = {word for word in self._after if fold(word).startswith(beginnings)}
        alone, after = 0.0, 0.0
        for model in self._models:
            weight, found = yield from model.with_prefix(beginnings, limit, ignore_case=ignore_case)
            alone += weight
            words.update(found)
        cased = _cases(prefixes) if ignore_case else set(prefixes)
        cased = {one for one in cased if not any(one != other and one.startswith(other) for other in cased)}
        for pairs in self._pairs:
            words.update(word for word in pairs.with_prefix()[1] if fold(word).startswith(beginnings))
            for prefix in cased:
                weight, found = pairs.with_prefix(prefix, limit)
                after += weight
                words.update(found)
            yield
        if "" in cased:
            return words, 0.0  # all words are known to be one
        counted = tuple(cased)
        for some in _divide(words, self._words_per_step) if alone or after else ():
            alone -= sum(one.count(word) for one in self._lists for word in some)
            begun = [word for word in some if word.startswith(counted)]
            after -= sum(pairs.count(word) for pairs in self._pairs for word in begun)
            yield
        of_alone = max(0.0, alone) / self._total if alone else 0.0
        if not self._novelty:
            return words, of_alone
        return words, (max(0.0, after) + self._novelty * of_alone) / (self._num_after + self._novelty)

    def rate(
        self, words: Iterable[str], limit: int, penalty: Callable[[str], float] = lambda _: 1.0
    ) -> Steps[tuple[float, list[ScoredPhrase]]]:
        """Return the mass of distinct words, each times its penalty, and the most probable ones."""
        best: list[ScoredPhrase] = []
        masses: list[float] = []
        for some in _divide(words, self._words_per_step):
            if masses:
                yield
            rated = [ScoredPhrase(word, penalty(word) * self.probability(word)) for word in some]
            masses += [one.probability for one in rated]
            best = heapq.nsmallest(limit, best + rated, key=_rank_key)
        return math.fsum(masses), best

    def fuzzy_matches(
        self, prefix: str, edits: int, *, ignore_case: bool, limit: int
    ) -> Steps[tuple[dict[str, int], float]]:
        """Return the words that start with a prefix after at most `edits` edits, and their number.

        Also returns the mass of words of lists with this very prefix that are not
        among them. Edits are insertions, deletions, substitutions, transpositions
        (optimal string alignment).
        """
        fold = partial(matching_form, ignore_case=ignore_case)
        typed = fold(prefix)
        found: dict[str, int] = {}
        lengths = range(max(1, len(typed) - edits), len(typed) + edits + 1)
        for words in self._may_match(typed, edits):
            texts = [fold(word)[: lengths[-1]] for word in words]
            distances = [
                cdist([typed], [text[:length] for text in texts], scorer=OSA.distance, score_cutoff=edits)[0]
                for length in lengths
            ]
            least = np.min(distances, axis=0)
            near = np.flatnonzero(least <= edits).tolist()
            found |= {words[index]: int(least[index]) for index in near}
            yield
        if not self._lists:
            return found, 0.0
        exact, others = yield from self._begun_with([prefix], limit, ignore_case=ignore_case)
        return found | dict.fromkeys(exact, 0), others

    def words_meant(self, meant: Sequence[Mapping[str, float]], *, ignore_case: bool) -> Steps[list[str]]:
        """Return the words that typed letters may mean, of each list among the heaviest.

        `meant` has the probability of each letter meant by each typed one,
        case-folded if `ignore_case`.
        """
        found: list[str] = []
        for model in self._models:
            for some in _divide(model.corrected if isinstance(model, WordList) else model.words):
                found += (one for one in some if share_of(one.casefold() if ignore_case else one, meant))
                yield
        return [*dict.fromkeys(found)]

    def _may_match(self, typed: str, edits: int) -> Iterator[list[str]]:
        """Iterate over words that may begin with edited letters, in lists of bounded length; a word may recur."""
        return chain.from_iterable(
            [
                _divide([word for pairs in self._pairs for word in pairs.with_prefix()[1]]),
                *(
                    _divide(model.corrected_to(typed, edits) if isinstance(model, WordList) else model.words)
                    for model in self._models
                ),
            ]
        )


def corrected_words(
    models: Iterable[UserModel | WordList], prefixes: Sequence[str], *, ignore_case: bool, begins_word: bool
) -> Steps[tuple[dict[str, int], dict[str, float]]]:
    """Return the edits and the probability of a spelling, by words that replaced it more than once.

    The probability is the share of a word's count that was so spelled, at least
    that of the edits. `prefixes` are forms of the spelling; if it begins no word,
    it may be the beginning of longer ones.
    """
    fold = partial(matching_form, ignore_case=ignore_case)
    forms = tuple(map(fold, prefixes))
    begun = forms if len(prefixes[0]) >= _LETTERS_OF_SPELLING and not begins_word else ()
    lengths = range(max(1, len(forms[0]) - MAX_EDITS), len(forms[0]) + MAX_EDITS + 1)
    edits, probabilities = dict[str, int](), dict[str, float]()
    for model in (one for one in models if isinstance(one, UserModel)):
        meant = Counter[str]()
        for some in _divide(model.corrections):
            for spelling, folded in zip(some, map(fold, some), strict=True):
                if folded in forms or folded.startswith(begun):
                    meant.update(model.corrections[spelling])
            yield
        for word, count in meant.items():
            if model.count(word) and count > model.unit and not fold(word).startswith(forms):
                edits[word] = min(OSA.distance(forms[0], fold(word)[:length]) for length in lengths)
                probabilities[word] = min(1.0, max(count / model.words[word], EDIT_PENALTY ** edits[word]))
    return edits, probabilities


def _cases(prefixes: Iterable[str]) -> set[str]:
    """Return prefixes as they are written, in small letters, with a capital, and in capitals."""
    return {form for one in prefixes for form in (one, one.lower(), one.capitalize(), one.upper())}


def _divide(words: Iterable[str], size: int = _WORDS_PER_STEP) -> Iterator[list[str]]:
    left = iter(words)
    return iter(lambda: list(islice(left, size)), [])


NextWordModels: TypeAlias = Callable[[str], NextWordModel]
"""Next-word distributions of several user models by previous word."""


def next_word_models(models: Sequence[UserModel | WordList]) -> NextWordModels:
    """Return the next-word distribution by previous word; each is computed once."""
    return cache(partial(NextWordModel, models))


def phrase_probability(words: NextWordModels, previous: str, several: Sequence[str]) -> float:
    """Return the probability of a sequence of words."""
    product = 1.0
    for before, word in pairwise((previous, *several)):
        product *= words(before).probability(word)
        if not product:
            break
    return product


def extend_phrases(
    words: NextWordModels, first: Iterable[ScoredPhrase], max_words: int, limit: int
) -> Steps[list[ScoredPhrase]]:
    """Extend words to phrases of 2 to `max_words` words by pairs seen before.

    Args:
        words: next-word distributions.
        first: first words of the phrases.
        max_words: maximum words of a phrase.
        limit: maximum phrases of each length, the most probable ones.
    """
    found = []
    longest, num_read = list(first), 0
    for _ in range(max_words - 1):
        longer = []
        for phrase in longest:
            followers = yield from words(phrase.text.rpartition(" ")[2]).followers(limit)
            longer.append(_extensions(phrase, followers))
            if (num_read := num_read + len(followers) + 1) > _WORDS_PER_STEP:
                num_read = 0
                yield
        longest = list(islice(heapq.merge(*longer, key=_rank_key), limit))
        found += longest
    return found


def _extensions(phrase: ScoredPhrase, followers: Iterable[ScoredPhrase]) -> Iterator[ScoredPhrase]:
    for word, probability in followers:
        yield ScoredPhrase(f"{phrase.text} {word}", phrase.probability * probability)
