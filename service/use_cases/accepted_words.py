"""Accepted words of a user: what is learnt from a text, and what is restored from an export."""

import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, StringConstraints

from models.completion.user_model import UserModel, UserModelLimits, user_model_from_counts
from models.errors import InvalidInputError
from service.schemas.wire import WireModel, schema_only

NAME_PATTERN = r"^[A-Za-z0-9_@:+=-][A-Za-z0-9._@:+=-]{0,127}$"

UserName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Name of a user or session, safe as a segment of a path."""

K = TypeVar("K")
MAX_ACCEPTED_CHARACTERS = 10_000
_NO_SPACE = r"[^\s\x1c-\x1f]"  # Python splits words at information separators too
_WORD_LENGTH = schema_only(maxLength=UserModelLimits().max_word_characters)
WordText = Annotated[str, StringConstraints(pattern=rf"^{_NO_SPACE}+$"), _WORD_LENGTH]
AcceptedCount = Annotated[float, Field(gt=0, le=1e9)]


class AcceptedRequest(WireModel):
    """Learn words, and which came after which, from what a user has accepted or written."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "length of an object", "context": "Return the "}]}
    )

    text: str = Field(min_length=1, max_length=MAX_ACCEPTED_CHARACTERS)
    """A completion, a sentence, or several."""
    context: Annotated[str, Field(max_length=MAX_ACCEPTED_CHARACTERS)] | None = None
    """What stands before it, or the end of that; empty where it begins a text, null if it is not told: then nothing is
    learnt of what its first word came after."""


class WordIn(WireModel):
    """A word and how often it was accepted."""

    text: WordText
    """The word."""
    count: AcceptedCount
    """How often; need not be whole."""


class PairIn(WireModel):
    """A pair of words and the number of times the second was accepted after the first."""

    previous: Annotated[str, StringConstraints(pattern=rf"^{_NO_SPACE}*$"), _WORD_LENGTH]
    """The word before, among the words or not; empty at the start of a sentence."""
    text: WordText
    """The word; among the words."""
    count: AcceptedCount
    """How often; need not be whole."""


class ImportRequest(WireModel):
    """Know this of a user instead of whatever was known, as the export has it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "words": [{"text": "Gramophone", "count": 3}, {"text": "records", "count": 1}],
                    "pairs": [{"previous": "Gramophone", "text": "records", "count": 1}],
                }
            ]
        }
    )

    user: str | None = None
    """As in an export; the path says whose words these become."""
    words: list[WordIn]
    """Each once."""
    pairs: list[PairIn] = Field(default_factory=list)
    """Each once."""

    def personal(self, bounds: UserModelLimits) -> UserModel:
        """Return the user model of these counts.

        Raises:
            InvalidInputError: there are too many words or pairs, one is too long or occurs twice, or the word of
                a pair is not among the words.
        """
        _check_count(len(self.words), bounds.max_words, parameter="words")
        _check_count(len(self.pairs), bounds.max_pairs, parameter="pairs")
        for index, word in enumerate(self.words):
            _check_length(word.text, bounds.max_word_characters, parameter=f"words[{index}].text")
        words = _unique_counts([(word.text, word.count) for word in self.words], parameter="words")
        pairs = _unique_counts(
            [((pair.previous, pair.text), pair.count) for pair in self.pairs], parameter="pairs"
        )
        for index, pair in enumerate(self.pairs):
            _check_length(pair.previous, bounds.max_word_characters, parameter=f"pairs[{index}].previous")
            if pair.text not in words:
                parameter = f"pairs[{index}].text"
                raise InvalidInputError(
                    f"{parameter} is {pair.text!r}, which is not among the words", parameter=parameter
                )
        return user_model_from_counts(words.items(), ((*pair, n) for pair, n in pairs.items()))


def check_user_name(user: str) -> str:
    """Return the name of a user, as given in a path.

    Raises:
        InvalidInputError: it is not a valid name.
    """
    if re.fullmatch(NAME_PATTERN, user) is None:
        raise InvalidInputError(
            f"user is {user[:200]!r}; it can have 1 to 128 letters, digits and . _ @ : + = -, no dot first",
            parameter="user",
        )
    return user


def _check_count(count: int, limit: int, *, parameter: str) -> None:
    if count > limit:
        raise InvalidInputError(
            f"{parameter} has {count} entries; at most {limit} are kept of a user", parameter=parameter
        )


def _check_length(word: str, limit: int, *, parameter: str) -> None:
    if len(word) > limit:
        raise InvalidInputError(
            f"{parameter} has {len(word)} characters; words of at most {limit} are kept", parameter=parameter
        )


def _unique_counts(items: Iterable[tuple[K, float]], *, parameter: str) -> dict[K, float]:
    """Return counts by item; an item may occur once."""
    counts: dict[K, float] = {}
    for index, (item, count) in enumerate(items):
        if item in counts:
            raise InvalidInputError(
                f"{parameter}[{index}] is {item!r} a second time", parameter=f"{parameter}[{index}]"
            )
        counts[item] = count
    return counts
