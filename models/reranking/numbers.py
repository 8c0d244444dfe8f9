"""Numbers in words, in languages of the library num2words: written out, and read.

A number's words are compared without hyphens, commas and, in English, "and": "one thousand, nine hundred and
eighty-six" and "one thousand nine hundred eighty six" are the same.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

from models.errors import InputError, UnsupportedError

Kind = Literal["cardinal", "ordinal", "year"]

MAX_NUMBER = 10**15
"""Numbers from here on are not written out."""

_POWERS = (10**12, 10**9, 10**6, 10**3)
_GROUP = 1000
_READ: tuple[tuple[Kind, range], ...] = (
    ("year", range(1100, 2100)),
    ("ordinal", range(1, _GROUP)),
    ("cardinal", range(_GROUP)),
)
"""Numbers whose words are known by heart; of equal words, the last one counts."""

_LANGUAGES = (
    "ar be bn ca ce cs da de en en_NG eo"
    " es es_CO es_CR es_GT es_NI es_VE fa fi"
    " fr fr_BE fr_CH fr_DZ he hu id is it ja"
    " ko kz lt lv nl no pl pt pt_BR ro ru sk"
    " sl sr sv tet tg th uk vi"
)
LANGUAGES = frozenset(_LANGUAGES.split())
"""Languages whose numbers below `MAX_NUMBER` the library writes.

Others fail, have equal words for several numbers, or, as Amharic, never end.
"""


class Number(NamedTuple):
    """A whole number, and how its words are formed."""

    value: int
    kind: Kind


def _library() -> Any:
    try:
        import num2words
    except ModuleNotFoundError:
        raise UnsupportedError(
            "forms of numbers need the package num2words: pip install 'gramophone-lm[speech]'", param="forms"
        ) from None
    return num2words


class NumberWords:
    """Numbers in the words of a language.

    Attributes:
        scales: powers of ten from 10^12 to 10^3, with their names.
        scale_names: these names.
        point: word before decimals; empty if there is none.

    Args:
        language: language of the library, such as `en` or `pt_BR`.

    Raises:
        InputError: the language is none of `LANGUAGES`.
        UnsupportedError: the library is not installed.
    """

    def __init__(self, language: str) -> None:
        library = _library()
        if language not in LANGUAGES:
            known = ", ".join(sorted(LANGUAGES))
            raise InputError.of("forms", f"is {language[:40]!r}; numbers can be written out in {known}")
        self._convert, self._language = library.num2words, language
        self._conjunction = re.compile(r"\band\b") if language.startswith("en") else None
        self._numbers: dict[str, Number] = {}
        for kind, values in _READ:
            for value in values:
                if words := self.plain(self._words(value, kind)):
                    self._numbers[words] = Number(value, kind)
        self.scales = list(self._find_scales())
        self._vocabulary = {word for words in self._numbers for word in words.split()}
        self.scale_names = {name for _, names in self.scales for name in names}
        # in English "zero point five", in German "null Komma fünf"
        self.point = " ".join(self.plain(self._words(0.5, "cardinal")).split()[1:2])

    def _words(self, value: float, kind: Kind | Literal["ordinal_num"]) -> str:
        """Return a number's words; empty where the library has none, such as for years in Swedish."""
        try:
            return str(self._convert(value, lang=self._language, to=kind))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return ""

    def _find_scales(self) -> Iterator[tuple[int, list[str]]]:
        """Yield powers of ten with their names, singular and plural."""
        for power in _POWERS:
            one, two = (self.plain(self._words(count * power, "cardinal")) for count in (1, 2))
            unit, pair = (self.plain(self._words(count, "cardinal")) for count in (1, 2))
            if not one:
                continue
            names = {two.removeprefix(pair).strip(), one.split()[-1].removeprefix(unit)}
            yield power, sorted(filter(None, names), key=len, reverse=True)

    def plain(self, words: str) -> str:
        """Return words as they are compared: lower case, without hyphens, commas and conjunctions."""
        words = words.casefold().replace("-", " ").replace(",", "")
        if self._conjunction is not None:
            words = self._conjunction.sub("", words)
        return " ".join(words.split())

    def is_part(self, words: str) -> bool:
        """Return whether plain words may be part of a number."""
        return all(
            word in self._vocabulary
            or word[:-2] in self._vocabulary
            or any(name in word for name in self.scale_names)
            for word in words.split()
        )

    def ordinal_digits(self, value: int) -> str:
        """Return an ordinal in digits, such as 2nd."""
        return self._words(value, "ordinal_num")

    def read(self, words: str) -> Number | None:
        """Return the number of plain words; None for others."""
        if self._conjunction is not None and words.startswith("a "):
            words = "one" + words[1:]
        number = self._read(words)
        # a number whose words are others was misread, such as one of a language with other scales
        return number if number and any(self.plain(one) == words for one in self.written(number)) else None

    def _read(self, words: str, level: int = 0) -> Number | None:
        """Read words with scales from a level on, the largest first; one that is missing is skipped."""
        if level == len(self.scales) or words in self._numbers:
            return self._numbers.get(words)
        power, names = self.scales[level]
        for name in names:
            before, found, after = map(str.strip, words.partition(name))
            count = self._numbers.get(before) if before else Number(1, "cardinal")
            if not found or count is None or count.kind != "cardinal":
                continue
            rest = self._read(after, level + 1) if after else Number(0, "cardinal")
            if rest is not None and rest.kind != "year" and rest.value < power:
                return Number(count.value * power + rest.value, rest.kind)
        return self._read(words, level + 1)

    def written(self, number: Number) -> list[str]:
        """Return a number's words, the most usual first: without hyphens and commas."""
        if not 0 <= number.value < MAX_NUMBER:
            return []
        whole = " ".join(self._words(*number).replace("-", " ").replace(",", "").split())
        if self._conjunction is None or not whole:
            return [whole] if whole else []
        short = " ".join(self._conjunction.sub("", whole).split())
        found = [short, whole]
        if number.kind == "cardinal":
            found += ["a" + words[3:] for words in found if words.startswith("one ")]
        return list(dict.fromkeys(found))

    def digits(self, digits: str) -> str:
        """Return the words of digits, one by one."""
        return " ".join(self.written(Number(int(digit), "cardinal"))[0] for digit in digits)


@cache
def number_words(language: str) -> NumberWords:
    """Return the numbers of a language, which take a tenth of a second to prepare."""
    return NumberWords(language)
