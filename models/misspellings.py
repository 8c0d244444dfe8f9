"""Misspellings of a training text, which are scored but never offered, and typing errors in general."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rapidfuzz.distance import OSA

from models.words import word_pattern

_DOUBTFUL = "?"
_LAST_CHARACTER = "\U0010ffff"


def is_mistyped(form: str, word: str) -> bool:
    """True if a form is a word with two letters exchanged, or with another edit between its first and last letter.

    Edits of these letters make other words: cats of cat, mother of other.
    """
    if OSA.distance(form, word, score_cutoff=1) != 1:
        return False
    return is_exchange(form, word) or (form[:1], form[-1:]) == (word[:1], word[-1:])


def is_exchange(form: str, word: str) -> bool:
    """True if a form at one edit has a word's letters."""
    return len(form) == len(word) and sorted(form) == sorted(word)


@dataclass(frozen=True, eq=False)
class Misspellings:
    """Misspellings in any case.

    Attributes:
        words: the word that each misspelling stands for; all in lower case.
        doubtful: for rare forms that may be words, all far more frequent words that
            they may stand for.
    """

    words: Mapping[str, str] = field(default_factory=dict)
    doubtful: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[str]) -> "Misspellings":
        """Read lines of `lines`.

        Raises:
            ValueError: one has another form.
        """
        words, doubtful = dict[str, str](), dict[str, Sequence[str]]()
        for form, *meant in (line.split("\t") for line in lines):
            if meant[:1] == [_DOUBTFUL] and len(meant) > 1:
                doubtful[form] = meant[1:]
            else:
                (words[form],) = meant
        return cls(words, doubtful)

    def lines(self) -> Iterator[str]:
        """Yield a line for each form: with its word, or a mark and several words, after tabulators."""
        yield from ("\t".join(pair) for pair in self.words.items())
        yield from ("\t".join((form, _DOUBTFUL, *meant)) for form, meant in self.doubtful.items())

    def meant_by(self, form: str) -> Sequence[str]:
        """Return the words that a form in lower case stands for, or may stand for; none if it is none of them."""
        return (self.words[form],) if form in self.words else self.doubtful.get(form, ())

    def are_in(self, text: str) -> bool:
        """True if a word of a text is one of them."""
        if not self.words or text.lower() in self.words:
            return bool(self.words)
        return not text.isalpha() and any(word.lower() in self.words for word in word_pattern().findall(text))

    def num_with_prefix(self, prefix: str) -> int:
        """Return the number of those that begin with a text, doubtful ones included."""
        begin = prefix.lower()
        return bisect_left(self._sorted, begin + _LAST_CHARACTER) - bisect_left(self._sorted, begin)

    def without(self, forms: Collection[str]) -> "Misspellings":
        """Return all but the given ones."""
        return Misspellings(
            {form: word for form, word in self.words.items() if form not in forms},
            {form: words for form, words in self.doubtful.items() if form not in forms},
        )

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted((*self.words, *self.doubtful))
