"""Spelling and word check: probable errors of a text, and suggestions."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from models.arrays import Float64s, Int64s
from models.calls import Read, Work, map_in_steps, run_call
from models.checking.calibration import Calibration
from models.checking.checker import (
    MIN_SUGGESTION_PROBABILITY,
    Issue,
    Suggestion,
    find_issues,
    without_overlaps,
)
from models.checking.error_model import CheckSettings, ErrorTable, GivenSpan
from models.checking.lexicon import UserDictionary
from models.checking.rescoring import RescoredBatch
from models.checking.sentences import Sentence, Word
from models.errors import ContextLengthError, InvalidInputError, UnsupportedParameterError
from models.files import count_words
from models.language_model import LOG_ZERO, is_lookup
from models.scoring.model_weights import (
    WeightedModel,
    normalised_weights,
    shares,
    sum_by_word,
    sum_spellings,
    weights_before,
    weights_given_text,
    word_starts,
    words_at,
)
from models.scoring.texts import Limits, check_reads_forward
from models.states import view
from models.text_model import TextModel
from models.tokenizers import CharacterTokenizer
from models.words import dictionary_key, word_pattern
from service.schemas import with_examples
from service.schemas.suggestions import CheckReply, SuggestedText, TextIssue, WordSurprisal
from service.schemas.wire import TextOrObject, WireModel, either, text_or_object
from service.use_cases.inputs import ModelsRequest, WordLists

DEFAULT_THRESHOLD = 0.5
MAX_DICTIONARY = 10_000
_MAX_SUGGESTIONS = 20
_MAX_SPANS = 1_000
MAX_CHARACTERS = 200
"""Maximum characters of a line of candidates and of a word of a dictionary."""
_BYTES_PER_CHARACTER = 4
_MIN_SHARE_OF_THRESHOLD = 0.1
"""Share of the threshold below which the probability of an error by one of several models counts as 0."""

OneLine = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, pattern=r"^[^\n]*$")]
"""A text without line breaks, because each line is a sentence."""

DictionaryWord = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS)]


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
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Minimum probability of an error for a word to be reported; 0.5 unless `precision` is given."""
    precision: float | None = Field(default=None, ge=0, le=1)
    """Target share of reported words that are errors, instead of `threshold`; requires one model, calibrated. The
    calibration of an earlier version serves a version that has none; `calibrated_on` of the reply names it."""
    max_suggestions: int = Field(default=5, ge=0, le=_MAX_SUGGESTIONS)
    """Maximum number of suggestions per issue."""
    candidates: list[CandidateSpan] = Field(default_factory=list, max_length=_MAX_SPANS)
    """The client's own suggestions for spans of the text; spans must not overlap."""
    dictionary: list[DictionaryWord] = Field(default_factory=list, max_length=MAX_DICTIONARY)
    """Additional correct words, in any case and Unicode form; also used as suggestions."""
    dictionaries: list[DictionaryWord] = Field(default_factory=list, max_length=10)
    """Names of Hunspell dictionaries of the service (`GRAMOPHONE_DICTIONARIES`), such as `en_US`: their words, with
    affixes and in compounds, are correct if the model does not know them; also used as suggestions."""
    error_rate: float = Field(default=0.01, gt=0, lt=1)
    """Prior probability that a word is wrong."""
    max_edits: int = Field(default=2, ge=1, le=2)
    """Maximum edits between a word and its suggestions; at most one for short words."""

    _one_of = either("threshold", "precision", neither="")

    def threshold_for(self, models: Sequence[WeightedModel], calibration: Calibration | None) -> float:
        """Return the minimum probability of an error to report a word.

        Args:
            models: models that check the text.
            calibration: precision by threshold, if measured.

        Raises:
            InvalidInputError: no threshold reaches the precision.
            UnsupportedParameterError: a precision is given for an uncalibrated model, or for several.
        """
        if self.precision is None:
            return DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        if len(models) > 1:
            raise UnsupportedParameterError(
                f"precision is {self.precision:g}; with several models, give a threshold",
                parameter="precision",
            )
        if calibration is None:
            raise UnsupportedParameterError(
                f"precision is {self.precision:g}, but model {models[0].loaded.address} was not calibrated; give a "
                "threshold, or run `gramophone evaluate MODEL --task check --save-calibration`",
                parameter="precision",
            )
        return calibration.threshold_for(self.precision)

    def settings(self, limits: Limits, dictionary: UserDictionary) -> CheckSettings:
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
            dictionary=dictionary,
            given=tuple(_given_span(index, span) for index, span in enumerate(self.candidates)),
        )


def _given_span(index: int, span: CandidateSpan) -> GivenSpan:
    suggestions = tuple(
        (given, None)
        if isinstance(given, str)
        else (given.text, max(given.logprob, LOG_ZERO))  # lower values would make sums imprecise
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


class _Checked(NamedTuple):
    """Results of one model.

    Attributes:
        words: words of the text.
        surprisals: surprisal of each word in bits [N].
        issues: probably wrong spans of the text.
        positions: text position of each predicted token and line end [T].
        log_probs: log-probability of each [T].
        num_ends: number of line ends.
    """

    words: Sequence[Word]
    surprisals: Float64s
    issues: Sequence[Issue]
    positions: Int64s
    log_probs: Float64s
    num_ends: int


def check(
    models: Sequence[WeightedModel],
    request: CheckRequest,
    calibration: Calibration | None,
    limits: Limits,
    word_lists: WordLists = (),
    errors: Mapping[str, ErrorTable | None] | None = None,
) -> Work[Any, tuple[CheckReply, list[int]]]:
    """Check a text.

    Args:
        models: one or several.
        request: the request.
        calibration: precision by threshold, if measured.
        limits: of one request.
        word_lists: dictionaries that the request names.
        errors: edits in misspellings, by model address; None: all are equally probable.

    Returns:
        The reply, and the number of tokens scored by each model.

    Raises:
        InvalidInputError: a line is too long, spans overlap or are outside the text, or no threshold
            reaches the precision.
        UnsupportedParameterError: a model reads backward, or a precision is given for an uncalibrated
            model or for several.
    """
    threshold = request.threshold_for(models, calibration)
    keys = yield from map_in_steps(request.dictionary, dictionary_key, size=len)
    dictionary = UserDictionary(dict(zip(keys, request.dictionary, strict=True)), word_lists)
    settings = request.settings(limits, dictionary)
    least = threshold if len(models) == 1 else threshold * _MIN_SHARE_OF_THRESHOLD
    results = []
    for loaded, _ in models:
        own = replace(settings, errors=(errors or {}).get(loaded.address))
        results.append((yield from _check(loaded, request, own, least, limits)))
    weights = np.ones((1, 1))
    checked = results[0]
    if len(models) > 1:
        checked, weights = yield from _combine(models, results, request.text)
    issues = yield from map_in_steps(
        [issue for issue in checked.issues if issue.probability >= threshold],
        lambda issue: TextIssue(
            issue.start,
            issue.end,
            request.text[issue.start : issue.end],
            "real_word" if issue.known else "unknown_word",
            issue.probability,
            [SuggestedText(*suggestion) for suggestion in issue.suggestions[: request.max_suggestions]],
        ),
        size=lambda issue: issue.end - issue.start,
    )
    words = yield from map_in_steps(
        zip(checked.words, checked.surprisals.tolist(), strict=True),
        lambda pair: WordSurprisal(
            pair[0].start,
            pair[0].end,
            pair[0].text,
            pair[1],
            known=pair[0].known or dictionary.has_at(request.text, pair[0].start, pair[0].end, known=False),
        ),
        size=lambda pair: len(pair[0].text),
    )
    bits = -float(checked.log_probs.sum()) / log(2)
    num_words = count_words(request.text) + checked.num_ends
    precision = None if calibration is None else calibration.precision_at(threshold)
    per_word = bits / num_words if checked.num_ends else None
    mean = weights.mean(axis=0)
    address = models[int(mean.argmax())].loaded.address
    calibrated_on = calibration.model if calibration is not None and calibration.model != address else None
    by_model = shares(mean.tolist(), models)
    reply = CheckReply(address, threshold, precision, words, issues, bits, per_word, by_model, calibrated_on)
    return reply, [len(result.log_probs) for result in results]


def _check(
    loaded: TextModel, request: CheckRequest, settings: CheckSettings, threshold: float, limits: Limits
) -> Work[Any, _Checked]:
    """Check a text with one model."""
    check_reads_forward(loaded)
    sentences = yield from _sentences(loaded, request.text, limits)
    limits.check_entries(
        sum(len(sentence.words) for sentence in sentences),
        parameter="text",
        description="the reply has an entry for each word of text",
        instead="send it in parts",
    )
    tokens = loaded.tokenizer.vocabulary.tokens
    batches: list[RescoredBatch] = []
    issues: list[Issue] = []
    num_entries = 0
    direct = is_lookup(loaded.model)
    begin = None if direct else lambda rows: view(loaded.model.initial_state(rows))
    for work in loaded.checker.rescore_all(loaded.model, sentences, settings, begin=begin):
        rescored = yield from _answer_directly(work) if direct else work
        found = yield from find_issues(
            rescored, tokens, threshold=threshold, max_suggestions=request.max_suggestions
        )
        issues += found
        num_entries += sum(1 + len(issue.suggestions) for issue in found)
        limits.check_entries(
            num_entries,
            parameter="text",
            description="the reply has an entry for each error in text and each suggestion",
            instead="send it in parts, with a higher threshold or fewer max_suggestions",
        )
        batches.append(rescored._replace(state=None))
        yield None
    return _Checked(
        [word for batch in batches for word in batch.words],
        np.concatenate([np.zeros(0), *(-batch.word_log_probs / log(2) for batch in batches)]),
        issues,
        np.concatenate([np.zeros(0, np.int64), *(batch.positions for batch in batches)]),
        np.concatenate([np.zeros(0), *(batch.log_probs for batch in batches)]),
        sum(batch.num_ends for batch in batches),
    )


def _combine(
    models: Sequence[WeightedModel], results: Sequence[_Checked], text: str
) -> Work[Any, tuple[_Checked, Float64s]]:
    """Combine several models' results by their weights at each word; return these too [N, M].

    The probability of an error or a correction is the mean of the models'. The surprisal of a word is
    the mixture's, given the weights before it; the model of largest weight divides it into its words.
    """
    starts = word_starts(text)
    if not len(starts):
        return results[0], normalised_weights(models)[None, :]
    by_model: list[Float64s] = []
    for model, result in zip(models, results, strict=True):
        spellings = yield from sum_spellings(model.loaded.checker, result.words, starts)
        by_model.append(sum_by_word(starts, result.positions, result.log_probs) + spellings)
    log_probs = np.array(by_model)
    prior = normalised_weights(models)
    before = (yield from weights_before(prior, log_probs))[:-1]
    weights = yield from weights_given_text(prior, log_probs)
    mixed = np.logaddexp.reduce(np.log(before.T) + log_probs)
    best = weights.argmax(axis=1)
    # a character model knows every word, so the others, if any, give an issue's type
    judges = [
        number
        for number, model in enumerate(models)
        if model.loaded.tokenizer.kind != CharacterTokenizer.kind
    ]
    judges = judges or [*range(len(models))]
    known: list[set[tuple[int, int]]] = []
    for result in results:
        known.append({(word.start, word.end) for word in result.words if word.known})
        yield None
    judged = set().union(*(known[number] for number in judges))
    known_by_any = set().union(*known)
    factors = mixed / np.minimum(log_probs, -1e-300)  # [M, N], never infinite
    words: list[Word] = []
    surprisals: list[Float64s] = []
    found: dict[tuple[int, int], list[tuple[float, Issue]]] = {}
    for number, result in enumerate(results):
        of_words = words_at(starts, [word.start for word in result.words])
        own = np.flatnonzero(best[of_words] == number)
        surprisals.append(result.surprisals[own] * factors[number, of_words[own]])
        words += yield from map_in_steps(
            [result.words[index] for index in own.tolist()],
            lambda word: word._replace(known=(word.start, word.end) in known_by_any),
            size=lambda _: 0,
        )
        of_issues = words_at(starts, [issue.start for issue in result.issues]).tolist()

        def add_issue(one: tuple[Issue, int], number: int = number) -> None:
            issue, index = one
            weighted = float(weights[index, number]), issue._replace(known=issue.known and number in judges)
            found.setdefault(_word_span(issue, text), []).append(weighted)

        yield from map_in_steps(zip(result.issues, of_issues, strict=True), add_issue, size=lambda _: 0)
    mean = yield from map_in_steps(
        found.values(), lambda issues: _mean_issue(issues, text, judged), size=lambda one: 256 * len(one)
    )
    order = np.argsort([word.start for word in words], kind="stable")
    combined = _Checked(
        [words[index] for index in order.tolist()],
        np.concatenate(surprisals)[order],
        without_overlaps(mean),
        starts,
        mixed,
        max(result.num_ends for result in results),
    )
    return combined, weights


def _word_span(issue: Issue, text: str) -> tuple[int, int]:
    """Return an issue's span without punctuation, which some models' words include."""
    spans = [found.span() for found in word_pattern().finditer(text, issue.start, issue.end)]
    return (spans[0][0], spans[-1][1]) if spans else (issue.start, issue.end)


def _mean_issue(issues: Sequence[tuple[float, Issue]], text: str, known: Container[tuple[int, int]]) -> Issue:
    """Return the mean of several models' issues, each given with its weight.

    `known` are the spans of words that a model knows.
    """
    start, end = min(issue.start for _, issue in issues), max(issue.end for _, issue in issues)
    ascending = sorted(issues, key=lambda weighted: weighted[0])
    suggestions: dict[str, Suggestion] = {}
    for weight, issue in ascending:
        for suggestion in issue.suggestions:
            whole = text[start : issue.start] + suggestion.text + text[issue.end : end]
            earlier = suggestions.get(whole)
            probability = weight * suggestion.probability + (earlier.probability if earlier else 0.0)
            suggestions[whole] = suggestion._replace(text=whole, probability=probability)
    ranked = sorted(suggestions.values(), key=lambda suggestion: -suggestion.probability)
    worth = [one for one in ranked if one is ranked[0] or one.probability >= MIN_SUGGESTION_PROBABILITY]
    probability = sum(weight * issue.probability for weight, issue in issues)
    is_known = any(issue.known or (issue.start, issue.end) in known for _, issue in issues)
    return Issue(start, end, is_known, probability, tuple(worth))


def _sentences(loaded: TextModel, text: str, limits: Limits) -> Work[Any, list[Sentence]]:
    """Split a text into sentences, with other requests in between; reject lines over the limits."""
    num_lines = text.count("\n") + 1
    if num_lines > limits.max_reply_entries:
        raise InvalidInputError(
            f"text has {num_lines} lines; at most {limits.max_reply_entries} are accepted in one request",
            parameter="text",
        )

    def read() -> Iterator[Sentence]:
        offset = 0
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                if _BYTES_PER_CHARACTER * len(line) > limits.max_tokens_per_sequence:
                    limits.check_characters(line, parameter="text")
                    # before its words are found
                    limits.check_length(len(loaded.tokenizer.encode(line)), parameter="text")
                num_tokens = 0
                for sentence in loaded.checker.sentences(line, offset) if line else ():
                    num_tokens += len(sentence.ids)
                    limits.check_length(num_tokens, parameter="text")
                    yield sentence
            except ContextLengthError as error:
                raise ContextLengthError(f"line {number} of {error}", parameter="text") from None
            offset += len(line) + 1

    return (yield from map_in_steps(read(), lambda one: one, size=lambda one: len(one.text)))


def _answer_directly(work: Work[Any, RescoredBatch]) -> Work[Any, RescoredBatch]:
    """Run a checker's calls to an n-gram model here: lookup costs less than calling the engine."""
    answer: Any = None
    while True:
        try:
            call = work.send(answer)
        except StopIteration as stopped:
            rescored: RescoredBatch = stopped.value
            return rescored
        answer = None if call is None else run_call(call)
        if not isinstance(call, Read) or call.want.scores:  # reads of single tokens take microseconds
            yield None
