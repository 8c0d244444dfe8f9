"""Validation of requests: bytes become a pydantic model, or errors with field and value; long replies in chunks.

Bounds that operations check with their own messages appear in the schema only; they are imported
from the modules that check them.
"""

import codecs
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import islice
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, from_json
from pydantic_core.core_schema import no_info_after_validator_function

from models.checkpoint.manifest import MAX_NAME_LENGTH
from models.decoding import parameters as decoding
from models.errors import InputError
from models.reranking.ranking import MAX_LENGTH_EXPONENT, MAX_WEIGHT
from models.text_model import TextOrIds
from service.schemas import schema_objects
from service.schemas.replies import to_json

MAX_CONTAINERS = 1 << 18
"""Maximum arrays and objects of a JSON body: each takes up to 300 bytes, 100 times its share."""

MAX_VALUES = 1 << 20
"""Maximum values and names in a JSON body."""

_MAX_SHOWN_CHARS = 80
_MAX_FORM_FIELDS = 100
_MAX_FIELD_NAME_BYTES = 300
_FORM_BYTES_AT_ONCE, _JSON_BYTES_AT_ONCE = 1 << 16, 1 << 18
"""Bytes decoded, or counted, together: a form's decoder makes an object per escape."""

_SHORT_ITEMS = {("items_schema", "int"), ("items_schema", "float")}
"""Items of lists that take no time: numbers."""

_MANY_ERRORS = 1000
"""Limit above which errors are only counted: details take far more memory and time than the body."""

_CONTEXT_MESSAGE = "input should be a string or a list of token ids"
S = TypeVar("S", bound=str)
Forms = Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(_[A-Za-z]{2,4})?$")]
"""Language of proposed forms, as the library num2words names it."""

T = TypeVar("T")
W = TypeVar("W", bound=BaseModel)

ModelAddress = Annotated[
    str | None,
    Field(description="Model: `name`, `name@7` or `name@champion`; the service's default if omitted."),
]

TextOrObject = Annotated[S, Tag("<text>")] | Annotated[T, Tag("<object>")]
TextOrReference = Annotated[S, Tag("<text>")] | Annotated[T, Tag("<list>")]
ENTRIES_PER_PIECE = 512
"""Reply entries per chunk; other requests run between chunks."""


def schema_only(**keywords: Any) -> Any:
    """Return a field with JSON Schema keywords that the operation checks."""
    return Field(json_schema_extra=keywords)


def between(least: float, most: float) -> Any:
    """Return a field with bounds that the operation checks, not pydantic."""
    return schema_only(minimum=least, maximum=most)


TokenId = Annotated[int, schema_only(minimum=0)]
NonNegative = Annotated[int, schema_only(minimum=0)]
Positive = Annotated[int, schema_only(minimum=1)]
Temperature = Annotated[float, between(0, decoding.MAX_TEMPERATURE)]
Share = Annotated[float, schema_only(exclusiveMinimum=0, maximum=1)]
Probability = Annotated[float, between(0, 1)]
RepetitionPenalty = Annotated[float, schema_only(exclusiveMinimum=0, maximum=decoding.MAX_REPETITION_PENALTY)]
Penalty = Annotated[float, between(-decoding.MAX_PENALTY, decoding.MAX_PENALTY)]
LengthPenalty = Annotated[float, between(-decoding.MAX_LENGTH_PENALTY, decoding.MAX_LENGTH_PENALTY)]
DiversityPenalty = Annotated[float, between(0, decoding.MAX_DIVERSITY_PENALTY)]
Biases = Annotated[
    dict[str, Annotated[float, between(-decoding.MAX_BIAS, decoding.MAX_BIAS)]],
    schema_only(maxProperties=decoding.MAX_BIASES),
]
BadWords = Annotated[
    list[Annotated[str, schema_only(minLength=1, maxLength=decoding.MAX_BAD_WORD_LENGTH)]],
    schema_only(maxItems=decoding.MAX_BAD_WORDS),
]
NumChoices = Annotated[int, between(1, decoding.MAX_CHOICES)]
NumBeams = Annotated[int, between(1, decoding.MAX_BEAMS)]
Seed = Annotated[int, between(0, 2**64 - 1)]
StopText = Annotated[str, schema_only(minLength=1, maxLength=decoding.MAX_STOP_LENGTH)]

Weight = Annotated[float, between(-MAX_WEIGHT, MAX_WEIGHT)]
LengthExponent = Annotated[float, between(0, MAX_LENGTH_EXPONENT)]
MixtureWeight = Annotated[float, schema_only(exclusiveMinimum=0, maximum=1)]
Name = Annotated[str, schema_only(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", maxLength=MAX_NAME_LENGTH)]
ModelName = Annotated[str, schema_only(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class WireModel(BaseModel):
    """Body of a request: JSON types are not converted; unknown fields and non-finite numbers are rejected."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        for part in schema_objects(schema):
            items = {"list": "items_schema", "dict": "values_schema"}.get(str(part.get("type")))
            if part.get("type") == "list":
                # millions of errors take 100 times a body's memory
                part["fail_fast"] = True
            if items in part and (items, part[items]["type"]) not in _SHORT_ITEMS:
                # between functions written in Python, other threads can run
                part[items] = no_info_after_validator_function(lambda value: value, part[items])
        return schema


def either(first: str, second: str, *, neither: str | None = None) -> Any:
    """Return a validator of models: exactly one of two fields is given.

    Args:
        first: name of a field, null if not given.
        second: name of the other field.
        neither: end of the message if both may be missing, such as `, or neither`; else None.
    """

    def check(self: T) -> T:
        missing = [getattr(self, name) is None for name in (first, second)]
        if not any(missing) or (neither is None and all(missing)):
            raise PydanticCustomError("one_of", f"give either {first} or {second}{neither or ''}")
        return self

    return model_validator(mode="after")(check)


class TimedRequest(WireModel):
    """A request with a time limit."""

    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    """Time limit in milliseconds, after which the reply is 504; the service's own limit also applies."""


def by_type(message: str, tags: Mapping[type, str]) -> Discriminator:
    """Return the choice of an alternative by a value's type; `message` is the error of other types."""
    return Discriminator(lambda value: tags.get(type(value)), "by_type", message)


Stops = Annotated[
    Annotated[StopText, Tag("<text>")]
    | Annotated[list[StopText], schema_only(maxItems=decoding.MAX_STOPS), Tag("<list>")],
    by_type("input should be a string or a list of strings", {str: "<text>", list: "<list>"}),
]
Members = Annotated[
    Annotated[list[str], Tag("<list>")] | Annotated[dict[str, float], Tag("<object>")],
    by_type(
        "input should be a list of strings, or an object of weights by string",
        {list: "<list>", dict: "<object>"},
    ),
]
Slots = Annotated[
    dict[str, Members],
    BeforeValidator(lambda value: from_json(value) if isinstance(value, str) else value),
]
"""Members by the name of their class; JSON in a query string."""


FlagOrModel = Annotated[
    Annotated[bool, Tag("<flag>")] | Annotated[str, Tag("<model>")],
    by_type("input should be true, false or a model", {bool: "<flag>", str: "<model>"}),
    BeforeValidator(lambda value: value == "true" if value in ("true", "false") else value),
]
"""True, false or a model's address; all are strings in a query string."""


def by_content(expected: str, name: str = "") -> Discriminator:
    """Return the choice between a text, an object, and one with a field of a name.

    Args:
        expected: what values may be, for errors.
        name: the field that one of two kinds of objects has; empty for one kind.
    """

    def tag(value: Any) -> str | None:
        if isinstance(value, str):
            return "<text>"
        # parts of a query string are parsed before the whole
        has_name = name and (name in value if isinstance(value, dict) else hasattr(value, name))
        return "<list>" if has_name else "<object>" if isinstance(value, dict | BaseModel) else None

    return Discriminator(tag, "by_type", f"input should be {expected}")


def text_or_object(names: str) -> Discriminator:
    """Return the choice of a `TextOrObject`; `names` are the object's fields."""
    return by_content(f"a string, or an object with {names}")


class ModelRequest(TimedRequest):
    """The model of a request, and the members of its classes."""

    model: ModelAddress = None
    slots: Slots | None = None
    """Members of classes by the class's name, such as `{"city": ["Ulm", "New York"]}` for the mark `$city`: a list of
    names, equally probable, or an object of names and weights above 0. They replace the model's own members of these
    classes; other classes keep theirs."""


def shared_fields(wire: BaseModel, kind: Any) -> dict[str, Any]:
    """Return the fields shared with a dataclass, lists as tuples; null means the latter's default."""
    values = {name: getattr(wire, name) for name in shared_names(type(wire), kind)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


@cache
def shared_names(wire: type[BaseModel], kind: Any) -> list[str]:
    """Return the names of the fields shared with a dataclass."""
    return [field.name for field in fields(kind) if field.name in wire.model_fields]


def parse_object(kind: type[W], fields: Mapping[str, Any], *, strict: bool | None = None) -> W:
    """Validate the fields of a request in memory; unless `strict`, numbers and flags may be strings.

    Raises:
        InputError: a field is unknown or invalid.
    """
    try:
        return kind.model_validate(dict(fields), strict=strict)
    except ValidationError as error:
        raise invalid_input(error) from None


def parse_form(kind: type[W], body: bytes) -> W:
    """Parse a body of form fields; fields that `kind` lacks are not decoded.

    Raises:
        InputError: the body is no form in UTF-8, or a field is invalid.
    """
    num_fields = body.count(b"&") + 1
    if num_fields > _MAX_FORM_FIELDS:
        raise InputError(f"the form has {num_fields} fields; at most {_MAX_FORM_FIELDS} are accepted")
    given = {}
    try:
        for field in body.split(b"&"):
            quoted_name, _, value = field.partition(b"=")
            name = _unquoted(quoted_name[:_MAX_FIELD_NAME_BYTES]).decode(errors="replace")
            if name in kind.model_fields:
                given[name] = _unquoted(value).decode()
    except ValueError as error:
        raise InputError(f"not form fields in UTF-8: {error}") from None
    return parse_object(kind, given, strict=False)


def _unquoted(value: bytes) -> bytes:
    """Decode `+` and the escapes of a form field."""
    pieces, begin = [], 0
    while begin < len(value):
        end = begin + _FORM_BYTES_AT_ONCE
        escape = value.find(b"%", end - 2, end)
        end = end if escape < 0 else escape  # no piece ends within an escape
        pieces.append(unquote_to_bytes(value[begin:end].replace(b"+", b" ")))
        begin = end
    return b"".join(pieces)


def check_json_size(body: bytes) -> None:
    """Reject a JSON body of too many values before objects are made of them.

    Raises:
        InputError: the body has more.
    """
    if len(body) <= 2 * MAX_CONTAINERS:  # each takes two bytes and more
        return
    num_containers = body.count(b"[") + body.count(b"{")
    num_values = body.count(b",") + body.count(b":")
    if num_containers <= MAX_CONTAINERS and num_values <= MAX_VALUES:  # also those in texts
        return
    num_containers = num_values = begin = in_text = 0
    while begin < len(body):
        end = begin + _JSON_BYTES_AT_ONCE
        while body[end - 1 : end] == b"\\":  # no piece ends within an escape
            end += 1
        parts = body[begin:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[in_text::2])
        in_text ^= len(parts) % 2 == 0
        num_containers += outside.count(b"[") + outside.count(b"{")
        num_values += outside.count(b",") + outside.count(b":")
        begin = end
        for count, limit, what in (
            (num_containers, MAX_CONTAINERS, "arrays and objects"),
            (num_values, MAX_VALUES, "values"),
        ):
            if count > limit:
                raise InputError(
                    f"the JSON body has {count} {what} or more; at most {limit} are accepted. Send JSON lines where "
                    "the endpoint accepts them, or several requests"
                )


def parse_json(kind: type[W], body: bytes) -> W:
    """Parse the body of a request.

    Raises:
        InputError: the body is not UTF-8, JSON or a valid `kind`, or nested too deeply or too large.
    """
    check_json_size(body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if body.startswith(codecs.BOM_UTF8):
            raise InputError(
                "the JSON begins with a byte-order mark (U+FEFF), which RFC 8259 does not allow"
            ) from None
        raise invalid_input(error) from None


def parse_lines(body: bytes, parse: Callable[[bytes], T]) -> Iterator[T | InputError]:
    """Parse a body's lines lazily; yield an invalid line's error. A final line feed starts none."""
    for line in io.BytesIO(body or b"\n"):
        try:
            yield parse(line.removesuffix(b"\n"))
        except InputError as error:
            yield error


def checked_name(param: str, name: str, pattern: str, rule: str) -> str:
    """Return a name from a path.

    Raises:
        InputError: it does not match its pattern; the message tells the rule.
    """
    if re.fullmatch(pattern, name) is None:
        raise InputError.of(param, f"is {name[:200]!r}; it must be {rule}")
    return name


def invalid_input(error: ValidationError) -> InputError:
    """Convert the first error of a failed validation."""
    if error.error_count() > _MANY_ERRORS:
        return InputError(f"{error.error_count()} values in the request body are invalid")
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        reason = first["msg"].partition(": ")[2] or first["msg"]
        return InputError(f"not JSON in UTF-8: {reason}")
    param = _path(first["loc"])
    if first["type"] == "missing":
        return InputError.of(param, "is required")
    if first["type"] == "extra_forbidden":
        return InputError(f"unknown parameter {param!r}", param=param)
    if not param and isinstance(first["input"], dict):
        # mutually exclusive fields: quoting the object would not help
        return InputError(_constraint_text(first["msg"]))
    shown = repr(_truncate(first["input"]))
    if len(shown) > _MAX_SHOWN_CHARS:
        shown = shown[:_MAX_SHOWN_CHARS] + "…"
    return InputError(
        f"{param or 'the request body'} is {shown}: {_constraint_text(first['msg'])}",
        param=param or None,
    )


def _path(location: tuple[int | str, ...]) -> str:
    """Format `("lists", 3, "id")` as `lists[3].id`, without names of alternatives (`<…`) and marks of names."""
    path = ""
    for key in location:
        if isinstance(key, int):
            path += f"[{key}]"
        elif not key.startswith("<") and key != "[key]":
            path += f".{key}" if path else key
    return path


def _truncate(value: Any) -> Any:
    """Truncate a value for display: formatting megabytes delays all other requests."""
    if isinstance(value, str):
        return value[: _MAX_SHOWN_CHARS + 1]
    if isinstance(value, list):
        return [_truncate(entry) for entry in value[: _MAX_SHOWN_CHARS + 1]]
    if isinstance(value, dict):
        return {_truncate(name): _truncate(value[name]) for name in islice(value, _MAX_SHOWN_CHARS + 1)}
    return value


def _constraint_text(message: str) -> str:
    # pydantic's words about a list's length, and Python's names of JSON's kinds
    first, space, rest = message.replace(" after validation", "").partition(" ")
    first = {"Tuple": "list", "Dictionary": "object"}.get(first, first)
    return f"{first[:1].lower()}{first[1:]}{space}{rest}"


def _context_tag(value: Any) -> str | None:
    """Return the alternative that matches a value's type; errors then concern only it."""
    if isinstance(value, list):
        first = value[0] if value else None
        return "<texts>" if isinstance(first, str) else "<id lists>" if isinstance(first, list) else "<ids>"
    return "<text>" if isinstance(value, str) else None


OneContext = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TokenId], Tag("<ids>")],
    Discriminator(_context_tag, "text_or_ids", _CONTEXT_MESSAGE),
]
"""A string, or a list of token ids."""

OneOrMoreContexts = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Tag("<texts>"), Field(min_length=1)]
    | Annotated[list[TokenId], Tag("<ids>")]
    | Annotated[list[list[TokenId]], Tag("<id lists>"), Field(min_length=1)],
    Discriminator(_context_tag, "text_or_ids", _CONTEXT_MESSAGE + ", or a list of either"),
]
"""A string, a list of strings, a list of token ids, or a list of such lists."""


def named_contexts(
    given: str | list[str] | list[int] | list[list[int]], param: str
) -> tuple[tuple[str, TextOrIds], ...]:
    """Return each context and its name in errors."""
    if isinstance(given, str) or not given or isinstance(given[0], int):
        return ((param, given),)  # type: ignore[return-value]  # a list of one kind by its type
    return tuple((f"{param}[{i}]", context) for i, context in enumerate(given))  # type: ignore[misc]


def json_pieces(
    reply: Any, name: str, items: Sequence[T], write: Callable[[T], Any], *, entries: int
) -> Iterator[bytes]:
    """Yield a reply as JSON in UTF-8, in chunks of bounded time.

    Args:
        reply: reply with one empty list.
        name: name of the list.
        items: items of the list.
        write: converts an item to a list element; all have the same type.
        entries: number of entries in all elements, such as candidates of all contexts.
    """
    return _pieces(to_json(reply), (name, items, write, entries))


def reply_pieces(reply: Any, **entries: int) -> Iterator[bytes]:
    """Yield a reply as JSON in UTF-8, in chunks of bounded time.

    Args:
        reply: reply, a dataclass.
        entries: number of entries in each long list, such as suggestions of all issues, in the order
            of the reply's fields.
    """
    lists = ((name, getattr(reply, name), lambda item: item, number) for name, number in entries.items())
    return _pieces(to_json(replace(reply, **{name: [] for name in entries})), *lists)


def _pieces(rest: bytes, *lists: tuple[str, Sequence[Any], Callable[[Any], Any], int]) -> Iterator[bytes]:
    """Yield JSON with some empty lists, and their items; see `json_pieces`."""
    for name, items, write, entries in lists:
        before, rest = rest.split(f'"{name}":[]'.encode(), 1)
        piece = before + f'"{name}":['.encode()
        batch_size = max(1, ENTRIES_PER_PIECE * len(items) // max(entries, 1))
        for begin in range(0, len(items), batch_size):
            if begin:
                yield piece + b","
                piece = b""
            results = [write(item) for item in items[begin : begin + batch_size]]
            kind: Any = type(results[0])
            piece += to_json(results, list[kind])[1:-1]
        rest = piece + b"]" + rest
    yield rest
