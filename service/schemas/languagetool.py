"""Replies of LanguageTool's HTTP API. Positions are in UTF-16 code units of the text with its markup, as in Java."""

from dataclasses import dataclass
from typing import Any

# ruff: noqa: N815 - LanguageTool's names


@dataclass(frozen=True, slots=True)
class LanguageToolLanguage:
    """A language of the service."""

    name: str
    """name of the language: its code."""
    code: str
    """code without the country, such as `en`."""
    longCode: str
    """complete code, such as `en-US`."""


@dataclass(frozen=True, slots=True)
class LanguageToolMatch:
    """A probable error."""

    message: str
    """message for users."""
    shortMessage: str
    """shorter message."""
    replacements: list[dict[str, str]]
    """corrections, most probable first; `value` is the text."""
    offset: int
    """start of the error."""
    length: int
    """length of the error."""
    context: dict[str, str | int]
    """`text` around the error, and the error's `offset` and `length` in it."""
    sentence: str
    """line of the error, without markup."""
    type: dict[str, str]
    """`typeName`: `UnknownWord` or `Other`."""
    rule: dict[str, Any]
    """`id`, `description`, `issueType` and `category` of the kind of error."""
    ignoreForIncompleteSentence: bool = False
    """always false."""
    contextForSureMatch: int = 0
    """always 0."""


@dataclass(frozen=True, slots=True)
class LanguageToolReply:
    """The probable errors of a text, as LanguageTool reports them."""

    software: dict[str, str | int | bool]
    """`name`, `version` and `apiVersion`."""
    warnings: dict[str, bool]
    """`incompleteResults`: always false."""
    language: dict[str, Any]
    """`name` and `code` of the requested language, and `detectedLanguage`, that of the check; its `confidence` is the
    share of known words."""
    matches: list[LanguageToolMatch]
    """probable errors, in order."""
