"""Schemas of POST /v1/autocomplete and /v1/autocomplete/users/{user}."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag

from models.completion.prefix import PrefixSplit
from models.completion.user_model import UserModel, UserModelLimits, user_model_from_counts
from models.errors import InvalidInputError
from service.engine.loaded_model import LoadedModel
from service.schemas.replies import (
    AutocompleteReply,
    CompletionCandidate,
    UserPair,
    UserReply,
    UserWord,
    UserWords,
)
from service.schemas.wire import TimedRequest, WireModel, schema_only, text_or_object_tag
from service.use_cases.autocomplete import AutocompleteCommand, AutocompleteResult

MAX_LIST = 10_000
"""Entries of a dictionary or a blocklist."""

_MAX_ENTRY_CHARACTERS = 200
NAME_PATTERN = r"^[A-Za-z0-9_@:+=-][A-Za-z0-9._@:+=-]{0,127}$"

UserName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Name of a user or session, safe as a segment of a path."""

EntryText = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_ENTRY_CHARACTERS, pattern=r"\S")]
"""A word, or several with spaces between."""


class WeightedEntry(WireModel):
    """An entry of a dictionary that counts for more than others, or less."""

    text: EntryText
    """A word, or several with spaces between."""
    weight: float = Field(default=1.0, gt=0, le=1e9)
    """As if it had been written so often."""


DictionaryEntry = Annotated[
    Annotated[EntryText, Tag("<text>")] | Annotated[WeightedEntry, Tag("<object>")],
    Discriminator(
        text_or_object_tag,
        custom_error_type="entry",
        custom_error_message="input should be a text, or an object with text and weight",
    ),
]


class AutocompleteRequest(TimedRequest):
    """Complete the word that somebody is typing, or tell the next one."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "Return the len", "limit": 3},
                {
                    "text": "If the obj",
                    "limit": 5,
                    "max_words": 2,
                    "rank": "savings",
                    "fuzzy": 1,
                    "dictionary": ["objcopy", {"text": "objdump", "weight": 2}],
                },
            ]
        }
    )

    text: str
    """What stands before the caret; empty for the start of a sentence."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    limit: int = Field(default=10, ge=1, le=100)
    """How many completions to tell at most."""
    max_words: int = Field(default=1, ge=1, le=8)
    """Above 1, phrases of up to so many words are told beside words."""
    min_probability: float = Field(default=0.0, ge=0, le=1)
    """Less probable completions are not told."""
    rank: Literal["probability", "savings"] = "probability"
    """What puts them in order: their probability, or that times the characters that are spared."""
    casing: Literal["exact", "ignore"] = "exact"
    """Whether the case of what was typed must be that of the word. Models of lower-cased text always ignore it."""
    fuzzy: int = Field(default=0, ge=0, le=2)
    """How many typing mistakes in the prefix are looked past; one for every two of its letters at most."""
    dictionary: list[DictionaryEntry] = Field(default_factory=list, max_length=MAX_LIST)
    """Words to be offered too, known to the model or not."""
    blocklist: list[EntryText] = Field(default_factory=list, max_length=MAX_LIST)
    """Words that are never told, whatever their case, nor phrases that hold one."""
    user: UserName | None = None
    """Whose accepted words are offered too; see `/v1/autocomplete/users/{user}/accepted`."""
    user_weight: float = Field(default=0.2, ge=0, le=1)
    """The share of the user's words and the dictionary in the probabilities, where there are any."""
    session: UserName | None = None
    """Of requests of one session the newest alone is answered; older ones end with 409, `superseded`."""
    max_steps: int = Field(default=128, ge=1, le=4096)
    """Rows that the model may be asked for at most; the more, the less of the probability is unexplored."""

    def command(self) -> AutocompleteCommand:
        """Convert the request to a command."""
        return AutocompleteCommand(
            text=self.text,
            limit=self.limit,
            max_words=self.max_words,
            min_probability=self.min_probability,
            by_savings=self.rank == "savings",
            ignore_case=self.casing == "ignore",
            edits=self.fuzzy,
            dictionary=tuple(map(_weighted, self.dictionary)),
            blocklist=frozenset(" ".join(entry.casefold().split()) for entry in self.blocklist),
            user_weight=self.user_weight,
            max_steps=self.max_steps,
        )


def autocomplete_reply(loaded: LoadedModel, result: AutocompleteResult) -> AutocompleteReply:
    """Convert completions to a reply."""
    typed = result.typed
    candidates = [
        CompletionCandidate(
            completion.text,
            _suffix(completion.text, typed),
            typed.start,
            completion.probability,
            completion.num_words,
            completion.is_complete,
            completion.edits,
            "user" if completion.of_user > completion.of_model else "model",
        )
        for completion in result.completions
    ]
    return AutocompleteReply(loaded.address, typed.prefix, typed.start, candidates, result.unexplored_mass)


def _suffix(text: str, typed: PrefixSplit) -> str | None:
    """Text to append to the typed one; None if that changes."""
    if not text.startswith(typed.prefix):
        return None
    return (" " if typed.space else "") + text[len(typed.prefix) :]


def _weighted(entry: str | WeightedEntry) -> tuple[str, float]:
    return (entry.text, entry.weight) if isinstance(entry, WeightedEntry) else (entry, 1.0)


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


def user_reply(user: str, model: UserModel) -> UserReply:
    """Return the numbers of words and pairs of a user, in wire format."""
    return UserReply(user, len(model), model.num_pairs)


def export_reply(user: str, model: UserModel) -> UserWords:
    """Return all words and pairs of a user, in wire format."""
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
    """Return counts by item; an item may occur once."""
    counts: dict[K, float] = {}
    for index, (item, count) in enumerate(items):
        if item in counts:
            raise InvalidInputError(
                f"{parameter}[{index}] is {item!r} a second time", parameter=f"{parameter}[{index}]"
            )
        counts[item] = count
    return counts
