"""Amounts in a text: numbers, money, percentages and times, read and written in words or digits.

Readers take what recognisers and their normalisers write: "$1.9 million", "1,987", "42 %", "2nd", "3:30", "nineteen
eighty six", "one thousand, nine hundred and eighty-six", "$nine hundred million", "twenty-twond". Units, years as pairs
and the reading of times are for English.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from models.reranking.numbers import Kind, Number, number_words

_MAX_NUMBER_WORDS = 24
_MAX_DIGITS = 15
_PAIRED_YEARS = range(1100, 2100)
_DIGITS = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?(%|st|nd|rd|th)?", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)")
_TAIL = re.compile(r"(?<=[^.,;:!?])[.,;:!?]+$")
_SUFFIX = re.compile(r"(.{3,})(?:st|nd|rd|th)")

_PERCENT = "%"
_CURRENCIES = {
    "$": ("dollar", "dollars", "cents"),
    "€": ("euro", "euros", "cents"),
    "£": ("pound", "pounds", "pence"),
    "¥": ("yen", "yen", ""),
}
"""Names of a unit, of several, and of hundredths, by symbol."""

_UNITS = {name: symbol for symbol, names in _CURRENCIES.items() for name in names[:2]}
_UNITS |= {"percent": _PERCENT, _PERCENT: _PERCENT}


@dataclass(frozen=True, slots=True)
class Amount:
    """A number as read from a text.

    Attributes:
        number: its whole part.
        decimals: digits after the point.
        digits: whole part as written in digits; empty if it was in words.
        scale: word that multiplies it, such as `million`.
        unit: symbol of a currency, or `%`; may be empty.
    """

    number: Number
    decimals: str = ""
    digits: str = ""
    scale: str = ""
    unit: str = ""


def split_tail(word: str) -> tuple[str, str]:
    """Split a word before its closing punctuation; nothing but punctuation is a word."""
    found = _TAIL.search(word)
    return (word, "") if found is None else (word[: found.start()], found[0])


class AmountForms:
    """Reader and writer of amounts in a language.

    Args:
        language: language of the texts, such as `en`.

    Raises:
        InputError: numbers of the language cannot be written out.
        UnsupportedError: the library for them is not installed.
    """

    def __init__(self, language: str) -> None:
        self._numbers, self._is_english = number_words(language), language.startswith("en")

    def may_begin(self, core: str) -> bool:
        """Return whether an amount may begin with a word, whose closing punctuation is left out."""
        if core[:1] in _CURRENCIES or any(map(str.isdigit, core)):
            return True
        plain = self._numbers.plain(core)
        return bool(plain) and self._numbers.is_part(plain)

    def read(self, words: Sequence[str], begin: int) -> tuple[int, Amount] | None:
        """Read the longest amount that begins at a word; return the word after it, too."""
        core, _ = split_tail(words[begin])
        unit = core[:1] if self._is_english and core[:1] in _CURRENCIES else ""
        read = self._read_number(words, begin, core[len(unit) :])
        if read is None or (unit and (read[1].number.kind == "ordinal" or read[1].unit)):
            return None
        end, amount = read[0], replace(read[1], unit=unit or read[1].unit)
        return read if amount.number.kind == "ordinal" else self._read_unit(words, end, amount)

    def _read_number(self, words: Sequence[str], begin: int, core: str) -> tuple[int, Amount] | None:
        """Read a number in digits or words, whose first is without a symbol."""
        found = _DIGITS.fullmatch(core) if len(core) <= _MAX_DIGITS else None
        if found is None:
            return self._read_words(words, begin, core)
        whole, decimals, suffix = found.groups()
        is_percent = suffix == _PERCENT
        kind: Kind = "ordinal" if suffix and not is_percent else "cardinal"
        value = Number(int(whole.replace(",", "")), kind)
        # in the digits of ASCII
        places = "".join(str(int(digit)) for digit in decimals or "")
        return begin + 1, Amount(value, places, whole, unit=_PERCENT if is_percent else "")

    def _read_words(self, words: Sequence[str], begin: int, core: str) -> tuple[int, Amount] | None:
        """Read the longest number in words, whose first is without a symbol."""
        said, best = "", None
        for end in range(begin, len(words)):
            word, tail = split_tail(words[end])
            plain = self._numbers.plain(core if end == begin else word)
            is_article = self._is_english and end == begin and plain == "a"  # "a hundred"
            # an empty one is a conjunction, with which no number begins or ends
            if not (plain or said) or not (is_article or self._numbers.is_part(plain)):
                break
            if end - begin == _MAX_NUMBER_WORDS:
                return None
            said = f"{said} {plain}".strip()
            if plain and (number := self._read_plain(said)) is not None:
                best = end + 1, Amount(number)
            if tail.strip(","):
                break
        if best is None or best[1].number.kind == "ordinal":
            return best
        end, amount = best
        if words[end : end + 1] != [self._numbers.point]:
            return best
        decimals = "".join(self._digits(words[end + 1 : end + 1 + _MAX_NUMBER_WORDS]))
        return (end + 1 + len(decimals), replace(amount, decimals=decimals)) if decimals else best

    def _read_plain(self, said: str) -> Number | None:
        """Read plain words, also an ordinal as some normalisers write it: twond, twenty fiveth."""
        number = self._numbers.read(said)
        if number is None and self._is_english and (found := _SUFFIX.fullmatch(said)):
            stem = self._numbers.read(found[1])
            return None if stem is None or stem.kind == "ordinal" else stem._replace(kind="ordinal")
        return number

    def _digits(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the digits that words begin with."""
        for word in words:
            digit = self._numbers.read(self._numbers.plain(split_tail(word)[0]))
            if digit is None or digit.value > 9 or digit.kind != "cardinal":
                return
            yield str(digit.value)

    def _read_unit(self, words: Sequence[str], end: int, amount: Amount) -> tuple[int, Amount]:
        """Read the scale and unit after a number."""

        def following(place: int) -> str:
            """Return a word in lower case, unless punctuation separates it."""
            is_apart = place >= len(words) or split_tail(words[place - 1])[1]
            return "" if is_apart else split_tail(words[place])[0].casefold()

        if (word := following(end)) and word in self._numbers.scale_names:
            amount, end = replace(amount, scale=word), end + 1
        if not self._is_english or amount.unit:
            return end, amount
        if following(end) == "per" and following(end + 1) == "cent":
            return end + 2, replace(amount, unit=_PERCENT)
        unit = _UNITS.get(following(end), "")
        if not unit:
            return end, amount
        amount, end = replace(amount, unit=unit), end + 1
        # "three dollars and fifty cents"
        first = end + (following(end) == "and")
        cents = self._read_number(words, first, following(first)) if following(first) else None
        if cents and unit in _CURRENCIES and not (amount.scale or amount.decimals or cents[1].decimals):
            past, hundredths = cents[0], cents[1].number
            if hundredths.value < 100 and following(past) == (_CURRENCIES[unit][2] or None):
                return past + 1, replace(amount, decimals=f"{hundredths.value:02}")
        return end, amount

    def spoken(self, amount: Amount) -> Iterator[str]:
        """Yield an amount in words, the most usual form first."""
        names = _CURRENCIES.get(amount.unit)
        if names and names[2] and amount.decimals and len(amount.decimals) <= 2 and not amount.scale:
            cents = self._cardinal(int(f"{amount.decimals}0"[:2]))
            for whole in self._numbers.written(amount.number)[:2]:
                name = names[amount.number.value != 1]
                yield from (f"{whole} {name} {link}{cents} {names[2]}" for link in ("and ", ""))
        for words in self._spoken_numbers(amount):
            said = f"{words} {amount.scale}".strip()
            if names is not None:  # "a fifty million dollar sale"
                is_one = amount.number.value == 1 and not amount.scale
                yield from (f"{said} {name}" for name in (names[0] if is_one else names[1], names[0]))
            else:
                yield f"{said} percent" if amount.unit else said

    def _spoken_numbers(self, amount: Amount) -> Iterator[str]:
        number, digits = amount.number, amount.digits
        if amount.decimals:
            for whole in self._numbers.written(number)[:2] if self._numbers.point else ():
                yield f"{whole} {self._numbers.point} {self._numbers.digits(amount.decimals)}"
            return
        is_plain = not (amount.unit or amount.scale or "," in digits or number.kind == "ordinal")
        if is_plain and number.value in _PAIRED_YEARS:
            yield from self._numbers.written(number._replace(kind="year"))
        cardinal = number if number.kind == "ordinal" else number._replace(kind="cardinal")
        # "a hundred" is not another form of "one hundred", but both are of 100
        yield from (one for one in self._numbers.written(cardinal) if digits or not one.startswith("a "))
        if is_plain and len(digits) > 2:
            if self._is_english and len(digits) == 3 and int(digits[1]):  # 416, four sixteen
                yield f"{self._cardinal(int(digits[0]))} {self._cardinal(int(digits[1:]))}"
            yield self._numbers.digits(digits)

    def _cardinal(self, value: int) -> str:
        return self._numbers.written(Number(value, "cardinal"))[0]

    def written(self, amount: Amount) -> Iterator[str]:
        """Yield an amount in digits, the most usual form first."""
        number, scale, decimals = amount.number, amount.scale, amount.decimals and f".{amount.decimals}"
        if number.kind == "ordinal":
            if digits := self._numbers.ordinal_digits(number.value):
                yield digits
            return
        symbol = amount.unit if amount.unit in _CURRENCIES else ""
        percent = amount.unit if amount.unit == _PERCENT else ""
        if symbol and len(amount.decimals) == 1 and not scale:
            decimals += "0"
        wholes = [f"{number.value}"]
        if self._is_english and number.value >= 1000 and number.kind != "year":
            wholes.insert(0, f"{number.value:,}")
            for power, names in self._numbers.scales[:-1]:  # 909 million
                if number.value % power == 0 and not (scale or decimals or percent):
                    wholes.insert(0, f"{number.value // power} {names[0]}")
                    break
        for whole in wholes:
            yield f"{symbol}{whole}{decimals}{scale and f' {scale}'}{percent}"

    def times(self, word: str) -> Iterator[str]:
        """Yield the words of a time such as 3:30; nothing for other words, and other languages than English."""
        found = _TIME.fullmatch(word)
        if found is None or not self._is_english or int(found[1]) > 24:
            return
        hour, minutes = self._cardinal(int(found[1])), self._cardinal(int(found[2]))
        if found[2] == "00":
            yield from (hour, f"{hour} o'clock")
        else:
            yield f"{hour} oh {minutes}" if found[2] < "10" else f"{hour} {minutes}"
