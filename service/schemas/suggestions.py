"""Replies that suggest words: completions, the words that a user has accepted, and corrections.

See `replies` for the conventions of all replies.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CompletionCandidate:
    """A completion.

    Attributes:
        text: the completed word or phrase, which replaces the typed text from `start` on.
        suffix: text to append to the typed text instead, with a leading space if needed; null if typed
            characters change.
        start: position in characters where `text` begins.
        probability: probability, given the typed prefix, that the next word or words are exactly `text`, or
            that the next word begins with `text` if `is_complete_word` is false.
        num_words: number of words.
        is_complete_word: true if `text` ends at the end of a word.
        edits: number of corrected characters of the prefix.
        source: larger contributor to the probability: `model`, or `user` for the user's words and the
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
    """Completions of a text, best first.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        prefix: typed beginning of the word to complete; may be empty.
        start: position of the prefix in the text, in characters.
        completions: completions, best first; beginnings of words follow the complete words.
        unexplored_mass: probability that the search did not reach, and of words that are not offered; no
            completion's probability is too low by more than this.
    """

    model: str
    prefix: str
    start: int
    completions: list[CompletionCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class UserReply:
    """Numbers of words and word pairs stored for a user.

    Attributes:
        user: name of the user.
        num_words: number of stored words.
        num_pairs: number of stored word pairs.
    """

    user: str
    num_words: int
    num_pairs: int


@dataclass(frozen=True, slots=True)
class ForgottenReply:
    """Result of deleting a user's words.

    Attributes:
        user: name of the user.
        forgotten: false if no words were stored for the user.
    """

    user: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class UserWord:
    """A word and its number of acceptances.

    Attributes:
        text: the word.
        count: number of acceptances, which decays as other words are accepted.
    """

    text: str
    count: float


@dataclass(frozen=True, slots=True)
class UserPair:
    """A pair of words and its number of acceptances.

    Attributes:
        previous: preceding word; empty at the start of a sentence.
        text: the word.
        count: number of acceptances, which decays as other words are accepted.
    """

    previous: str
    text: str
    count: float


@dataclass(frozen=True, slots=True)
class UserWords:
    """Words and word pairs stored for a user.

    Attributes:
        user: name of the user.
        words: stored words.
        pairs: stored word pairs.
    """

    user: str
    words: list[UserWord]
    pairs: list[UserPair]


@dataclass(frozen=True, slots=True)
class WordSurprisal:
    """A word of a checked text.

    Attributes:
        start: start of the word in the text, in code points.
        end: end of the word in the text, in code points.
        text: the word.
        surprisal_bits: −log2 of the word's probability given the preceding text, summed over its tokens; a
            word includes the space before it, not the one after it, as in the `words` of /v1/score.
        known: true if the word is a token of the model (for a character model: if all its characters are) or
            in the request's dictionary.
    """

    start: int
    end: int
    text: str
    surprisal_bits: float
    known: bool


@dataclass(frozen=True, slots=True)
class SuggestedText:
    """A correction for words that are probably wrong.

    Attributes:
        text: the corrected text.
        probability: probability of the correction, given the text on both sides.
        gain_bits: increase of the text's log2 probability under the language model alone.
        edits: number of changed letters.
    """

    text: str
    probability: float
    gain_bits: float
    edits: int


@dataclass(frozen=True, slots=True)
class TextIssue:
    """Words that are probably wrong.

    Attributes:
        start: start of the words in the text, in code points.
        end: end of the words in the text, in code points.
        text: the words.
        type: `unknown_word`, or `real_word` for a known word that does not fit the context.
        probability: probability of an error.
        suggestions: corrections, most probable first.
    """

    start: int
    end: int
    text: str
    type: Literal["unknown_word", "real_word"]
    probability: float
    suggestions: list[SuggestedText]


@dataclass(frozen=True, slots=True)
class CheckReply:
    """All words of the text, and the probable errors.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        threshold: minimum error probability in effect.
        precision: share of issues that were errors at this threshold when the model was calibrated; null
            without calibration.
        words: all words of the text.
        issues: probable errors.
        surprisal_bits: surprisal of the text in bits, line ends included.
        bits_per_word: surprisal divided by the number of words and line ends; null for an empty text.
    """

    model: str
    threshold: float
    precision: float | None
    words: list[WordSurprisal]
    issues: list[TextIssue]
    surprisal_bits: float
    bits_per_word: float | None
