"""Requests and replies of the HTTP interface."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import ConfigDict


def with_examples(*examples: Any, extra: Literal["allow", "forbid", "ignore"] = "forbid") -> ConfigDict:
    """Return the configuration of a request with examples; `extra` concerns unknown fields."""
    return ConfigDict(extra=extra, json_schema_extra={"examples": [*examples]})


def schema_objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a schema of pydantic's core, parts before the whole."""
    if isinstance(schema, dict | list):
        for part in schema.values() if isinstance(schema, dict) else schema:
            yield from schema_objects(part)
    if isinstance(schema, dict):
        yield schema
