"""Requests and replies of the HTTP interface."""

from typing import Any, Literal

from pydantic import ConfigDict


def with_examples(*examples: Any, extra: Literal["allow", "forbid", "ignore"] = "forbid") -> ConfigDict:
    """Return the configuration of a request with examples; `extra` concerns unknown fields."""
    return ConfigDict(extra=extra, json_schema_extra={"examples": [*examples]})
