"""Bodies and fields of the user's own."""

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.errors import FormatError, InvalidInputError
from service.load.target import Request

_HINT = "give JSON, or lines of JSON"


def read_bodies(path: Path) -> list[Request]:
    """Requests with the bodies of a file, as they stand there: one JSON document, or one a line.

    Raises:
        FormatError: the file cannot be read, or is no such file.
    """
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8).strip()
    except OSError as error:
        raise FormatError(path, str(error.strerror), hint=_HINT) from error
    if not content:
        raise FormatError(path, "is empty", hint=_HINT)
    if _is_json(content):
        return [Request("", content)]
    requests = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip() and not _is_json(line):
            shown = line[:60].decode(errors="replace")
            raise FormatError(path, f"line {number} is not JSON: {shown!r}", hint=_HINT)
        if line.strip():
            requests.append(Request("", line))
    return requests


def parse_fields(assignments: Sequence[str]) -> dict[str, Any]:
    """Fields of a body, of `NAME=JSON` each; what is not JSON is text.

    Raises:
        InvalidInputError: there is no name.
    """
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise InvalidInputError(
                f"field is {assignment!r}; it must be NAME=JSON, such as temperature=0", parameter="field"
            )
        fields[name] = json.loads(value) if _is_json(value.encode()) else value
    return fields


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True
