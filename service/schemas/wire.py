"""Validation of requests: bytes to a pydantic model, with errors that name the field and the value.

Bounds that commands check with messages of their own only appear in the schema; they are imported
from the modules that check them.
"""

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag, ValidationError
from pydantic_core import CoreSchema

from models.checkpoint.manifest import MAX_NAME_LENGTH
from models.decoding import parameters as decoding
from models.errors import InvalidInputError
from models.reranking.ranking import MAX_LENGTH_EXPONENT, MAX_WEIGHT


def schema_only(**keywords: Any) -> Any:
    """Return a field with keywords of JSON Schema that pydantic does not check, but commands do."""
    return Field(json_schema_extra=keywords)


TokenId = Annotated[int, schema_only(minimum=0)]
NonNegative = Annotated[int, schema_only(minimum=0)]
Positive = Annotated[int, schema_only(minimum=1)]
Temperature = Annotated[float, schema_only(minimum=0, maximum=decoding.MAX_TEMPERATURE)]
Share = Annotated[float, schema_only(exclusiveMinimum=0, maximum=1)]
Probability = Annotated[float, schema_only(minimum=0, maximum=1)]
RepetitionPenalty = Annotated[float, schema_only(exclusiveMinimum=0, maximum=decoding.MAX_REPETITION_PENALTY)]
Penalty = Annotated[float, schema_only(minimum=-decoding.MAX_PENALTY, maximum=decoding.MAX_PENALTY)]
LengthPenalty = Annotated[
    float, schema_only(minimum=-decoding.MAX_LENGTH_PENALTY, maximum=decoding.MAX_LENGTH_PENALTY)
]
DiversityPenalty = Annotated[float, schema_only(minimum=0, maximum=decoding.MAX_DIVERSITY_PENALTY)]
Biases = Annotated[
    dict[str, Annotated[float, schema_only(minimum=-decoding.MAX_BIAS, maximum=decoding.MAX_BIAS)]],
    schema_only(maxProperties=decoding.MAX_BIASES),
]
BadWords = Annotated[
    list[Annotated[str, schema_only(minLength=1, maxLength=decoding.MAX_BAD_WORD_LENGTH)]],
    schema_only(maxItems=decoding.MAX_BAD_WORDS),
]
NumChoices = Annotated[int, schema_only(minimum=1, maximum=decoding.MAX_CHOICES)]
NumBeams = Annotated[int, schema_only(minimum=1, maximum=decoding.MAX_BEAMS)]
Seed = Annotated[int, schema_only(minimum=0, maximum=2**64 - 1)]
StopText = Annotated[str, schema_only(minLength=1, maxLength=decoding.MAX_STOP_LENGTH)]
Stops = StopText | Annotated[list[StopText], schema_only(maxItems=decoding.MAX_STOPS)]

Weight = Annotated[float, schema_only(minimum=-MAX_WEIGHT, maximum=MAX_WEIGHT)]
LengthExponent = Annotated[float, schema_only(minimum=0, maximum=MAX_LENGTH_EXPONENT)]
MixtureWeight = Annotated[float, schema_only(exclusiveMinimum=0, maximum=1)]
Name = Annotated[str, schema_only(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", maxLength=MAX_NAME_LENGTH)]
ModelName = Annotated[str, schema_only(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


_MAX_SHOWN_CHARACTERS = 80
_MANY_ERRORS = 1000
"""Limit above which errors are only counted: their details take many times the memory and time of the body."""


def _fail_fast_lists(schema: Any) -> None:
    """Stop lists at their first error: millions of errors take a hundred times the memory of a body."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast_lists(part)
    elif isinstance(schema, list):
        for part in schema:
            _fail_fast_lists(part)


class WireModel(BaseModel):
    """A request's body: JSON types are not converted, unknown fields and non-finite numbers refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _fail_fast_lists(schema)
        return schema


class TimedRequest(WireModel):
    """A request that says how long its answer is of use."""

    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    """After so many milliseconds the request is given up and answered 504; the service's own limit holds too."""


T = TypeVar("T")
W = TypeVar("W", bound=BaseModel)


def shared_fields(wire: BaseModel, kind: Any) -> dict[str, Any]:
    """Return the fields of a request that a dataclass has too, lists as tuples; null means the dataclass's default."""
    declared = type(wire).model_fields  # others are ignored by a request that allows them
    values = {field.name: getattr(wire, field.name) for field in fields(kind) if field.name in declared}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


def parse_query(kind: type[W], query: Mapping[str, Any]) -> W:
    """Parse options in a query string, where numbers and flags are texts.

    Raises:
        InvalidInputError: an option is unknown or invalid.
    """
    try:
        return kind.model_validate(dict(query), strict=False)
    except ValidationError as error:
        raise invalid_input(error) from None


def parse_json(kind: type[W], body: bytes) -> W:
    """Parse the body of a request.

    Raises:
        InvalidInputError: the body is not UTF-8, not JSON, nested too deeply, or no valid `kind`.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if body.startswith(codecs.BOM_UTF8):
            raise InvalidInputError(
                "the JSON begins with a byte-order mark (U+FEFF): send it without, as RFC 8259 asks"
            ) from None
        raise invalid_input(error) from None


def body_lines(body: bytes) -> Iterator[bytes]:
    """Yield the lines of a body; a list of all may take more memory than the body. A final line feed begins none."""
    start, end = 0, len(body) - body.endswith(b"\n")
    while start <= end:
        line_end = body.find(b"\n", start, end)
        line_end = end if line_end < 0 else line_end
        yield body[start:line_end]
        start = line_end + 1


def parse_lines(body: bytes, parse: Callable[[bytes], T]) -> Iterator[T | InvalidInputError]:
    """Parse the lines of a body one by one when needed; yield an error for an invalid line."""
    for line in body_lines(body):
        try:
            yield parse(line)
        except InvalidInputError as error:
            yield error


def invalid_input(error: ValidationError) -> InvalidInputError:
    """Convert the first error of a validation."""
    if error.error_count() > _MANY_ERRORS:
        return InvalidInputError(f"{error.error_count()} values in the request body are wrong")
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        reason = first["msg"].partition(": ")[2] or first["msg"]
        return InvalidInputError(f"not JSON in UTF-8: {reason}")
    parameter = _path(first["loc"])
    if first["type"] == "missing":
        return InvalidInputError(f"{parameter} is required", parameter=parameter)
    if first["type"] == "extra_forbidden":
        return InvalidInputError(f"there is no parameter {parameter!r}", parameter=parameter)
    if not parameter and isinstance(first["input"], dict):
        # fields that exclude each other: to quote the object would not help
        return InvalidInputError(_constraint_text(first["msg"]))
    return InvalidInputError(
        f"{parameter or 'the request body'} is {_display_value(first['input'])}: {_constraint_text(first['msg'])}",
        parameter=parameter or None,
    )


def _path(location: tuple[int | str, ...]) -> str:
    """Format `("lists", 3, "id")` as `lists[3].id`, without names of alternatives, which start with `<`."""
    path = ""
    for key in location:
        if isinstance(key, int):
            path += f"[{key}]"
        elif not key.startswith("<"):
            path += f".{key}" if path else key
    return path


def _display_value(value: Any) -> str:
    text = repr(_truncate(value))
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "…"


def _truncate(value: Any) -> Any:
    """Truncate a value to display: formatting a body of megabytes delays all other requests."""
    if isinstance(value, str):
        return value[: _MAX_SHOWN_CHARACTERS + 1]
    if isinstance(value, list):
        return [_truncate(entry) for entry in value[: _MAX_SHOWN_CHARACTERS + 1]]
    if isinstance(value, dict):
        return {_truncate(name): _truncate(value[name]) for name in islice(value, _MAX_SHOWN_CHARACTERS + 1)}
    return value


def _constraint_text(message: str) -> str:
    return message[:1].lower() + message[1:]


def _context_tag(value: Any) -> str | None:
    """Return the alternative that matches the type of a value, so that errors concern only that one."""
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return "<texts>"
        if value and isinstance(value[0], list):
            return "<id lists>"
        return "<ids>"
    return None


def text_or_object_tag(value: Any) -> str | None:
    """Return the alternative of a value, `<text>` or `<object>`; None if it can be neither."""
    if isinstance(value, str):
        return "<text>"
    return "<object>" if isinstance(value, dict) else None


_CONTEXT_MESSAGE = "input should be a text or a list of token ids"
OneContext = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TokenId], Tag("<ids>")],
    Discriminator(
        lambda v: tag if (tag := _context_tag(v)) in {"<text>", "<ids>"} else None,
        custom_error_type="text_or_ids",
        custom_error_message=_CONTEXT_MESSAGE,
    ),
]
"""A text, or token ids."""

OneOrMoreContexts = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Tag("<texts>"), Field(min_length=1)]
    | Annotated[list[TokenId], Tag("<ids>")]
    | Annotated[list[list[TokenId]], Tag("<id lists>"), Field(min_length=1)],
    Discriminator(
        _context_tag,
        custom_error_type="text_or_ids",
        custom_error_message=_CONTEXT_MESSAGE + ", or a list of those",
    ),
]
"""A text, texts, token ids, or lists of them."""


TextOrIds: TypeAlias = str | Sequence[int]
"""A text, or token ids not yet checked against a vocabulary."""


def named_contexts(
    given: str | list[str] | list[int] | list[list[int]], *, parameter: str
) -> tuple[tuple[str, TextOrIds], ...]:
    """Return each context and its name in errors."""
    if isinstance(given, str) or not given or isinstance(given[0], int):
        return ((parameter, given),)  # type: ignore[return-value]  # a list of one kind by its type
    return tuple((f"{parameter}[{i}]", context) for i, context in enumerate(given))  # type: ignore[misc]
