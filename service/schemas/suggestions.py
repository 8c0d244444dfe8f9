"""Replies that suggest words: completions, the words that a user has accepted, and corrections.

See `replies` for the conventions of all replies. Those of LanguageTool's API have its names, and their
positions count UTF-16 code units of the text with its markup, as in Java.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from service.schemas.replies import IfGiven, ModelReply

# ruff: noqa: N815 - LanguageTool's names


@dataclass(slots=True)
class CompletionCandidate:
    """A completion."""

    text: str
    """the completed word or phrase, which replaces the typed text from `start` on."""
    suffix: str | None
    """text to append to the typed text instead, with a leading space if needed; null if typed characters change."""
    start: int
    """position in characters where `text` begins."""
    probability: float
    """probability, given the typed prefix, that the next word or words are exactly `text`, or that the next word begins
    with `text` if `is_complete_word` is false."""
    num_words: int
    """number of words."""
    is_complete_word: bool
    """true if `text` ends at the end of a word."""
    edits: int
    """number of corrected characters of the prefix."""
    source: Literal["model", "user"]
    """larger contributor to the probability: `model`, or `user` for the user's words and the dictionary."""


@dataclass(slots=True)
class AutocompleteReply(ModelReply):
    """Completions of a text, best first."""

    prefix: str
    """typed beginning of the word to complete; may be empty."""
    start: int
    """position of the prefix in the text, in characters."""
    completions: list[CompletionCandidate]
    """completions, best first; beginnings of words follow the complete words."""
    unexplored_mass: float
    """probability that the search did not reach, and of words that are not offered; no completion's probability is too
    low by more than this."""
    weights: IfGiven[dict[str, float] | None] = None
    """with several models: the weight of each after the typed text, by its address; omitted for one model."""


@dataclass(slots=True)
class UserReply:
    """Numbers of words and word pairs stored for a user."""

    user: str
    """name of the user."""
    num_words: int
    """number of stored words."""
    num_pairs: int
    """number of stored word pairs."""


@dataclass(slots=True)
class ForgottenReply:
    """Result of deleting a user's words."""

    user: str
    """name of the user."""
    forgotten: bool
    """false if no words were stored for the user."""


@dataclass(slots=True)
class UserWord:
    """A word and its number of acceptances."""

    text: str
    """the word."""
    count: float
    """number of acceptances, which decays as other words are accepted."""


@dataclass(slots=True)
class UserPair:
    """A pair of words and its number of acceptances."""

    previous: str
    """preceding word; empty at the start of a sentence."""
    text: str
    """the word."""
    count: float
    """number of acceptances, which decays as other words are accepted."""


@dataclass(slots=True)
class UserCorrection:
    """A spelling that a word replaced."""

    typed: str
    """the spelling."""
    text: str
    """the word."""
    count: float
    """number of corrections, which decays as words are accepted."""


@dataclass(slots=True)
class UserWords:
    """Words, word pairs and corrections stored for a user."""

    user: str
    """name of the user."""
    words: list[UserWord]
    """stored words."""
    pairs: list[UserPair]
    """stored word pairs."""
    corrections: IfGiven[list[UserCorrection]] = field(default_factory=list)
    """stored corrections; omitted if there are none."""


@dataclass(slots=True)
class WordSurprisal:
    """A word of a checked text."""

    start: int
    """start of the word in the text, in code points."""
    end: int
    """end of the word in the text, in code points."""
    text: str
    """the word."""
    surprisal_bits: float
    """−log2 of the word's probability given the preceding text, summed over its tokens; a word includes the space
    before it, not the one after it, as in the `words` of /v1/score."""  # noqa: RUF001 - a minus sign
    known: bool
    """true if the word is a token of the model (for a character model: if all its characters are) or in a
    dictionary of the request."""


@dataclass(slots=True)
class SuggestedText:
    """A correction for words that are probably wrong."""

    text: str
    """the corrected text."""
    probability: float
    """probability of the correction, given the text on both sides."""
    gain_bits: float
    """increase of the text's log2 probability under the language model alone."""
    edits: int
    """number of changed letters."""


@dataclass(slots=True)
class TextIssue:
    """Words that are probably wrong."""

    start: int
    """start of the words in the text, in code points."""
    end: int
    """end of the words in the text, in code points."""
    text: str
    """the words."""
    type: Literal["unknown_word", "real_word"]
    """`unknown_word`, or `real_word` for a known word that does not fit the context."""
    probability: float
    """probability of an error."""
    suggestions: list[SuggestedText]
    """corrections, most probable first."""


@dataclass(slots=True)
class CheckReply(ModelReply):
    """All words of the text, and the probable errors."""

    threshold: float
    """minimum error probability in effect."""
    precision: float | None
    """share of issues that were errors at this threshold when the model was calibrated; null without calibration."""
    words: list[WordSurprisal]
    """all words of the text."""
    issues: list[TextIssue]
    """probable errors."""
    surprisal_bits: float
    """surprisal of the text in bits, line ends included; of words in the forms, and after the spaces, that the model
    knows."""
    bits_per_word: float | None
    """surprisal divided by the number of words and line ends; null for an empty text."""
    weights: IfGiven[dict[str, float] | None] = None
    """with several models: the mean weight of each over the words, by its address; omitted for one model."""
    calibrated_on: IfGiven[str | None] = None
    """version of the model whose calibration was used; omitted if it is the one that checked."""


@dataclass(slots=True)
class LanguageToolLanguage:
    """A language of the service."""

    name: str
    """name of the language: its code."""
    code: str
    """code without the country, such as `en`."""
    longCode: str
    """complete code, such as `en-US`."""


@dataclass(slots=True)
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
    """sentence of the error, without markup, up to 240 characters on each side of the error."""
    type: dict[str, str]
    """`typeName`: `UnknownWord` or `Other`."""
    rule: dict[str, Any]
    """`id`, `description`, `issueType` and `category` of the kind of error."""
    ignoreForIncompleteSentence: bool = False
    """always false."""
    contextForSureMatch: int = 0
    """always 0."""


@dataclass(slots=True)
class LanguageToolReply:
    """The probable errors of a text, as LanguageTool reports them."""

    software: dict[str, str | int | bool]
    """`name`, `version` and `apiVersion`."""
    warnings: dict[str, bool]
    """`incompleteResults`: always false."""
    language: dict[str, Any]
    """`name` and `code` of the requested language, and `detectedLanguage`, that of the check; its `confidence` is the
    mean weight of its model, 1 if only one model checks."""
    matches: list[LanguageToolMatch]
    """probable errors, in order."""
