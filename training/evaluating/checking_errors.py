"""Errors put into text, to see whether they are found again.

real_word   a word becomes another word one edit away, common ones more often: their, there
non_word    one or two random edits make no word: four in five have one (Damerau 1964)
space       a word is split, or loses the space before the next one
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from models.checking.edit_strings import one_edit_strings
from models.checking.letters import is_alphabetic
from models.checking.lexicon import FuzzyLexicon
from models.checking.sentences import Sentence, Word

Kind = Literal["real_word", "non_word", "space"]
KINDS: tuple[Kind, ...] = ("real_word", "non_word", "space")

_TWO_EDITS_SHARE = 0.2
_MIN_LETTERS = 2

WordReplacement: TypeAlias = tuple[str, int]
"""What stands in the place of a word, and how many words it takes the place of."""


class InjectedError(NamedTuple):
    """An error in a damaged line.

    Attributes:
        start: where it begins in the damaged line, in code points.
        end: where it ends.
        meant: what stood there.
    """

    start: int
    end: int
    meant: str


class CorruptedLine(NamedTuple):
    """A line with errors.

    Attributes:
        text: the line.
        errors: in it, in order.
    """

    text: str
    errors: tuple[InjectedError, ...]


class ErrorInjector:
    """Puts errors of one kind into lines.

    Args:
        counts: how often words occur; every other string is no word.
        kind: of error.
        rate: the share of words that become errors, of those that can.
        random: draws.
    """

    def __init__(
        self, counts: Mapping[str, int], *, kind: Kind, rate: float, random: np.random.Generator
    ) -> None:
        self._words = [word for word in counts if is_alphabetic(word)]
        self._counts = np.array([counts[word] for word in self._words], dtype=np.float64)
        self._is_word = frozenset(counts)
        self._lexicon = FuzzyLexicon(self._words)
        self._letters = "".join(
            sorted({letter for word in self._words for letter in word if letter.isalpha()})
        )
        self._rate, self._random = rate, random
        self._damaged: Callable[[Sequence[Word], int], WordReplacement | None] = {
            "real_word": self._real_word,
            "non_word": self._non_word,
            "space": self._space,
        }[kind]

    def inject_errors(self, sentence: Sentence) -> CorruptedLine:
        """A line with errors in some of its known words; neighbours are never wrong both."""
        text, errors, at = "", [], 0
        words, number = sentence.words, 0
        while number < len(words):
            word = words[number]
            number += 1
            replaced = None
            if word.known and word.text in self._is_word and self._random.random() < self._rate:
                replaced = self._damaged(words, number - 1)
            if replaced is None:
                continue
            new, count = replaced
            end = words[number - 1 + count - 1].end
            text += sentence.text[at : word.start]
            errors.append(InjectedError(len(text), len(text) + len(new), sentence.text[word.start : end]))
            text += new
            at, number = end, number + count  # the next word stays as it is
        return CorruptedLine(text + sentence.text[at:], tuple(errors))

    def _real_word(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        near = self._lexicon.fuzzy_matches(words[number].text, 1).indices
        if not near.size or not is_alphabetic(words[number].text):
            return None
        weights = self._counts[near]
        chosen = self._random.choice(near, p=weights / weights.sum())
        return self._words[int(chosen)], 1

    def _non_word(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        word = words[number].text
        if len(word) < _MIN_LETTERS or not is_alphabetic(word):
            return None
        for _ in range(1 + (self._random.random() < _TWO_EDITS_SHARE)):
            strings = one_edit_strings(word, self._letters)
            word = strings[self._random.integers(len(strings))]
        return None if word in self._is_word or word == words[number].text else (word, 1)

    def _space(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        word = words[number]
        if not is_alphabetic(word.text):
            return None
        if self._random.random() < 0.5:  # noqa: SIM102 - what follows is the other half
            if number + 1 < len(words) and is_alphabetic(words[number + 1].text):
                following = words[number + 1]
                if word.end + 1 == following.start and following.known:
                    return word.text + following.text, 2
        if len(word.text) < 2 * _MIN_LETTERS:
            return None
        cut = int(self._random.integers(_MIN_LETTERS, len(word.text) - _MIN_LETTERS + 1))
        return f"{word.text[:cut]} {word.text[cut:]}", 1
