"""POST /v1/autocomplete."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag

from service.engine.hosted import LoadedModel
from service.schemas.autocomplete_replies import AutocompleteReply, CompletionCandidate
from service.schemas.wire import TimedRequest, WireModel, text_or_object_tag
from service.use_cases.autocomplete import AutocompleteCommand, AutocompleteResult
from service.use_cases.autocomplete_offers import CompletionOptions

MAX_LIST = 10_000
"""Entries of a dictionary or a blocklist."""

_MAX_ENTRY_CHARACTERS = 200
NAME_PATTERN = r"^[A-Za-z0-9_@:+=-][A-Za-z0-9._@:+=-]{0,127}$"

UserName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Of a user or session: what may stand in a path, and is no path itself."""

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
        """The request as its use case takes it."""
        return AutocompleteCommand(
            text=self.text,
            max_words=self.max_words,
            ignore_case=self.casing == "ignore",
            edits=self.fuzzy,
            dictionary=tuple(map(_weighted, self.dictionary)),
            max_steps=self.max_steps,
            options=CompletionOptions(
                limit=self.limit,
                min_probability=self.min_probability,
                by_savings=self.rank == "savings",
                blocklist=frozenset(" ".join(entry.casefold().split()) for entry in self.blocklist),
                user_weight=self.user_weight,
            ),
        )


def autocomplete_reply(loaded: LoadedModel, done: AutocompleteResult) -> AutocompleteReply:
    """The completions as they go over the wire."""
    candidates = [
        CompletionCandidate(
            one.text,
            one.suffix,
            done.start,
            one.probability,
            one.num_words,
            one.is_complete,
            one.edits,
            "user" if one.of_user else "model",
        )
        for one in done.completions
    ]
    return AutocompleteReply(loaded.address, done.prefix, done.start, candidates, done.unexplored_mass)


def _weighted(entry: str | WeightedEntry) -> tuple[str, float]:
    return (entry.text, entry.weight) if isinstance(entry, WeightedEntry) else (entry, 1.0)
