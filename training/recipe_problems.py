"""What is wrong with a recipe, in words: which key, what it must be, what was given."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from models.errors import InvalidInputError

_MUST_BE = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be finite",
    "literal_error": "must be {expected}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "model_type": "is a table of keys",
}
_KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": "must be a list",
    "missing": "is missing",
}
_SHOWN_CHARACTERS = 200
_LISTS = {"ngram.prune": "a list such as [0, 0, 1]", "mixture.recipes": 'a list such as ["ngram", "lstm"]'}


def recipe_error(error: ValidationError, recipe: type[BaseModel], *, source: str) -> InvalidInputError:
    """The first thing that is wrong, as the error to raise.

    Args:
        error: what checking the table said.
        recipe: what a whole recipe looks like.
        source: the recipe's name.
    """
    first = error.errors()[0]
    path = [part for part in first["loc"] if isinstance(part, str)]  # without the place inside a list
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        problem = f"there is no such key; {_known_keys(recipe, path[:-1])}"
    else:
        problem = _problem(key, first["type"], first["msg"], first.get("ctx", {}))
        if first["type"] not in {
            "missing",
            "value_error",
        }:  # our own words name the value where it says something
            problem += f", given {first['input']!r:.{_SHOWN_CHARACTERS}}"
    return InvalidInputError(f"recipe {source}: {key:.{_SHOWN_CHARACTERS}}: {problem}", parameter=key)


def _problem(key: str, kind: str, message: str, context: Mapping[str, Any]) -> str:
    if key in _LISTS and kind != "value_error":
        return f"must be {_LISTS[key]}"
    if kind in _MUST_BE:
        return _MUST_BE[kind].format_map({name: _plain_limit(limit) for name, limit in context.items()})
    if kind == "value_error":
        return str(context["error"])
    return _KINDS.get(kind.split("_", maxsplit=1)[0], message)


def _plain_limit(limit: Any) -> Any:
    """A limit without a decimal point that says nothing."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _known_keys(recipe: type[BaseModel], table: Sequence[str]) -> str:
    model: Any = recipe
    for name in table:
        model = model.model_fields[name].annotation
    where = f"[{'.'.join(table)}] has" if table else "a recipe has"
    return f"{where} {', '.join(model.model_fields)}"
