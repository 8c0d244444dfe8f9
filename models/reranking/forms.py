"""Proposals of written forms for spoken ones, and of spoken forms for written ones.

A recogniser writes "$1.9 million", "Dr." or TWA where a reference has "one point nine million dollars", "doctor" and
"t w a", or the other way round. No form is right by itself: each is proposed, and the language model and tuned weights
decide.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from models.reranking.amounts import AmountForms, split_tail
from models.reranking.proposals import LETTERS, SPELLING, SPOKEN, WRITTEN, Proposal

_MAX_FORMS = 8
"""Maximum forms proposed for a span."""

_WORDS_PER_STEP = 8
"""Words read per step: up to half a millisecond each, in long numbers."""

_MAX_CACHED_WORDS = 4096
_MAX_INITIALS = 5
_MIN_PART = 3
"""Minimum letters of a half of a word that is split."""

_SIGNS = re.compile(r"[\d$€£¥%]")
_INITIALS = re.compile(f"[A-Za-z]{{2,{_MAX_INITIALS}}}")
_VOWELS = re.compile("[aeiouy]", re.IGNORECASE)
_FIRST_NUMBERS = ("1", "2", "3", "10", "20", "100")

_ABBREVIATIONS = {
    "mr": ("mister",),
    "mrs": ("missus", "misses"),
    "dr": ("doctor", "drive"),
    "st": ("saint", "street"),
    "prof": ("professor",),
    "gen": ("general",),
    "sen": ("senator",),
    "rep": ("representative",),
    "gov": ("governor",),
    "lt": ("lieutenant",),
    "capt": ("captain",),
    "sgt": ("sergeant",),
    "jr": ("junior",),
    "sr": ("senior",),
    "inc": ("incorporated",),
    "corp": ("corporation",),
    "co": ("company",),
    "ltd": ("limited",),
    "ave": ("avenue",),
    "rd": ("road",),
    "blvd": ("boulevard",),
    "mt": ("mount",),
    "ft": ("feet", "fort"),
    "no": ("number",),
    "vs": ("versus",),
    "etc": ("et cetera",),
    "km": ("kilometers", "kilometres"),
    "kg": ("kilograms",),
    "lb": ("pounds",),
    "mph": ("miles per hour",),
}
"""Words of English abbreviations, without full stops."""

_AMBIGUOUS = frozenset({"no", "co", "rep", "gen", "sen", "ft"})
"""Abbreviations that are also words: written out if they have a capital or a full stop only."""


class _Form(NamedTuple):
    """Another form of a span, with its feature."""

    text: str
    feature: str
    value: float


class Forms:
    """Proposer of other forms of amounts, abbreviations and initials, and of words joined or split.

    Args:
        language: language of the texts, such as `en`; all but amounts is for English.
        is_known: whether a word is in the text that the model was trained on; None if that is not recorded, then no
            words are joined or split.

    Raises:
        InputError: numbers of the language cannot be written out.
        UnsupportedError: the library for them is not installed.
    """

    def __init__(self, language: str, is_known: Callable[[str], bool] | None = None) -> None:
        self._has_lexicon = is_known is not None
        self._is_known = lru_cache(_MAX_CACHED_WORDS)(is_known or (lambda _: True))
        self._amounts = AmountForms(language)
        self._without_form: dict[str, bool] = {}
        # a model of spoken text knows none
        self._writes_digits = any(map(self._is_known, _FIRST_NUMBERS))
        self._long_forms = _ABBREVIATIONS if language.startswith("en") else {}
        self._short_forms = {
            text: short for short, many in self._long_forms.items() for text in many if " " not in text
        }

    def propose(self, words: Sequence[str]) -> Iterator[Proposal | None]:
        """Yield other forms of spans of words; None between steps."""
        begin = num_read = 0
        while begin < len(words):
            if not self._without_form.get(words[begin]):  # it may have forms, or is new
                if num_read % _WORDS_PER_STEP == 0:
                    yield None
                num_read += 1
            end = begin + 1
            if not self._has_no_form(words[begin]):
                end, forms = self._forms_at(words, begin)
                for text, form in self._written_as(words, begin, end, forms):
                    yield Proposal(begin, end, text, form.feature, form.value, 0.0)
            if end == begin + 1 < len(words) and self._joins(words[begin], words[end]):
                yield Proposal(begin, end + 1, words[begin] + words[end], SPELLING, -1.0, 0.0)
            begin = end

    def _written_as(
        self, words: Sequence[str], begin: int, end: int, forms: Sequence[_Form]
    ) -> Iterator[tuple[str, _Form]]:
        """Yield the texts of a span's forms, with its capital and closing punctuation."""
        given, (last, tail) = " ".join(words[begin:end]), split_tail(words[end - 1])
        is_short = (len(last) == 1 and last.isalpha()) or "." in last or last.casefold() in self._long_forms
        if end < len(words) and is_short:
            tail = tail.removeprefix(".")  # of an abbreviation, not of a sentence
        texts = {given}
        for form in forms:
            text = form.text + (tail.removeprefix(".") if form.text.endswith(".") else tail)
            if begin == 0 and given[:1].isupper():
                text = text[:1].upper() + text[1:]
            if text not in texts and len(texts) <= _MAX_FORMS:
                texts.add(text)
                yield text, form

    def _has_no_form(self, word: str) -> bool:
        """Return whether no form begins with a word, whatever follows it: most words of a list's texts, many times."""
        found = self._without_form.get(word)
        if found is None:
            core, _ = split_tail(word)
            is_letter = len(word.replace(".", "")) == 1
            found = not (is_letter or self._amounts.may_begin(core) or self._forms_at((word,), 0)[1])
            if len(self._without_form) >= _MAX_CACHED_WORDS:
                self._without_form.clear()
            self._without_form[word] = found
        return found

    def _forms_at(self, words: Sequence[str], begin: int) -> tuple[int, list[_Form]]:
        """Return the end of the span that begins at a word, and its forms; none for most words."""
        core, _ = split_tail(words[begin])
        if times := _spoken(self._amounts.times(core), core):
            return begin + 1, times
        if (read := self._amounts.read(words, begin)) is not None:
            end, amount = read
            given = " ".join(words[begin:end])
            spoken = _spoken(self._amounts.spoken(amount), given)
            # first, as they are fewer
            written = self._amounts.written(amount) if self._writes_digits else ()
            return end, [*(_written(text, given) for text in written), *spoken]
        if initials := self._initials_at(words, begin, core.replace(".", "")):
            return initials
        return begin + 1, list(self._forms_of(words[begin], core))

    def _initials_at(self, words: Sequence[str], begin: int, letters: str) -> tuple[int, list[_Form]] | None:
        """Return the end of single letters, and them as a known word: t w a as TWA."""
        end = begin
        if letters == "a" and words[begin + 1 : begin + 2] and words[begin + 1][0].isupper():
            return None  # an article
        while end < len(words) and len(words[end].replace(".", "")) == 1 and words[end][0].isalpha():
            end += 1
        if end - begin < 2 or not letters.isalpha():
            return None
        if end - begin > _MAX_INITIALS:
            return end, []
        joined = "".join(words[begin:end]).replace(".", "")
        forms = filter(self._is_known, (joined, joined.upper()))
        return end, [_written(form, " ".join(words[begin:end])) for form in forms]

    def _forms_of(self, word: str, core: str) -> Iterator[_Form]:
        """Yield other forms of one word, with and without its closing punctuation."""
        letters = core.replace(".", "")
        plain, is_known = letters.casefold(), self._is_known(core)
        is_marked = core[:1].isupper() or "." in word
        if plain in self._long_forms and (is_marked or plain not in _AMBIGUOUS):
            yield from (_Form(text, SPOKEN, float(text.count(" "))) for text in self._long_forms[plain])
        elif (short := self._short_forms.get(core.casefold())) and self._is_known(short):
            yield _written(short if core.islower() else f"{short.capitalize()}.", core)
        elif "-" in core and all(map(str.isalpha, core.split("-"))):
            yield from (_Form(core.replace("-", mark), SPELLING, 0.0) for mark in (" ", ""))
        elif _INITIALS.fullmatch(letters) and (letters.isupper() or not is_known):
            value = -1.0 if _VOWELS.search(letters) else 1.0  # initials can seldom be pronounced
            yield from (_Form(" ".join(case), LETTERS, value) for case in (letters, letters.lower()))
        elif not is_known:
            for at in range(_MIN_PART, len(core) - _MIN_PART + 1):
                if self._is_known(core[:at]) and self._is_known(core[at:]):
                    yield _Form(f"{core[:at]} {core[at:]}", SPELLING, -1.0)

    def _joins(self, first: str, second: str) -> bool:
        """Return whether two words are one that the model knows."""
        return (
            self._has_lexicon
            and len(first) + len(second) >= 2 * _MIN_PART
            and min(len(first), len(second)) > 1
            and (first + second).isalpha()
            and self._is_known(first + second)
        )


def _spoken(texts: Iterable[str], given: str) -> list[_Form]:
    """Return an amount's words; in place of digits and symbols, with the numbers of words that they add."""
    num_given = given.count(" ") if _SIGNS.search(given) else None
    values = ((text, 0 if num_given is None else text.count(" ") - num_given) for text in texts)
    return [_Form(text, SPOKEN, float(value)) for text, value in values]


def _written(text: str, given: str) -> _Form:
    """Return digits or an abbreviation, with minus the number of words that they save, and one."""
    return _Form(text, WRITTEN, float(text.count(" ") - given.count(" ") - 1))
