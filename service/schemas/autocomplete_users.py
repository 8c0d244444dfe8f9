"""/v1/autocomplete/users/{user}: what a user has accepted."""

import itertools
import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, StringConstraints

from models.completion.personal import (
    PairCount,
    UserModel,
    UserModelLimits,
    WordCount,
    user_model_from_counts,
)
from models.errors import InvalidInputError
from service.schemas.autocomplete import NAME_PATTERN
from service.schemas.autocomplete_replies import UserPair, UserReply, UserWord, UserWords
from service.schemas.bounds import schema_only
from service.schemas.wire import WireModel

K = TypeVar("K")
MAX_ACCEPTED_CHARACTERS = 10_000
_NO_SPACE = r"[^\s\x1c-\x1f]"  # information separators part words too, for Python
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
    """How often a word was accepted after another."""

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
        """The model of these counts.

        Raises:
            InvalidInputError: there are too many, one is too long or stands there twice, or a pair's word is not
                among the words.
        """
        _check_count(len(self.words), bounds.max_words, parameter="words")
        _check_count(len(self.pairs), bounds.max_pairs, parameter="pairs")
        for place, one in enumerate(self.words):
            _check_length(one.text, bounds.max_word_characters, parameter=f"words[{place}].text")
        words = _unique_counts([(one.text, one.count) for one in self.words], parameter="words")
        pairs = _unique_counts(
            [((one.previous, one.text), one.count) for one in self.pairs], parameter="pairs"
        )
        for place, pair in enumerate(self.pairs):
            _check_length(pair.previous, bounds.max_word_characters, parameter=f"pairs[{place}].previous")
            if pair.text not in words:
                parameter = f"pairs[{place}].text"
                raise InvalidInputError(
                    f"{parameter} is {pair.text!r}, which is not among the words", parameter=parameter
                )
        return user_model_from_counts(
            itertools.starmap(WordCount, words.items()), (PairCount(*pair, n) for pair, n in pairs.items())
        )


def check_user_name(user: str) -> str:
    """A user's name as a path has it, if one can have it.

    Raises:
        InvalidInputError: it cannot.
    """
    if re.fullmatch(NAME_PATTERN, user) is None:
        raise InvalidInputError(
            f"user is {user[:200]!r}; it can have 1 to 128 letters, digits and . _ @ : + = -, no dot first",
            parameter="user",
        )
    return user


def user_reply(user: str, model: UserModel) -> UserReply:
    """How much is known of a user, as it goes over the wire."""
    return UserReply(user, len(model), model.num_pairs)


def export_reply(user: str, model: UserModel) -> UserWords:
    """All that is known of a user, as it goes over the wire."""
    words, pairs = model.export()
    return UserWords(user, [UserWord(*word) for word in words], [UserPair(*pair) for pair in pairs])


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
    """Counts by what is counted, which may stand there once."""
    counts: dict[K, float] = {}
    for place, (counted, count) in enumerate(items):
        if counted in counts:
            raise InvalidInputError(
                f"{parameter}[{place}] is {counted!r} a second time", parameter=f"{parameter}[{place}]"
            )
        counts[counted] = count
    return counts
