"""Schemas of requests and replies, with examples for the reference."""

from typing import Any

from pydantic import ConfigDict


def with_examples(*examples: Any, **config: Any) -> ConfigDict:
    """Return the configuration of a request with examples; other settings are those of pydantic's models."""
    return ConfigDict(json_schema_extra={"examples": [*examples]}, **config)
