"""Streaming of the members of a large JSON document, and typed access to their values.

Only brackets and strings are scanned; each member is parsed by the caller. So a document need not
fit into memory, and a member with an error is lost alone, as long as its brackets are balanced.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from models.errors import InvalidInputError
from models.reranking.candidates import CandidateList
from models.reranking.formats.format import MAX_LIST_BYTES, BadLine, ListOrBadLine, SourceLines, TextLine

JsonObject = dict[str, Any]


def parse_json_value(text: str) -> Any:
    """A value in JSON.

    Raises:
        InvalidInputError: it is not JSON; NaN and infinities are none.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise InvalidInputError("it is nested too deeply") from None
    except ValueError as error:  # not JSON, or a number of thousands of digits
        raise InvalidInputError(f"it is not JSON: {error}") from None


def parse_json_object(text: str) -> JsonObject:
    """An object in JSON.

    Raises:
        InvalidInputError: it is none.
    """
    return object_value(parse_json_value(text), "it")


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


def string_value(value: Any, field: str) -> str:
    """A string that UTF-8 can encode.

    Raises:
        InvalidInputError: it is none; the message begins with the field.
    """
    if not isinstance(value, str):
        raise InvalidInputError(f"{field} is {_kind_name(value)}, but must be a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(
                f"{field} is no text: half of a surrogate pair is in it, or bytes that are not UTF-8"
            ) from None
    return value


def number_value(value: Any, field: str) -> float:
    """A finite number.

    Raises:
        InvalidInputError: it is none; the message begins with the field.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInputError(f"{field} is {_kind_name(value)}, but must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInputError(f"{field} is too large to be a number")
    return number


def list_value(value: Any, field: str, *, max_members: int | None = None) -> list[Any]:
    """A list with something in it, and not more than so many members.

    Raises:
        InvalidInputError: it is none; the message begins with the field.
    """
    if not isinstance(value, list) or not value:
        raise InvalidInputError(f"{field} is {_kind_name(value)}, but must be a list with something in it")
    if max_members is not None and len(value) > max_members:
        raise InvalidInputError(f"{field} has {len(value):,} members; {max_members:,} are allowed")
    return value


def object_value(value: Any, field: str) -> JsonObject:
    """An object.

    Raises:
        InvalidInputError: it is none; the message begins with the field.
    """
    if not isinstance(value, dict):
        raise InvalidInputError(f"{field} is {_kind_name(value)}, but must be an object")
    return value


def id_value(value: Any, field: str) -> str | None:
    """An id: a string, a whole number as a string, or None.

    Raises:
        InvalidInputError: it is none of these; the message begins with the field.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None if value is None else string_value(value, field)


def dump_json(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _kind_name(value: Any) -> str:
    if value is None:
        return "missing or null"
    if value == []:
        return "an empty list"
    kinds = {
        bool: "a boolean",
        str: "a string",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return kinds[type(value)]


# What has no meaning for the structure, whole strings included, then a bracket, the beginning
# of a string that does not end, or the line's end. Possessive: linear whatever the line.
_STEP = re.compile(r'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}"]|$)', re.DOTALL)
_BEFORE = {
    "[": re.compile(r"\s*+,?\s*+"),
    "{": re.compile(r'\s*+,?\s*+("(?:[^"\\]++|\\.)*+")\s*+:\s*+', re.DOTALL),
}
_CLOSING = {"[": "]", "{": "}"}


class JsonElement(NamedTuple):
    """A member of the document.

    Attributes:
        number: of the line that it begins on.
        key: its name, as JSON; None in an array.
        text: it, as JSON.
    """

    number: int
    key: str | None
    text: str


def read_elements(
    lines: SourceLines, outer: str, parse: Callable[[JsonElement, list[str]], CandidateList | None]
) -> Iterator[ListOrBadLine]:
    """The lists that are the members of a document, all of them objects.

    Args:
        lines: of the document.
        outer: `[` for an array of objects, `{` for an object of objects.
        parse: makes a list of a member, and adds what is wrong with it to the problems; None if nothing is left of
            it. It raises InvalidInputError where all of it is wrong.
    """
    for element in _elements(lines, outer):
        if isinstance(element, BadLine):
            yield element
            continue
        problems: list[str] = []
        one = None
        try:
            one = parse(element, problems)
        except InvalidInputError as error:
            problems.append(str(error))
        for index, problem in enumerate(problems, start=1):
            yield lines.bad(element.number, problem, loses_list=one is None and index == len(problems))
        if one is not None:
            yield one


def _elements(lines: SourceLines, outer: str) -> Iterator[JsonElement | BadLine]:
    scanner = _Scanner(lines, outer)
    number = 1
    for line in lines:
        number = line.number
        if isinstance(line, BadLine):
            yield line._replace(loses_list=scanner.lose_member())
        else:
            yield from scanner.scan(line)
    if not scanner.ended:
        problem = f"the document ends before its {_CLOSING[outer]}"
        yield lines.bad(number, problem, loses_list=scanner.lose_member())


class _Scanner:
    """Position in the document after the last line."""

    def __init__(self, lines: SourceLines, outer: str) -> None:
        self.depth = 0
        self.ended = False
        self._lines, self._outer = lines, outer
        self._parts: list[str] = []  # of the member, or of what stands before it
        self._size = 0
        self._begun_on = 0
        self._key: str | None = None
        self._lost = False

    def lose_member(self) -> bool:
        """Give up the member that is being read; whether there is one that was not given up before."""
        lost, self._lost = self.depth > 1 and not self._lost, self.depth > 1
        return lost

    def scan(self, line: TextLine) -> Iterator[JsonElement | BadLine]:
        """The members that end on a line."""
        text, start, position = line.text + "\n", 0, 0
        while position < len(text):
            step = _STEP.match(text, position)
            if step is None or not step[1] or step[1] == '"':
                break
            position = step.end()
            if step[1] in "[{":
                self.depth += 1
                if self.depth <= 2:
                    yield from self._open(line.number, text[start : position - 1], step[1])
                    start = position - 1 if self.depth == 2 else position
            else:
                self.depth -= 1
                if self.depth == 1:
                    self._keep(text[start:position])
                    yield from self._close()
                    start = position
                elif self.depth <= 0:
                    yield from self._end(line.number, text[start : position - 1], step[1])
                    start = position
        self._keep(text[start:])

    def _keep(self, text: str) -> None:
        self._size += len(text)
        if self._size <= MAX_LIST_BYTES:
            self._parts.append(text)
        else:
            self._parts.clear()

    def _take(self) -> str:
        text = "".join(self._parts)
        self._parts, self._size = [], 0
        return text

    def _open(self, number: int, before: str, bracket: str) -> Iterator[BadLine]:
        self._keep(before)
        between = self._take()
        if self.depth == 1:
            if between.strip() or bracket != self._outer or self.ended:
                yield self._lines.bad(
                    number, f"the document must be one {self._outer} … {_CLOSING[self._outer]}"
                )
            return
        self._begun_on, self._lost = number, False
        match = _BEFORE[self._outer].fullmatch(between)
        self._key = match[1] if match and match.re.groups else None
        if match is None or bracket != "{":
            self._lost = bracket != "{" or self._outer == "{"  # an object in an array needs no name
            yield self._lines.bad(
                number, "a member of the document is no object, or its name is wrong", loses_list=True
            )

    def _close(self) -> Iterator[JsonElement | BadLine]:
        too_long, text = self._size > MAX_LIST_BYTES, self._take()
        if too_long:
            yield self._lines.bad(
                self._begun_on, f"the list is longer than {MAX_LIST_BYTES:,} bytes", loses_list=not self._lost
            )
        elif not self._lost:
            yield JsonElement(self._begun_on, self._key, text)
        self._lost = False

    def _end(self, number: int, before: str, bracket: str) -> Iterator[BadLine]:
        self._keep(before)
        rest = self._take()
        self.depth = 0
        if self.ended or rest.strip() or bracket != _CLOSING[self._outer]:
            yield self._lines.bad(
                number, "the document's end is in disorder: it is cut, or a member is no object"
            )
        self.ended = True
