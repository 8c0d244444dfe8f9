"""Forms of words in a model's training text, and the marks after them."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from models.tokenizers import Tokenizer, WordTokenizer

MARKS, FINAL_MARKS = ",;:.?!", frozenset(".?!")
"""Marks that may follow a word, and those that may end a sentence."""

_MAX_FORMS = 4
_MIN_CASED = 0.01
"""Minimum share of the known words with capitals if the text has them."""

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_POSSESSIVES = "'s", "\u2019s"
_MIN_STEM, _MAX_ENDING = 5, 4
"""Minimum letters of a known word at the beginning of an unknown one, and maximum of letters after it."""


@dataclass(slots=True)
class RestoredWord:
    """A word of a restored text."""

    start: int
    """start of the word in the given text, in code points."""
    end: int
    """end of the word in the given text."""
    text: str
    """the word as written, without the mark."""
    mark: str
    """mark after the word; empty for none."""
    ends_sentence: bool
    """true if a sentence ends after it."""
    posterior: float
    """posterior probability of this form, mark and end of sentence."""


class WordForms(NamedTuple):
    """Forms of words and marks that a tokenizer knows.

    Attributes:
        forms: forms of each word in lower case, the most frequent first.
        letters: characters of words; those of other scripts are unknown.
        marks: marks that may follow a word.
        has_capitals: whether words have capitals.
    """

    forms: Mapping[str, Sequence[str]]
    letters: frozenset[str]
    marks: str
    has_capitals: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "WordForms":
        """Return the forms and marks of a tokenizer."""
        spelled = {piece.decode(errors="ignore").strip() for piece in tokenizer.token_bytes}
        # in order of frequency
        words: Iterable[str] = tokenizer.lexicon
        if isinstance(tokenizer, WordTokenizer):
            words = filter(_WORD.fullmatch, tokenizer.vocabulary.tokens)
        forms: dict[str, list[str]] = {}
        for word in words:
            known = forms.setdefault(word.lower(), [])
            if len(known) < _MAX_FORMS:
                known.append(word)
        num_cased = sum(word != key for key, known in forms.items() for word in known)
        return cls(
            forms,
            frozenset(itertools.chain.from_iterable(forms)),
            "".join(mark for mark in MARKS if mark in spelled),
            num_cased > _MIN_CASED * len(forms),
        )

    def forms_of(self, word: str) -> Sequence[str]:
        """Return the forms of a word in lower case.

        In a text with capitals, an unknown word is a name unless it begins like a known word.
        """
        if not self.has_capitals:
            return [word]
        if (known := self.forms.get(word)) is not None:
            return known
        stem, suffix = word[:-2], word[-2:]
        if suffix in _POSSESSIVES and stem in self.forms:
            return [form + suffix for form in self.forms[stem]]
        if not _WORD.fullmatch(word):  # such as utf-8
            return [word]
        begin = max(_MIN_STEM, len(word) - _MAX_ENDING)
        if all(map(self._is_common, word.split("-"))) or any(
            self._is_common(word[:length]) for length in range(begin, len(word))
        ):
            return [word]
        return [word[:1].upper() + word[1:]]

    def _is_common(self, word: str) -> bool:
        return self.forms.get(word, ("",))[0] == word
