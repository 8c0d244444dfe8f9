"""What /v1/autocomplete answers: the names on the wire, for the server that writes them and the client."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CompletionCandidate:
    """One way to go on.

    `text` stands from the reply's `start` on, in place of what was typed there. `suffix` is what to append instead,
    with the space before it if there must be one; null where what was typed changes. `probability` is that
    the text goes on so and the word ends there, given that it goes on as a word that begins with the prefix; where
    `is_complete_word` is false, that it goes on with some word that begins so. `edits` says how many characters of
    the prefix were corrected; `source`, who gave most of the probability: the model, or the user's words and the
    dictionary.
    """

    text: str
    suffix: str | None
    start: int
    probability: float
    num_words: int
    is_complete_word: bool
    edits: int
    source: Literal["model", "user"]


@dataclass(frozen=True, slots=True)
class AutocompleteReply:
    """Ways to complete a text, the best first.

    `prefix` is the part of the text that is completed, from `start` on, in characters. `unexplored_mass` is the part of
    the probability that the search did not follow to the end of a word; each probability is that much too low at most.
    """

    model: str
    prefix: str
    start: int
    completions: list[CompletionCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class UserReply:
    """How much is known of what a user writes."""

    user: str
    num_words: int
    num_pairs: int


@dataclass(frozen=True, slots=True)
class ForgottenReply:
    """Whether anything was known of the user."""

    user: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class UserWord:
    """A word and how often it was accepted; the count fades as others are."""

    text: str
    count: float


@dataclass(frozen=True, slots=True)
class UserPair:
    """How often a word was accepted after another; `previous` is empty at the start of a sentence."""

    previous: str
    text: str
    count: float


@dataclass(frozen=True, slots=True)
class UserWords:
    """All that is known of what a user writes."""

    user: str
    words: list[UserWord]
    pairs: list[UserPair]
