"""Spelling and word check: probable errors of a text, and suggestions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import log
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from models.calls import Work, map_in_steps
from models.checking.check import check_text
from models.checking.error_model import Calibration, CheckSettings, ErrorTable, GivenSpan
from models.checking.lexicon import UserDictionary, suggested_words
from models.checking.sentences import Word
from models.errors import DomainError, InputError, UnsupportedError
from models.files import count_words
from models.language_model import LOG_ZERO
from models.scoring.model_weights import WeightedModel, shares
from models.text_model import Limits
from models.word_list import WordList
from models.words import dictionary_key
from service.operations.operation import Call, HunspellDictionaries, ModelsOperation, ModelsRequest, Operation
from service.schemas import with_examples
from service.schemas.suggestions import CheckReply, SuggestedText, TextIssue, WordSurprisal
from service.schemas.wire import (
    TextOrObject,
    TextOrReference,
    WireModel,
    by_content,
    either,
    reply_pieces,
    text_or_object,
)
from service.schemas.word_lists import StoredWords

DEFAULT_THRESHOLD = 0.5
MAX_DICTIONARY = 10_000
_MAX_SUGGESTIONS = 20
_MAX_SPANS = 1_000
MAX_CHARS = 200
"""Maximum characters of a line of candidates and of a word of a dictionary."""
OneLine = Annotated[str, StringConstraints(max_length=MAX_CHARS, pattern=r"^[^\n]*$")]
"""A text without line breaks, because each line is a sentence."""

DictionaryWord = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARS)]

AcceptedEntry = Annotated[
    TextOrReference[DictionaryWord, StoredWords],
    by_content("a string, or an object with wordlist", "wordlist"),
]

R = TypeVar("R")
T = TypeVar("T")


class WeightedSuggestion(WireModel):
    """A suggestion with a probability from the client's own error model."""

    text: OneLine
    """Possibly intended text; if it equals the typed text, `logprob` is for typing it correctly."""
    logprob: float = Field(le=0)
    """Natural logarithm of the probability of the typed text, given that this text was intended."""


Suggested = Annotated[TextOrObject[OneLine, WeightedSuggestion], text_or_object("text and logprob")]


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


class CheckRequest(ModelsRequest):
    """Find probable errors: unknown words, and known words that do not fit the context."""

    model_config = with_examples(
        {"text": "Return the lenght of the string."},
        {
            "text": "If the key is not fund, raise a KeyEror.",
            "threshold": 0.3,
            "dictionary": ["KeyError"],
            "candidates": [{"start": 18, "end": 22, "suggestions": ["found", "fond"]}],
        },
        {
            "text": "Return the lenght of the string.",
            "models": [{"model": "ngram"}, {"model": "mixture", "weight": 2}],
        },
    )

    text: str
    """Text to check; each line is a sentence."""
    threshold: float | None = Field(None, ge=0, le=1)
    """Minimum probability of an error for a word to be reported; 0.5 unless `precision` is given."""
    precision: float | None = Field(None, ge=0, le=1)
    """Target share of reported words that are errors, instead of `threshold`; requires one model, calibrated. The
    calibration of an earlier version serves a version that has none; `calibrated_on` of the reply names it."""
    max_suggestions: int = Field(5, ge=0, le=_MAX_SUGGESTIONS)
    """Maximum number of suggestions per issue."""
    candidates: list[CandidateSpan] = Field(default_factory=list, max_length=_MAX_SPANS)
    """The client's own suggestions for spans of the text; spans must not overlap."""
    dictionary: list[AcceptedEntry] = Field(default_factory=list, max_length=MAX_DICTIONARY)
    """Additional correct words, in any case and Unicode form; also used as suggestions. An object with `wordlist`
    stands for the entries of a stored list."""
    dictionaries: list[DictionaryWord] = Field(default_factory=list, max_length=10)
    """Names of Hunspell dictionaries of the service (`GRAMOPHONE_DICTIONARIES`), such as `en_US`: their words, with
    affixes and in compounds, are correct if the model does not know them; also used as suggestions."""
    error_rate: float = Field(0.01, gt=0, lt=1)
    """Prior probability that a word is wrong."""
    max_edits: int = Field(2, ge=1, le=2)
    """Maximum edits between a word and its suggestions; at most one for short words."""

    _one_of = either("threshold", "precision", neither="")

    def threshold_for(self, models: Sequence[WeightedModel], calibration: Calibration | None) -> float:
        """Return the minimum probability of an error to report a word.

        Args:
            models: models that check the text.
            calibration: precision by threshold, if measured.

        Raises:
            InputError: no threshold reaches the precision.
            UnsupportedError: a precision is given for an uncalibrated model, or for several.
        """
        if self.precision is None:
            return DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        if len(models) > 1:
            raise UnsupportedError.of(
                "precision", f"is {self.precision:g}; with several models, give a threshold"
            )
        if calibration is None:
            raise UnsupportedError.of(
                "precision",
                f"is {self.precision:g}, but model {models[0].loaded.address} was not calibrated; give a "
                "threshold, or run `gramophone evaluate MODEL --task check --save-calibration`",
            )
        return calibration.threshold_for(self.precision)

    def settings(self, limits: Limits, dictionary: UserDictionary) -> CheckSettings:
        """Return the settings of the search for errors.

        Raises:
            InputError: there are too many suggestions, or spans overlap or end after the text.
        """
        limits.check_count(sum(len(c.suggestions) for c in self.candidates), param="candidates[].suggestions")
        ordered = sorted(enumerate(self.candidates), key=lambda one: one[1].start)
        for (first, before), (second, span) in pairwise(ordered):
            if span.start < before.end:
                raise InputError(
                    f"candidates[{second}] begins at {span.start}, before the end of candidates[{first}] at "
                    f"{before.end}; spans must not overlap",
                    param=f"candidates[{second}].start",
                )
        given = []
        for index, span in enumerate(self.candidates):
            if span.end > len(self.text):
                raise InputError.of(
                    f"candidates[{index}].end", f"is {span.end}; the text has {len(self.text)} characters"
                )
            suggestions = tuple(
                (one, None)
                if isinstance(one, str)
                else (one.text, max(one.logprob, LOG_ZERO))  # lower ones make sums imprecise
                for one in span.suggestions
            )
            given.append(GivenSpan(span.start, span.end, suggestions, f"candidates[{index}]"))
        return CheckSettings(self.error_rate, self.max_edits, dictionary=dictionary, given=tuple(given))


def check(
    models: Sequence[WeightedModel],
    request: CheckRequest,
    calibration: Calibration | None,
    limits: Limits,
    dictionary: Sequence[Any] | None = None,
    hunspell: HunspellDictionaries = (),
    errors: Mapping[str, ErrorTable | None] | None = None,
) -> Work[Any, tuple[CheckReply, list[int]]]:
    """Check a text, see `check_text`; return the reply, and the number of tokens scored by each model.

    Args:
        models: one or several.
        request: the request.
        calibration: precision by threshold, if measured.
        limits: of one request.
        dictionary: entries of the request's with word lists for references to them; None for the request's.
        hunspell: dictionaries that the request names.
        errors: edits in misspellings, by model address.

    Raises:
        InputError: spans overlap or are outside the text, or no threshold reaches the precision.
        UnsupportedError: a precision is given for an uncalibrated model or for several.
    """
    threshold = request.threshold_for(models, calibration)
    given = request.dictionary if dictionary is None else dictionary
    own = [one for one in given if isinstance(one, str)]
    keys = yield from map_in_steps(own, dictionary_key, size=len)
    lists = [one for one in given if isinstance(one, WordList)]
    accepted = UserDictionary(dict(zip(keys, own, strict=True)), hunspell, lists)
    settings = request.settings(limits, accepted)
    checked, weights, num_tokens = yield from check_text(
        models,
        request.text,
        settings,
        threshold,
        limits,
        max_suggestions=request.max_suggestions,
        errors=errors,
    )
    issues = yield from map_in_steps(
        [issue for issue in checked.issues if issue.probability >= threshold],
        lambda issue: TextIssue(
            issue.start,
            issue.end,
            request.text[issue.start : issue.end],
            "real_word" if issue.known else "unknown_word",
            issue.probability,
            [SuggestedText(*one) for one in issue.suggestions[: request.max_suggestions]],
        ),
        size=lambda issue: issue.end - issue.start,
    )

    def surprisal(one: tuple[Word, float]) -> WordSurprisal:
        word, bits = one
        known = word.known or accepted.has_at(request.text, word.start, word.end, known=False)
        return WordSurprisal(word.start, word.end, word.text, bits, known)

    pairs = zip(checked.words, checked.surprisals.tolist(), strict=True)
    words = yield from map_in_steps(pairs, surprisal, size=lambda one: len(one[0].text))
    bits = -float(checked.log_probs.sum()) / log(2)
    num_words = count_words(request.text) + checked.num_ends
    precision = None if calibration is None else calibration.precision_at(threshold)
    per_word = bits / num_words if checked.num_ends else None
    mean = weights.mean(axis=0)
    address = models[int(mean.argmax())].loaded.address
    calibrated_on = calibration.model if calibration is not None and calibration.model != address else None
    by_model = shares(mean.tolist(), models)
    reply = CheckReply(address, threshold, precision, words, issues, bits, per_word, by_model, calibrated_on)
    return reply, num_tokens


class TextCheck(Operation[R]):
    """Operation that checks texts, with documents about its models."""

    needs_calibration = False
    dictionary: Sequence[str | WordList] = ()

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        yield from super().prepare()
        yield self._read_documents

    def _read_documents(self) -> None:
        """Build the models' checkers; read a single model's calibration, and error tables by address.

        For a thread: the model thread stays free; the registry may be remote. A damaged document is
        logged and not used, unless it is a calibration that the request needs.
        """
        _ = [model.checker for model in self.models]  # the first use builds it
        for one in self.dictionary:
            if isinstance(one, WordList):
                suggested_words(one)

        def read(kind: str, find: Callable[[str], T | None], address: str) -> T | None:
            try:
                return find(address)
            except DomainError as error:
                self.call.report_unusable(f"{kind} not read", error, model=address)
                return None

        stores, needed = self.call.resources, self.needs_calibration
        addresses = {loaded.address for loaded in self.models}
        self.errors = {one: read("table of errors", stores.errors.read, one) for one in addresses}
        self.calibration: Calibration | None = None
        if len(self.models) == 1:
            address = self.models[0].address
            find = partial(stores.calibrations.read, any_version=needed)
            self.calibration = find(address) if needed else read("calibration", find, address)


class Check(ModelsOperation[tuple[CheckReply, list[int]]], TextCheck[tuple[CheckReply, list[int]]]):
    """Find probable errors from the text on both sides of each word, and suggest corrections.

    The check finds unknown words and known words that are wrong in their context. Alternatives of a word are words of
    similar spelling, missing or extra spaces, and the request's `candidates`; models without word tokens only consider
    strings near the words with the highest surprisal.
    """

    request = CheckRequest

    def __init__(self, call: Call, given: CheckRequest) -> None:
        super().__init__(call, given)
        self.needs_calibration = given.precision is not None
        self._hunspell = call.find_dictionaries(given.dictionaries)
        self.dictionary = call.word_lists(given.dictionary, "dictionary")

    @override
    def run(self) -> Work[Any, tuple[CheckReply, list[int]]]:
        settings = (
            self.given,
            self.calibration,
            self.call.limits,
            self.dictionary,
            self._hunspell,
            self.errors,
        )
        return check(self.weighted, *settings)

    @override
    def reply(self, result: tuple[CheckReply, list[int]]) -> Iterator[bytes]:
        reply, num_tokens = result
        for loaded, number in zip(self.models, num_tokens, strict=True):
            self.call.count_scored(loaded, number)
        num_entries = (1 + self.given.max_suggestions) * len(reply.issues)
        return reply_pieces(reply, words=len(reply.words), issues=num_entries)
