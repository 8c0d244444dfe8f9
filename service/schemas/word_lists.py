"""Entries of dictionaries, blocklists and phrases: texts, weights, and references to stored word lists."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from unicodedata import normalize

from pydantic import Field, StringConstraints, Tag, TypeAdapter, ValidationError

from models.errors import InputError
from models.phrases import Phrase
from models.word_list import MAX_WEIGHT, Casing
from service.schemas import with_examples
from service.schemas.wire import TextOrObject, TextOrReference, WireModel, by_content, invalid_input

MAX_ENTRY_CHARS = 200
"""Maximum characters of an entry."""

MAX_LINE_BYTES = 1 << 12
"""Maximum bytes of a line: an entry of escaped characters, with its weight."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NAME_RULE = "1 to 64 letters, digits or . _ - and begin with a letter or digit"

_ENDS = {tuple(b'""'), tuple(b"{}")}
"""First and last byte of a line: joined with others, it could be a part of an entry."""

EntryText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ENTRY_CHARS, pattern=r"\S")]
"""A word, or several separated by spaces."""


class WeightedEntry(WireModel):
    """An entry with a weight."""

    model_config = with_examples({"text": "setlist", "weight": 3}, {"text": "New York"})

    text: EntryText
    """A word, or several separated by spaces."""
    weight: float = Field(1.0, gt=0, le=MAX_WEIGHT)
    """Equivalent count: how often the entry is assumed to have been typed."""


class StoredWords(WireModel):
    """A stored word list, whose entries count as if they were given."""

    wordlist: str = Field(pattern=NAME_PATTERN)
    """Name of the list, see `PUT /v1/wordlists/{name}`."""


class StoredPhrases(StoredWords):
    """A stored word list, whose entries count as phrases with their weights."""

    class_name: Annotated[str, Field(alias="class", pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = ""
    """Class `NAME` of all its phrases, with a feature of its own, `phrases:NAME`; empty for the feature `phrases`."""


DictionaryEntry = Annotated[
    TextOrObject[EntryText, WeightedEntry] | Annotated[StoredWords, Tag("<list>")],
    by_content("a string, or an object with text and weight, or with wordlist", "wordlist"),
]
BlockedEntry = Annotated[
    TextOrReference[EntryText, StoredWords], by_content("a string, or an object with wordlist", "wordlist")
]
PhraseEntry = Annotated[
    Annotated[Phrase, Tag("<object>")] | Annotated[StoredPhrases, Tag("<list>")],
    by_content("an object with text, or with wordlist", "wordlist"),
]

_LineEntry = Annotated[
    TextOrObject[EntryText, WeightedEntry], by_content("a string, or an object with text and weight")
]
_lines: TypeAdapter[Any] = TypeAdapter(list[_LineEntry])


class WordListSettings(WireModel):
    """Properties of a word list, in the query string."""

    casing: Casing = "ignore"
    """Whether entries are compared in their case, or in any."""
    language: str | None = Field(None, pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$")
    """Language of the texts that it serves; null for any."""


@dataclass(frozen=True, slots=True)
class WordListReply:
    """A stored word list.

    Attributes:
        name: its name.
        version: 1, or one more than that of the list which it replaced.
        casing: whether its entries are compared in their case, or in any.
        language: language of the texts that it serves, or null for any.
        entries: number of distinct entries.
        words: number of distinct words in the entries.
        bytes: size of its file.
    """

    name: str
    version: int
    casing: Casing
    language: str | None
    entries: int
    words: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WordListsReply:
    """The word lists of an API key.

    Attributes:
        wordlists: the lists, sorted by name.
    """

    wordlists: list[WordListReply]


@dataclass(frozen=True, slots=True)
class DeletedReply:
    """Confirmation of a deleted word list.

    Attributes:
        name: name of the list.
        deleted: false if there was none.
    """

    name: str
    deleted: bool


def parse_entries(lines: Sequence[bytes], number: int) -> list[tuple[str, float]]:
    """Parse lines of JSON, of which the first has a number; blank ones are skipped.

    Raises:
        InputError: a line is invalid; the message has its number.
    """
    filled = [stripped for line in lines if (stripped := line.strip())]
    problem = ""
    if len(lines) == 1 or all((line[0], line[-1]) in _ENDS for line in filled):
        try:
            found = _lines.validate_json(b"[%b]" % b",\n".join(filled), strict=True)
            if len(found) == len(filled):
                return [_checked(entry) for entry in found]
            problem = f"has {len(found)} values; one is expected"
        except ValidationError as error:
            problem = re.sub(r"\[0\]\.?| at line 1 column \d+$", "", str(invalid_input(error)))
        except InputError as error:
            problem = str(error)
    if len(lines) > 1:  # each half apart, to find the wrong line
        half = len(lines) // 2
        return parse_entries(lines[:half], number) + parse_entries(lines[half:], number + half)
    raise InputError(f"line {number}: {problem.strip()}", param="body")


def _checked(entry: str | WeightedEntry) -> tuple[str, float]:
    """Return an entry's text, composed, and its weight.

    Raises:
        InputError: the text is white space, has a null character, or is too long once it is composed.
    """
    text, weight = (entry, 1.0) if isinstance(entry, str) else (entry.text, entry.weight)
    if not text.split():
        raise InputError(f"is {text!r}, white space only")
    if not text.isascii():
        text = normalize("NFC", text)
    if "\0" in text:
        raise InputError("has the character U+0000")
    if len(text) > MAX_ENTRY_CHARS:
        raise InputError(
            f"has {len(text)} characters in the form NFC; at most {MAX_ENTRY_CHARS} are accepted"
        )
    return text, weight
