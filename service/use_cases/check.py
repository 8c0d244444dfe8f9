"""Spelling and word check: probably wrong words of a text, and suggestions.

A checker is built once per loaded model and kept as long as the model.
"""

import threading
from dataclasses import dataclass
from itertools import accumulate, count
from math import log
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from models.calls import CallGenerator, Read, run_call
from models.checking.checker import Checker, Issue, find_issues
from models.checking.error_model import CheckSettings
from models.checking.rescoring import RescoredBatch
from models.checking.sentences import Sentence, Word
from models.errors import ContextLengthError, InvalidInputError
from models.language_model import LanguageModel, count_words, is_lookup
from models.reranking.candidates import map_in_steps
from service.engine.batching import view
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.use_cases.inputs import Limits, check_reads_forward

_lock = threading.Lock()
_checkers: WeakKeyDictionary[LanguageModel[Any], Checker] = WeakKeyDictionary()


def checker_of(loaded: LoadedModel) -> Checker:
    """Return the checker for a model's tokenizer; a model's first call takes up to a few tenths of a second."""
    found = _checkers.get(loaded.model)  # without the lock: another model's checker may be under construction
    if found is not None:
        return found
    with _lock:
        found = _checkers.get(loaded.model)
        if found is None:
            found = _checkers[loaded.model] = Checker(loaded.tokenizer)
        return found


def has_checker(loaded: LoadedModel) -> bool:
    """Return whether the checker for a model is already built."""
    return loaded.model in _checkers


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """A valid request for a check.

    Attributes:
        text: one sentence per line.
        threshold: the least probability of an error for a word to be reported.
        max_suggestions: suggestions per issue at most.
        options: settings of the search for errors.
    """

    text: str
    threshold: float
    max_suggestions: int
    options: CheckSettings


class CheckResult(NamedTuple):
    """Result of a check.

    Attributes:
        words: in order, each with its surprisal in bits given the text before it.
        issues: in order, without overlaps.
        surprisal_bits: of all tokens, `</s>` after each line included.
        bits_per_word: mean per white-space word; an end of line counts as a word. None without any end of line.
        num_tokens: scored tokens.
    """

    words: list[tuple[Word, float]]
    issues: list[Issue]
    surprisal_bits: float
    bits_per_word: float | None
    num_tokens: int


def check(loaded: LoadedModel, command: CheckCommand, limits: Limits) -> Work[Any, CheckResult]:
    """Check a text; a use case.

    Raises:
        InvalidInputError: a line is too long, or a suggestion of the caller lies outside the text.
        UnsupportedParameterError: the model reads backward.
    """
    check_reads_forward(loaded)
    _check_end(command)
    checker = checker_of(loaded)
    sentences = yield from _sentences(loaded, command.text, limits)
    limits.check_entries(
        sum(len(sentence.words) for sentence in sentences),
        parameter="text",
        description="text has a word reported for each of its words",
        instead="send it in parts",
    )
    tokens = loaded.tokenizer.vocabulary.tokens
    words: list[tuple[Word, float]] = []
    issues: list[Issue] = []
    log_prob, num_ends = 0.0, 0
    direct = is_lookup(loaded.model)
    begin = None if direct else lambda rows: view(loaded.model.initial_state(rows))
    for work in checker.rescore_all(loaded.model, sentences, command.options, begin=begin):
        rescored = yield from _answer_directly(work) if direct else work
        words += zip(rescored.words, (-rescored.word_log_probs / log(2)).tolist(), strict=True)
        issues += find_issues(
            rescored, tokens, threshold=command.threshold, max_suggestions=command.max_suggestions
        )
        log_prob, num_ends = log_prob + rescored.log_prob, num_ends + rescored.num_ends
        yield None
    bits = -log_prob / log(2)
    num_words = count_words(command.text) + num_ends
    num_tokens = sum(len(sentence.ids) for sentence in sentences) + num_ends
    return CheckResult(words, issues, bits, bits / num_words if num_ends else None, num_tokens)


def _check_end(command: CheckCommand) -> None:
    """Refuse suggestions past the end of the text, before reading it."""
    size = len(command.text)
    for span in command.options.given:
        if span.end > size:
            raise InvalidInputError(
                f"{span.parameter}.end is {span.end}; the text has {size} characters",
                parameter=f"{span.parameter}.end",
            )


def _sentences(loaded: LoadedModel, text: str, limits: Limits) -> Work[Any, list[Sentence]]:
    """Split a text into sentences, in steps between which other requests run; refuse lines over the limits."""
    num_lines = text.count("\n") + 1
    if num_lines > limits.max_reply_entries:
        raise InvalidInputError(
            f"text has {num_lines} lines; at most {limits.max_reply_entries} are accepted in one request",
            parameter="text",
        )

    texts = text.split("\n")
    offsets = accumulate((len(line) + 1 for line in texts), initial=0)
    lines = [line for line in zip(count(1), offsets, texts, strict=False) if line[2]]

    def read(line: tuple[int, int, str]) -> list[Sentence]:
        number, offset, line_text = line
        try:
            return _line_sentences(loaded, line_text, offset, limits)
        except ContextLengthError as error:
            raise ContextLengthError(f"line {number} of {error}", parameter="text") from None

    by_line = yield from map_in_steps(lines, read, size=lambda line: len(line[2]))
    return [sentence for sentences in by_line for sentence in sentences]


def _line_sentences(loaded: LoadedModel, line: str, offset: int, limits: Limits) -> list[Sentence]:
    """Split a line into sentences; refuse it if it is too long."""
    limits.check_characters(line, parameter="text")
    if len(line) > limits.max_tokens_per_sequence:  # refuse it before splitting it into words
        limits.check_length(len(loaded.tokenizer.encode(line)), parameter="text")
    sentences = list(checker_of(loaded).sentences(line, offset))
    limits.check_length(sum(len(sentence.ids) for sentence in sentences), parameter="text")
    return sentences


def _answer_directly(work: CallGenerator[RescoredBatch]) -> Work[Any, RescoredBatch]:
    """Answer a checker's calls to an n-gram model here: the lookup costs less than a call to the engine."""
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
