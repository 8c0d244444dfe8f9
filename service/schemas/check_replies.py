"""What /v1/check answers: the names on the wire, for the server that writes them and the client."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class WordSurprisal:
    """A word from `start` to `end` in code points of the text as given.

    `surprisal_bits` is −log2 of its probability given what stands before it, summed over its tokens: the space before a
    word counts as part of it, the one after it does not, as in the `words` of /v1/score. `known` says whether the model
    has a token that spells it (of characters: whether it knows them all) or the request's dictionary has it.
    """

    start: int
    end: int
    text: str
    surprisal_bits: float
    known: bool


@dataclass(frozen=True, slots=True)
class SuggestedText:
    """What may have been meant.

    `probability` is that it was, given the text on both sides; `gain_bits` by how much it makes the text likelier to
    the model, errors aside; `edits` how many letters are to be changed.
    """

    text: str
    probability: float
    gain_bits: float
    edits: int


@dataclass(frozen=True, slots=True)
class TextIssue:
    """Words from `start` to `end` that are probably wrong; `probability` is that something else was meant."""

    start: int
    end: int
    text: str
    type: Literal["unknown_word", "real_word"]
    probability: float
    suggestions: list[SuggestedText]


@dataclass(frozen=True, slots=True)
class CheckReply:
    """All words, and those that are probably wrong.

    `threshold` is the one that counted, `precision` the share of issues that were errors with it when the model was
    calibrated, null if it was not. `surprisal_bits` is of the whole text, ends of lines included; `bits_per_word`
    divides it by the words between white space and the ends of lines, and is null for a text without any.
    """

    model: str
    threshold: float
    precision: float | None
    words: list[WordSurprisal]
    issues: list[TextIssue]
    surprisal_bits: float
    bits_per_word: float | None
