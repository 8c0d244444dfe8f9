"""Accepted words of a user: learning from a text, and importing an export."""

import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import Field, StringConstraints

from models.completion.user_model import UserModel, UserModelLimits, user_model_from_counts
from models.errors import InputError
from service.schemas import with_examples
from service.schemas.wire import WireModel

NAME_PATTERN = r"^[A-Za-z0-9_@:+=-][A-Za-z0-9._@:+=-]{0,127}$"

UserName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Name of a user or session, safe as a segment of a path."""

K = TypeVar("K")
MAX_ACCEPTED_CHARS = 10_000
_NO_SPACE = r"[^\s\x1c-\x1f]"  # Python also splits words at information separators
_WORD_LENGTH = Field(max_length=UserModelLimits().max_word_characters)
WordText = Annotated[str, StringConstraints(pattern=rf"^{_NO_SPACE}+$"), _WORD_LENGTH]
AcceptedCount = Annotated[
    float, Field(gt=0, le=1e9, description="Number of acceptances, not necessarily an integer.")
]


class AcceptedRequest(WireModel):
    """Learn words and word pairs from a text that a user has accepted or written."""

    model_config = with_examples({"text": "length of an object", "context": "Return the "})

    text: str = Field(min_length=1, max_length=MAX_ACCEPTED_CHARS)
    """Accepted completion, or one or several sentences."""
    context: Annotated[str, Field(max_length=MAX_ACCEPTED_CHARS)] | None = None
    """Preceding text, or the end of it; empty at the start of a text. If null, the first word's predecessor is unknown
    and no pair is learnt for it."""


class WordIn(WireModel):
    """A word and its number of acceptances."""

    text: WordText
    """The word."""
    count: AcceptedCount


class PairIn(WireModel):
    """A pair of words, and how often the second was accepted after the first."""

    previous: Annotated[str, StringConstraints(pattern=rf"^{_NO_SPACE}*$"), _WORD_LENGTH]
    """Preceding word, not necessarily in `words`; empty at the start of a sentence."""
    text: WordText
    """The word; must be in `words`."""
    count: AcceptedCount


class ImportRequest(WireModel):
    """Replace all words and pairs stored for a user; the format is that of the export."""

    model_config = with_examples(
        {
            "words": [{"text": "Gramophone", "count": 3}, {"text": "records", "count": 1}],
            "pairs": [{"previous": "Gramophone", "text": "records", "count": 1}],
        }
    )

    user: str | None = None
    """User name as in an export; ignored, because the path names the user."""
    words: list[WordIn]
    """Words and counts; each word once."""
    pairs: list[PairIn] = Field(default_factory=list)
    """Word pairs and counts; each pair once."""

    def personal(self, bounds: UserModelLimits) -> UserModel:
        """Return the user model of these counts.

        Raises:
            InputError: there are too many words or pairs, one occurs twice, or a pair's word
                is not among the words.
        """
        given = ("words", self.words, bounds.max_words), ("pairs", self.pairs, bounds.max_pairs)
        for name, entries, most in given:
            if len(entries) > most:
                raise InputError.of(name, f"has {len(entries)} entries; at most {most} are stored per user")
        words = _unique_counts([(word.text, word.count) for word in self.words], param="words")
        pairs = _unique_counts(
            [((pair.previous, pair.text), pair.count) for pair in self.pairs], param="pairs"
        )
        for index, pair in enumerate(self.pairs):
            if pair.text not in words:
                param = f"pairs[{index}].text"
                raise InputError.of(param, f"is {pair.text!r}, which is not among the words")
        return user_model_from_counts(words.items(), ((*pair, n) for pair, n in pairs.items()))


def check_user_name(user: str) -> str:
    """Return the user name from a path.

    Raises:
        InputError: the name is invalid.
    """
    if re.fullmatch(NAME_PATTERN, user) is None:
        raise InputError.of(
            "user",
            f"is {user[:200]!r}; it must be 1 to 128 letters, digits or . _ @ : + = - and not begin with a dot",
        )
    return user


def _unique_counts(items: Iterable[tuple[K, float]], *, param: str) -> dict[K, float]:
    """Return counts by item; each may occur only once."""
    counts: dict[K, float] = {}
    for index, (item, count) in enumerate(items):
        if item in counts:
            raise InputError.of(f"{param}[{index}]", f"is {item!r}, which occurs twice")
        counts[item] = count
    return counts
