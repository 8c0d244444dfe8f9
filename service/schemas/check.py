"""Schemas of POST /v1/check."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from models.checking.calibration import Calibration
from models.checking.error_model import CheckSettings, GivenSpan
from models.errors import InvalidInputError, UnsupportedParameterError
from models.language_model import LOG_ZERO
from service.engine.loaded_model import LoadedModel
from service.schemas.replies import CheckReply, SuggestedText, TextIssue, WordSurprisal
from service.schemas.wire import TimedRequest, WireModel, text_or_object_tag
from service.use_cases.check import CheckCommand, CheckResult
from service.use_cases.inputs import Limits

DEFAULT_THRESHOLD = 0.5
MAX_DICTIONARY = 10_000
_MAX_SUGGESTIONS = 20
_MAX_SPANS = 1_000
_MAX_CHARACTERS = 200

OneLine = Annotated[str, StringConstraints(max_length=_MAX_CHARACTERS, pattern=r"^[^\n]*$")]
"""A text without line breaks, as each line is a sentence."""

DictionaryWord = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_CHARACTERS)]


class WeightedSuggestion(WireModel):
    """A suggestion with the caller's own error model."""

    text: OneLine
    """What may have been meant. If it is what stands there, `logprob` is that of typing it rightly."""
    logprob: float = Field(le=0)
    """Natural logarithm of the probability to type what stands there when this is meant."""


Suggested = Annotated[
    Annotated[OneLine, Tag("<text>")] | Annotated[WeightedSuggestion, Tag("<object>")],
    Discriminator(
        text_or_object_tag,
        custom_error_type="suggestion",
        custom_error_message="input should be a text, or an object with text and logprob",
    ),
]


class CandidateSpan(WireModel):
    """Suggestions of the caller for a span of the text."""

    start: int = Field(ge=0)
    """Where the span begins, in code points of the text."""
    end: int = Field(ge=1)
    """Where it ends; in the same line."""
    suggestions: list[Suggested] = Field(min_length=1, max_length=100)
    """Texts to stand there instead; empty to leave it out."""

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.end <= self.start:
            raise PydanticCustomError("empty_span", "end must be greater than start")
        return self


class CheckRequest(TimedRequest):
    """Find words that are probably wrong, whether they are words or not."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "Return the lenght of the string."},
                {
                    "text": "If the key is not fund, raise a KeyEror.",
                    "threshold": 0.3,
                    "dictionary": ["KeyError"],
                    "candidates": [{"start": 18, "end": 22, "suggestions": ["found", "fond"]}],
                },
            ]
        }
    )

    text: str
    """What to check; each line is a sentence."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """How probable it must be that a word is wrong for it to be told; 0.5 unless `precision` is given."""
    precision: float | None = Field(default=None, ge=0, le=1)
    """Or else: how many of the words told are to be wrong, by what was measured for the model."""
    max_suggestions: int = Field(default=5, ge=0, le=_MAX_SUGGESTIONS)
    """How many suggestions to tell for each."""
    candidates: list[CandidateSpan] = Field(default_factory=list, max_length=_MAX_SPANS)
    """What the caller thinks may have been meant, by the place in the text; spans must not overlap."""
    dictionary: list[DictionaryWord] = Field(default_factory=list, max_length=MAX_DICTIONARY)
    """Words that are right, whatever their case; they are suggested too."""
    error_rate: float = Field(default=0.01, gt=0, lt=1)
    """The share of words that are believed to be wrong before they are looked at."""
    max_edits: int = Field(default=2, ge=1, le=2)
    """How many letters of a word may be wrong; short words are looked for within one."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.threshold is not None and self.precision is not None:
            raise PydanticCustomError("one_of", "give either threshold or precision")
        return self

    def command(self, loaded: LoadedModel, calibration: Calibration | None, limits: Limits) -> CheckCommand:
        """Build the command to check a text.

        Args:
            loaded: model that checks the text.
            calibration: precision by threshold, if it was measured for the model.
            limits: limits of a request.

        Raises:
            InvalidInputError: spans overlap, or no threshold reaches the precision.
            UnsupportedParameterError: a precision is given, but the model was not calibrated.
        """
        limits.check_count(
            sum(len(c.suggestions) for c in self.candidates), parameter="candidates[].suggestions"
        )
        _check_disjoint(self.candidates)
        return CheckCommand(
            self.text,
            self._threshold(loaded, calibration),
            self.max_suggestions,
            CheckSettings(
                error_rate=self.error_rate,
                max_edits=self.max_edits,
                dictionary={word.lower(): word for word in self.dictionary},
                given=tuple(_given_span(index, span) for index, span in enumerate(self.candidates)),
            ),
        )

    def _threshold(self, loaded: LoadedModel, calibration: Calibration | None) -> float:
        if self.precision is None:
            return DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        if calibration is None:
            raise UnsupportedParameterError(
                f"precision is {self.precision:g}, but model {loaded.address} was not calibrated: give a threshold, or "
                "run `gramophone evaluate MODEL --task check --save-calibration`",
                parameter="precision",
            )
        return calibration.threshold_for(self.precision)


def check_reply(
    loaded: LoadedModel, command: CheckCommand, calibration: Calibration | None, checked: CheckResult
) -> CheckReply:
    """Return the findings in wire format."""
    dictionary = command.options.dictionary
    words = [
        WordSurprisal(
            word.start,
            word.end,
            word.text,
            surprisal_bits,
            known=word.known or word.text.lower() in dictionary,
        )
        for word, surprisal_bits in checked.words
    ]
    issues = [
        TextIssue(
            issue.start,
            issue.end,
            command.text[issue.start : issue.end],
            "real_word" if issue.known else "unknown_word",
            issue.probability,
            [SuggestedText(*suggestion) for suggestion in issue.suggestions],
        )
        for issue in checked.issues
    ]
    precision = None if calibration is None else calibration.precision_at(command.threshold)
    return CheckReply(
        loaded.address,
        command.threshold,
        precision,
        words,
        issues,
        checked.surprisal_bits,
        checked.bits_per_word,
    )


def _given_span(index: int, span: CandidateSpan) -> GivenSpan:
    suggestions = tuple(
        (given, None)
        if isinstance(given, str)
        else (given.text, max(given.logprob, LOG_ZERO))  # lower values would cost sums their digits
        for given in span.suggestions
    )
    return GivenSpan(span.start, span.end, suggestions, f"candidates[{index}]")


def _check_disjoint(spans: list[CandidateSpan]) -> None:
    order = sorted(range(len(spans)), key=lambda index: spans[index].start)
    for first, second in pairwise(order):
        if spans[second].start < spans[first].end:
            raise InvalidInputError(
                f"candidates[{second}] begins at {spans[second].start}, before candidates[{first}] ends at "
                f"{spans[first].end}; spans must not overlap",
                parameter=f"candidates[{second}].start",
            )
