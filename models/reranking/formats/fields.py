"""Words, numbers and names in lines of text, as the formats without JSON have them.

White space is ASCII's, as in the programs that the formats come from: a no-break space is a part of a word.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from models.errors import InvalidInputError
from models.reranking.formats.interface import BadLine, SourceLines
from models.reranking.lists import CandidateList

T = TypeVar("T")

ASCII_WHITESPACE = " \t\r\n\f\v"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SHOWN_CHARACTERS = 40
_LARGEST = 1e300


def split_words(text: str) -> list[str]:
    """What stands between white space."""
    line = collapse_whitespace(text)
    return line.split(" ") if line else []


def collapse_whitespace(text: str) -> str:
    """A text with one space for every run of white space, and none around it."""
    # bytes are split at ASCII's white space alone, and faster than by a regular expression
    return b" ".join(text.encode(errors="surrogatepass").split()).decode(errors="surrogatepass")


def has_whitespace(text: str) -> bool:
    """Whether there is white space in a text, or the text is empty, so that it could not be one field."""
    return not text or any(character in text for character in ASCII_WHITESPACE)


def is_decimal_number(text: str) -> bool:
    """Whether a text is a decimal number; `nan` and `inf` are none."""
    return _NUMBER.fullmatch(text) is not None


def parse_number(text: str, what: str) -> float:
    """A text as a finite number, of which some millions can be added up.

    Raises:
        InvalidInputError: it is none; the message begins with `what`.
    """
    value = float(text) if is_decimal_number(text) else math.nan
    if not abs(value) <= _LARGEST:
        raise InvalidInputError(f"{what} is {shorten(text)!r}; it must be a finite number")
    return value


def format_number(value: float) -> str:
    """A number as text that reads back as the same number.

    Raises:
        InvalidInputError: it is not finite.
    """
    if not math.isfinite(value):
        raise InvalidInputError(f"a score is {value}; only finite numbers can be written")
    return repr(float(value))


def shorten(text: str) -> str:
    """The beginning of a text, for messages."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def parse_lines(lines: SourceLines, parse: Callable[[str], T]) -> Iterator[tuple[int, T] | BadLine]:
    """What a function makes of each line, with the line's number.

    Args:
        lines: bad ones are handed on.
        parse: raises InvalidInputError for a line that it cannot read.
    """
    for line in lines:
        if isinstance(line, BadLine):
            yield line
            continue
        try:
            yield line.number, parse(line.text)
        except InvalidInputError as error:
            yield lines.bad(line.number, str(error))


def named_lists(lists: Iterable[CandidateList]) -> Iterator[tuple[str, CandidateList]]:
    """Lists with names to write: their own, or else their places, from 0.

    Raises:
        InvalidInputError: a name has white space, or is that of the list before, with which a reader would join it.
    """
    before = None
    for place, one in enumerate(lists):
        name = str(place) if one.name is None else one.name
        if has_whitespace(name):
            raise InvalidInputError(
                f"lists[{place}].id is {shorten(name)!r}; this format's ids have no white space"
            )
        if name == before:
            raise InvalidInputError(f"lists[{place}].id is {shorten(name)!r}, as that of the list before it")
        yield name, one
        before = name
