"""Spelling and word check: probable errors of a text, and suggestions."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, count, pairwise
from math import log
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from models.calls import CallGenerator, Read, run_call
from models.checking.calibration import Calibration
from models.checking.checker import find_issues
from models.checking.error_model import CheckSettings, GivenSpan
from models.checking.error_table import ErrorTable
from models.checking.lexicon import dictionary_key
from models.checking.rescoring import RescoredBatch
from models.checking.sentences import Sentence
from models.errors import ContextLengthError, InvalidInputError, UnsupportedParameterError
from models.language_model import LOG_ZERO, count_words, is_lookup
from models.reranking.candidates import map_in_steps
from service.engine.batching import view
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.schemas.suggestions import CheckReply, SuggestedText, TextIssue, WordSurprisal
from service.schemas.wire import ModelRequest, WireModel, text_or_object
from service.use_cases.inputs import Limits, check_reads_forward

DEFAULT_THRESHOLD = 0.5
MAX_DICTIONARY = 10_000
_MAX_SUGGESTIONS = 20
_MAX_SPANS = 1_000
_MAX_CHARACTERS = 200

OneLine = Annotated[str, StringConstraints(max_length=_MAX_CHARACTERS, pattern=r"^[^\n]*$")]
"""A text without line breaks, because each line is a sentence."""

DictionaryWord = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_CHARACTERS)]


class WeightedSuggestion(WireModel):
    """A suggestion with a probability from the client's own error model."""

    text: OneLine
    """Possibly intended text; if it equals the typed text, `logprob` is for typing it correctly."""
    logprob: float = Field(le=0)
    """Natural logarithm of the probability of the typed text, given that this text was intended."""


Suggested = Annotated[
    Annotated[OneLine, Tag("<text>")] | Annotated[WeightedSuggestion, Tag("<object>")],
    text_or_object("text and logprob"),
]


class CandidateSpan(WireModel):
    """Suggestions of the client for a span of the text."""

    start: int = Field(ge=0)
    """Start of the span, in code points of the text."""
    end: int = Field(ge=1)
    """End of the span, in code points; must be in the same line."""
    suggestions: list[Suggested] = Field(min_length=1, max_length=100)
    """Replacement texts; an empty text deletes the span."""

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.end <= self.start:
            raise PydanticCustomError("empty_span", "end must be greater than start")
        return self


class CheckRequest(ModelRequest):
    """Find probable errors: unknown words, and known words that do not fit the context."""

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
    """Text to check; each line is a sentence."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Minimum probability of an error for a word to be reported; 0.5 unless `precision` is given."""
    precision: float | None = Field(default=None, ge=0, le=1)
    """Target share of reported words that are errors, instead of `threshold`; the model must be calibrated."""
    max_suggestions: int = Field(default=5, ge=0, le=_MAX_SUGGESTIONS)
    """Maximum number of suggestions per issue."""
    candidates: list[CandidateSpan] = Field(default_factory=list, max_length=_MAX_SPANS)
    """The client's own suggestions for spans of the text; spans must not overlap."""
    dictionary: list[DictionaryWord] = Field(default_factory=list, max_length=MAX_DICTIONARY)
    """Additional correct words, in any case and Unicode form; also used as suggestions."""
    error_rate: float = Field(default=0.01, gt=0, lt=1)
    """Prior probability that a word is wrong."""
    max_edits: int = Field(default=2, ge=1, le=2)
    """Maximum edits between a word and its suggestions; at most one for short words."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.threshold is not None and self.precision is not None:
            raise PydanticCustomError("one_of", "give either threshold or precision")
        return self

    def threshold_for(self, loaded: LoadedModel, calibration: Calibration | None) -> float:
        """Return the minimum probability of an error for a word to be reported.

        Args:
            loaded: model that checks the text.
            calibration: precision by threshold, if measured for the model.

        Raises:
            InvalidInputError: no threshold reaches the precision.
            UnsupportedParameterError: a precision is given, but the model was not calibrated.
        """
        if self.precision is None:
            return DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        if calibration is None:
            raise UnsupportedParameterError(
                f"precision is {self.precision:g}, but model {loaded.address} was not calibrated; give a threshold, or "
                "run `gramophone evaluate MODEL --task check --save-calibration`",
                parameter="precision",
            )
        return calibration.threshold_for(self.precision)

    def settings(self, limits: Limits) -> CheckSettings:
        """Return the settings of the search for errors.

        Raises:
            InvalidInputError: there are too many suggestions, or spans overlap or end after the text.
        """
        limits.check_count(
            sum(len(c.suggestions) for c in self.candidates), parameter="candidates[].suggestions"
        )
        _check_spans(self.candidates, len(self.text))
        return CheckSettings(
            error_rate=self.error_rate,
            max_edits=self.max_edits,
            dictionary={dictionary_key(word): word for word in self.dictionary},
            given=tuple(_given_span(index, span) for index, span in enumerate(self.candidates)),
        )


def _given_span(index: int, span: CandidateSpan) -> GivenSpan:
    suggestions = tuple(
        (given, None)
        if isinstance(given, str)
        else (given.text, max(given.logprob, LOG_ZERO))  # lower values would cost sums their precision
        for given in span.suggestions
    )
    return GivenSpan(span.start, span.end, suggestions, f"candidates[{index}]")


def _check_spans(spans: list[CandidateSpan], size: int) -> None:
    order = sorted(range(len(spans)), key=lambda index: spans[index].start)
    for first, second in pairwise(order):
        if spans[second].start < spans[first].end:
            raise InvalidInputError(
                f"candidates[{second}] begins at {spans[second].start}, before the end of candidates[{first}] at "
                f"{spans[first].end}; spans must not overlap",
                parameter=f"candidates[{second}].start",
            )
    for index, span in enumerate(spans):
        if span.end > size:
            raise InvalidInputError(
                f"candidates[{index}].end is {span.end}; the text has {size} characters",
                parameter=f"candidates[{index}].end",
            )


def check(
    loaded: LoadedModel,
    request: CheckRequest,
    calibration: Calibration | None,
    limits: Limits,
    errors: Mapping[str, ErrorTable | None] | None = None,
) -> Work[Any, tuple[CheckReply, int]]:
    """Check a text; a use case.

    Args:
        loaded: the model.
        request: the request.
        calibration: precision by threshold, if measured for the model.
        limits: limits of one request.
        errors: edits in misspellings, by the model's address; None: all edits are equally probable.

    Returns:
        The reply, and the number of scored tokens.

    Raises:
        InvalidInputError: a line is too long, spans overlap or lie outside the text, or no threshold reaches
            the precision.
        UnsupportedParameterError: the model reads backward, or a precision is given and it is not calibrated.
    """
    settings, threshold = request.settings(limits), request.threshold_for(loaded, calibration)
    settings = replace(settings, errors=(errors or {}).get(loaded.address))
    check_reads_forward(loaded)
    checker = loaded.checker
    sentences = yield from _sentences(loaded, request.text, limits)
    limits.check_entries(
        sum(len(sentence.words) for sentence in sentences),
        parameter="text",
        description="the reply has an entry for each word of text",
        instead="send it in parts",
    )
    tokens = loaded.tokenizer.vocabulary.tokens
    words: list[WordSurprisal] = []
    issues: list[TextIssue] = []
    log_prob, num_ends = 0.0, 0
    direct = is_lookup(loaded.model)
    begin = None if direct else lambda rows: view(loaded.model.initial_state(rows))
    for work in checker.rescore_all(loaded.model, sentences, settings, begin=begin):
        rescored = yield from _answer_directly(work) if direct else work
        for word, bits in zip(rescored.words, (-rescored.word_log_probs / log(2)).tolist(), strict=True):
            known = word.known or dictionary_key(word.text) in settings.dictionary
            words.append(WordSurprisal(word.start, word.end, word.text, bits, known=known))
        issues += [
            TextIssue(
                issue.start,
                issue.end,
                request.text[issue.start : issue.end],
                "real_word" if issue.known else "unknown_word",
                issue.probability,
                [SuggestedText(*suggestion) for suggestion in issue.suggestions],
            )
            for issue in find_issues(
                rescored, tokens, threshold=threshold, max_suggestions=request.max_suggestions
            )
        ]
        log_prob, num_ends = log_prob + rescored.log_prob, num_ends + rescored.num_ends
        yield None
    bits = -log_prob / log(2)
    num_words = count_words(request.text) + num_ends
    num_tokens = sum(len(sentence.ids) for sentence in sentences) + num_ends
    precision = None if calibration is None else calibration.precision_at(threshold)
    per_word = bits / num_words if num_ends else None
    return CheckReply(loaded.address, threshold, precision, words, issues, bits, per_word), num_tokens


def _sentences(loaded: LoadedModel, text: str, limits: Limits) -> Work[Any, list[Sentence]]:
    """Split a text into sentences, in steps between which other requests run; reject lines over the limits."""
    num_lines = text.count("\n") + 1
    if num_lines > limits.max_reply_entries:
        raise InvalidInputError(
            f"text has {num_lines} lines; at most {limits.max_reply_entries} are accepted in one request",
            parameter="text",
        )

    checker, texts = loaded.checker, text.split("\n")
    offsets = accumulate((len(line) + 1 for line in texts), initial=0)
    lines = [line for line in zip(count(1), offsets, texts, strict=False) if line[2]]

    def read(line: tuple[int, int, str]) -> list[Sentence]:
        number, offset, line_text = line
        try:
            limits.check_characters(line_text, parameter="text")
            if len(line_text) > limits.max_tokens_per_sequence:  # reject it before splitting it into words
                limits.check_length(len(loaded.tokenizer.encode(line_text)), parameter="text")
            sentences = list(checker.sentences(line_text, offset))
            limits.check_length(sum(len(sentence.ids) for sentence in sentences), parameter="text")
        except ContextLengthError as error:
            raise ContextLengthError(f"line {number} of {error}", parameter="text") from None
        return sentences

    by_line = yield from map_in_steps(lines, read, size=lambda line: len(line[2]))
    return [sentence for sentences in by_line for sentence in sentences]


def _answer_directly(work: CallGenerator[RescoredBatch]) -> Work[Any, RescoredBatch]:
    """Run a checker's calls to an n-gram model here: the lookup costs less than a call to the engine."""
    answer: Any = None
    while True:
        try:
            call = work.send(answer)
        except StopIteration as stopped:
            rescored: RescoredBatch = stopped.value
            return rescored
        answer = None if call is None else run_call(call)
        if not isinstance(call, Read) or call.want.scores:  # reads of single tokens take microseconds each
            yield None
