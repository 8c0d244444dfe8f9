"""Values in JSON that others wrote: of the kind that is wanted, or an error that says which is not."""

import json
import math
from typing import Any, NoReturn

from models.errors import InvalidInputError

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
    """A string that UTF-8 can say.

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


def list_value(value: Any, field: str) -> list[Any]:
    """A list with something in it.

    Raises:
        InvalidInputError: it is none; the message begins with the field.
    """
    if not isinstance(value, list) or not value:
        raise InvalidInputError(f"{field} is {_kind_name(value)}, but must be a list with something in it")
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
