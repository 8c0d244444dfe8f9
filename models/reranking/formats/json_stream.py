"""Streaming of a large JSON document's members, and typed access to their values.

Only brackets and strings are scanned; the caller parses each member. So a document need not
fit into memory, and an error loses only its member if its brackets are balanced.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from models.errors import InputError
from models.files import ASCII_WHITESPACE
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    MAX_LIST_BYTES,
    MAX_LIST_CANDIDATES,
    BadLine,
    ListOrBadLine,
    SourceLines,
    TextLine,
    after_errors,
    candidate_or_error,
)

JsonObject = dict[str, Any]

# Text without structure, including complete strings, then a bracket, the start of a string
# that does not end, or the end of the line. Possessive, so that matching takes linear time.
_STEP = re.compile(r'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}"]|$)', re.DOTALL)
_BEFORE = {
    "[": re.compile(r"\s*+,?\s*+"),
    "{": re.compile(r'\s*+,?\s*+("(?:[^"\\]++|\\.)*+")\s*+:\s*+', re.DOTALL),
}
_CLOSING = {"[": "]", "{": "}"}


def parse_json_value(text: str) -> Any:
    """Parse a JSON value.

    Raises:
        InputError: the text is not JSON, or has NaN or an infinity.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise InputError("JSON is nested too deeply") from None
    except ValueError as error:  # invalid JSON, or a number of thousands of digits
        raise InputError(f"invalid JSON: {error}") from None


def parse_json_object(text: str) -> JsonObject:
    """Parse a JSON object.

    Raises:
        InputError: the text is not a JSON object.
    """
    return object_value(parse_json_value(text), "the JSON value")


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def string_value(value: Any, field: str) -> str:
    """Check that a value is a string that UTF-8 can encode.

    Raises:
        InputError: it is not; the message starts with the field.
    """
    if not isinstance(value, str):
        raise InputError(f"{field} is {_kind_name(value)}, but must be a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{field} is not valid Unicode: it has half a surrogate pair, or bytes that are not UTF-8"
            ) from None
    return value


def stripped_value(value: Any, field: str) -> str:
    """Check a string as `string_value` does, and strip it of ASCII white space."""
    return string_value(value, field).strip(ASCII_WHITESPACE)


def number_value(value: Any, field: str) -> float:
    """Convert a value to a finite number.

    Raises:
        InputError: it is not a finite number; the message starts with the field.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{field} is {_kind_name(value)}, but must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{field} is too large for a floating-point number")
    return number


def list_value(value: Any, field: str) -> list[Any]:
    """Check that a value is a non-empty list.

    Raises:
        InputError: it is not; the message starts with the field.
    """
    if not isinstance(value, list) or not value:
        raise InputError(f"{field} is {_kind_name(value)}, but must be a non-empty list")
    return value


def parse_candidates(
    value: Any, field: str, parse: Callable[[Any, str], Candidate], problems: list[str]
) -> tuple[Candidate, ...]:
    """Parse a list's candidates, at least one; append errors of invalid ones to the problems.

    Raises:
        InputError: none is valid, or there are too many.
    """
    if (size := len(list_value(value, field))) > MAX_LIST_CANDIDATES:
        raise InputError(f"{field} has {size:,} members; the maximum is {MAX_LIST_CANDIDATES:,}")
    found = [candidate_or_error(partial(parse, one, f"{field}[{index}]")) for index, one in enumerate(value)]
    problems += [str(one) for one in found if isinstance(one, InputError)]
    candidates = tuple(one for one in found if isinstance(one, Candidate))
    if not candidates:
        raise InputError(problems.pop())
    return candidates


def object_value(value: Any, field: str) -> JsonObject:
    """Check that a value is an object.

    Raises:
        InputError: it is not; the message starts with the field.
    """
    if not isinstance(value, dict):
        raise InputError(f"{field} is {_kind_name(value)}, but must be an object")
    return value


def id_value(value: Any, field: str) -> str | None:
    """Convert an id to a string: a string, an integer or None.

    Raises:
        InputError: it has another type; the message starts with the field.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None if value is None else string_value(value, field)


def dump_json(value: Any) -> str:
    """Serialise a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _kind_name(value: Any) -> str:
    if value is None:
        return "missing or null"
    if value == []:
        return "an empty list"
    kinds = {bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")


def parse_list(
    lines: SourceLines, number: int, parse: Callable[[list[str]], CandidateList]
) -> Iterator[ListOrBadLine]:
    """Yield the list begun on a line after its errors.

    The last error loses the list if nothing is usable.

    `parse` returns the list and appends its parts' errors to the problems; it raises InputError if
    nothing is usable.
    """
    problems, one = list[str](), None
    try:
        one = parse(problems)
    except InputError as error:
        problems.append(str(error))
    yield from after_errors([lines.bad(number, problem) for problem in problems], one)


def read_elements(
    lines: SourceLines, *, outer: str = "", parse: Callable[[TextLine, list[str]], CandidateList]
) -> Iterator[ListOrBadLine]:
    """Yield the lists of a document whose members are objects, or one list per line.

    Args:
        lines: lines of the document.
        outer: see `split_elements`; empty for one list per line, of which an unreadable one is lost.
        parse: converts a member or line to a list, see `parse_list`.
    """
    for element in split_elements(lines, outer) if outer else lines:
        if isinstance(element, BadLine):
            yield element if outer else element._replace(loses_list=True)
        else:
            yield from parse_list(lines, element.number, partial(parse, element))


def split_elements(lines: SourceLines, outer: str = "") -> Iterator[TextLine | BadLine]:
    """Yield the members of a document, which are objects.

    Args:
        lines: lines of the document.
        outer: `[` for an array of objects, `{` for an object of objects; empty for objects one after another,
            or in an array.
    """
    scanner = _Scanner(lines, outer)
    number = 1
    for line in lines:
        number = line.number
        if isinstance(line, BadLine):
            yield line._replace(loses_list=scanner.lose_member())
        else:
            yield from scanner.scan(line)
    if scanner.is_incomplete:
        place = f"before its {_CLOSING[outer]}" if outer else "in an object"
        yield lines.bad(number, f"the document ends {place}", loses_list=scanner.lose_member())


class _Scanner:
    """Scanner of the document, one line at a time."""

    def __init__(self, lines: SourceLines, outer: str) -> None:
        self.depth = 0 if outer else 1
        self.ended = False
        self._lines, self._outer = lines, outer or "["
        self._is_bare = not outer  # no bracket around the members
        self._parts: list[str] = []  # text of the member, or between members
        self._size = 0
        self._begun_on = 0  # line of the last member; 0 before the first
        self._key: str | None = None
        self._lost = False

    @property
    def is_incomplete(self) -> bool:
        """True if the lines so far are not a complete document."""
        if self._is_bare:
            return self.depth > 1 or bool("".join(self._parts).strip())
        return not self.ended

    def lose_member(self) -> bool:
        """Discard the current member; return True if it was not discarded before."""
        lost, self._lost = self.depth > 1 and not self._lost, self.depth > 1
        return lost

    def scan(self, line: TextLine) -> Iterator[TextLine | BadLine]:
        """Yield the members that end on a line."""
        text, start, at = line.text + "\n", 0, 0
        while at < len(text):
            step = _STEP.match(text, at)
            if step is None or not step[1] or step[1] == '"':
                break
            at = step.end()
            if step[1] in "[{":
                self.depth += 1
                if self.depth <= 2:
                    yield from self._open(line.number, text[start : at - 1], step[1])
                    start = at - 1 if self.depth == 2 else at
            else:
                self.depth -= 1
                if self.depth == 1:
                    yield from self._close(text[start:at])
                    start = at
                elif self.depth <= 0:
                    yield from self._end(line.number, text[start : at - 1], step[1])
                    start = at
        self._keep(text[start:])

    def _keep(self, text: str) -> None:
        self._size += len(text)
        if self._size <= MAX_LIST_BYTES:
            self._parts.append(text)
        else:
            self._parts.clear()

    def _take(self, last: str) -> str | None:
        """Return the text since the last bracket; None if it is too long."""
        self._keep(last)
        text = "".join(self._parts) if self._size <= MAX_LIST_BYTES else None
        self._parts, self._size = [], 0
        return text

    def _open(self, number: int, before: str, bracket: str) -> Iterator[BadLine]:
        between = self._take(before) or ""
        if self.depth == 1:
            if between.strip() or bracket != self._outer or self.ended:
                yield self._lines.bad(
                    number, f"the document must be one {self._outer} … {_CLOSING[self._outer]}"
                )
            return
        if self._is_bare and bracket == "[" and not (self._begun_on or between.strip()):
            self._is_bare, self.depth = False, 1
            return
        self._begun_on, self._lost = number, False
        match = _BEFORE[self._outer].fullmatch(between)
        self._key = match[1] if match and match.re.groups else None
        if match is None or bracket != "{":
            # an object in an array needs no key
            self._lost = bracket != "{" or self._outer == "{"
            yield self._lines.bad(
                number, "a member of the document is not an object, or its key is invalid", loses_list=True
            )

    def _close(self, last: str) -> Iterator[TextLine | BadLine]:
        text = self._take(last)
        if text is None:
            yield self._lines.bad(
                self._begun_on, f"the list is longer than {MAX_LIST_BYTES:,} bytes", loses_list=not self._lost
            )
        elif not self._lost:
            yield TextLine(self._begun_on, text, self._key)
        self._lost = False

    def _end(self, number: int, before: str, bracket: str) -> Iterator[BadLine]:
        rest = self._take(before) or ""
        self.depth = 1 if self._is_bare else 0
        if self._is_bare or self.ended or rest.strip() or bracket != _CLOSING[self._outer]:
            yield self._lines.bad(
                number, "the document ends incorrectly: it is truncated, or a member is not an object"
            )
        self.ended = not self._is_bare
