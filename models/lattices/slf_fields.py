r"""Lines of HTK's files as fields: `J=3 S=1 E=4 W=\'em a=-12.5`.

A value may be quoted, and a backslash takes away what a character means; `\303\251` are bytes, in octal.
Other programs write words as they are: so an apostrophe opens a quotation only if another one closes it
before white space.

Source: the HTK Book 3.4, sections 4.6 (strings) and 20 (lattices).
"""

import re

from models.errors import InvalidInputError

_FIELD = re.compile(
    r"""\s*([^\s=]+)=("(?:\\.|[^"\\])*"(?=\s|$)|'(?:\\.|[^'\\])*'(?=\s|$)|(?:\\.|[^\s\\])*\\?)(?=\s|$)"""
)
_TO_ESCAPE = re.compile(r"[\\\s]")
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)


def parse_fields(line: str) -> dict[str, str]:
    """The fields of a line by name.

    Raises:
        InvalidInputError: something on the line is no field.
    """
    if "\\" in line or "='" in line or '="' in line:
        return _quoted_fields(line)
    fields: dict[str, str] = {}
    for field in line.split():
        name, equals, value = field.partition("=")
        if not equals or not name:
            raise _field_error(field)
        fields[name] = value
    return fields


def escape_value(word: str) -> str:
    """A word as a value that `parse_fields` reads back."""
    # a line break in octal: it would end the line
    word = _TO_ESCAPE.sub(r"\\\g<0>", word).replace("\n", "012")
    return "\\" + word if word[:1] in {"'", '"'} else word


def _quoted_fields(line: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    place, end = 0, len(line.rstrip())
    while place < end:
        match = _FIELD.match(line, place)
        if match is None:
            raise _field_error(line[place:].split(maxsplit=1)[0])
        fields[match[1]] = _unescape(match[2])
        place = match.end()
    return fields


def _unescape(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in {"'", '"'}:
        value = value[1:-1]
    if "\\" not in value:
        return value
    raw = _ESCAPED.sub(lambda match: _character(match[1]), value.encode())
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{value!r} is not UTF-8 once its escapes are read") from None


def _character(escape: bytes) -> bytes:
    code = int(escape, 8) if len(escape) == 3 else 256
    return bytes([code]) if code < 256 else escape


def _field_error(text: str) -> InvalidInputError:
    return InvalidInputError(f"{text[:40]!r} is no field of the form name=value")
