"""Log-probabilities of texts, and their quality by word and byte under one model or two.

Streams of lines are scored in batches; an invalid line fails alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError
from models.language_model import bits_per_unit, count_words
from models.reranking.candidates import map_in_steps
from models.vocabulary import EOS, UNK
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.use_cases.constants import LINES_PER_BATCH
from service.use_cases.inputs import (
    ContextInterner,
    EncodedText,
    Limits,
    TextOrIds,
    encode_after,
    to_model_order,
    to_text_order,
)
from service.use_cases.sequence_scoring import score_sequence_list


class Detail(StrEnum):
    """Level of detail of a reported score."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - no secret
    WORD = "word"


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Scoring options of all sequences of a request.

    Attributes:
        model: address; None for the default.
        bos: whether `<s>` precedes each.
        eos: whether to score `</s>` after each too.
        detail: level of detail of the report.
    """

    model: str | None
    bos: bool
    eos: bool
    detail: Detail


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """One sequence to score.

    Attributes:
        parameter: its name in the request, for messages.
        given: the text or ids to score; not empty.
        context: the text or ids before it; may be empty.
    """

    parameter: str
    given: TextOrIds
    context: TextOrIds


class SequenceScore(NamedTuple):
    """Score of one sequence.

    Attributes:
        ids: the scored tokens [T], `</s>` included if requested.
        log_probs: of each token [T].
        num_bytes: size of the scored text in UTF-8.
    """

    ids: TokenIds
    log_probs: FloatArray
    num_bytes: int

    @property
    def logprob(self) -> float:
        """Sum of the log-probabilities, in double precision."""
        return float(self.log_probs.sum(dtype=np.float64))

    @property
    def num_oov(self) -> int:
        """Number of `<unk>` tokens."""
        return int(np.count_nonzero(self.ids == UNK))


def score(
    loaded: LoadedModel, items: Iterable[ScoreItem], options: ScoreOptions, limits: Limits
) -> Work[Any, list[SequenceScore]]:
    """Score each sequence given its context.

    Raises:
        InvalidInputError: a sequence has nothing to score, is too long, or has a wrong id.
    """
    contexts = ContextInterner()

    def prepare(item: ScoreItem) -> _Prepared:
        return _prepare(loaded, item, options, limits, contexts)

    prepared = yield from map_in_steps(items, prepare, size=_size)
    if options.detail is not Detail.NONE:
        limits.check_entries(
            sum(len(item.sequence.text) for item in prepared),
            parameter="detail",
            description=f"detail is {options.detail.value!r} for {len(prepared)} sequences",
            instead="send lines, application/x-ndjson, for more",
        )
    return (yield from _score(loaded, prepared, options))


def score_lines(
    loaded: LoadedModel,
    lines: Iterable[ScoreItem | InvalidInputError],
    options: ScoreOptions,
    limits: Limits,
) -> Work[list[SequenceScore | InvalidInputError], None]:
    """Score a stream of sequences; an invalid one does not stop the rest.

    Yields:
        Events: outcomes of the next lines, in order; an error for an invalid line.
    """
    pending = iter(lines)
    while batch := list(islice(pending, LINES_PER_BATCH)):
        contexts = ContextInterner()

        def attempt(
            line: ScoreItem | InvalidInputError, contexts: ContextInterner = contexts
        ) -> _Prepared | InvalidInputError:
            try:
                return (
                    line
                    if isinstance(line, InvalidInputError)
                    else _prepare(loaded, line, options, limits, contexts)
                )
            except InvalidInputError as error:
                return error

        outcomes = yield from map_in_steps(batch, attempt, size=_size)
        prepared = [outcome for outcome in outcomes if isinstance(outcome, _Prepared)]
        scores = iter((yield from _score(loaded, prepared, options)))
        yield [next(scores) if isinstance(outcome, _Prepared) else outcome for outcome in outcomes]


class _Prepared(NamedTuple):
    """A sequence ready for scoring, and the size of its text in bytes."""

    sequence: EncodedText
    num_bytes: int


def _size(item: ScoreItem | InvalidInputError) -> int:
    return 0 if isinstance(item, InvalidInputError) else len(item.context) + len(item.given)


def _prepare(
    loaded: LoadedModel, item: ScoreItem, options: ScoreOptions, limits: Limits, contexts: ContextInterner
) -> _Prepared:
    limits.check_characters(item.context, item.given, parameter=item.parameter)
    sequence = encode_after(loaded, item.context, item.given, parameter=item.parameter)
    context, text = to_model_order(loaded, sequence, parameter=item.parameter)
    if options.eos:
        text = np.append(text, EOS)
    if not len(text):
        raise InvalidInputError(f"{item.parameter} has no token to score", parameter=item.parameter)
    limits.check_length(len(context) + len(text), parameter=item.parameter)
    sequence = contexts.intern(EncodedText(context, text))
    return _Prepared(sequence, _num_bytes(loaded, item, sequence))


def _score(
    loaded: LoadedModel, prepared: list[_Prepared], options: ScoreOptions
) -> Work[Any, list[SequenceScore]]:
    scores = yield from score_sequence_list(loaded, [item.sequence for item in prepared], bos=options.bos)
    return [
        SequenceScore(
            to_text_order(loaded, sequence.text, ends=options.eos),
            to_text_order(loaded, log_probs, ends=options.eos),
            num_bytes,
        )
        for (sequence, num_bytes), log_probs in zip(prepared, scores, strict=True)
    ]


def _num_bytes(loaded: LoadedModel, item: ScoreItem, sequence: EncodedText) -> int:
    if isinstance(item.given, str):
        return len(item.given.encode())
    spelled = loaded.tokenizer.token_bytes
    size = sum(len(spelled[token]) for token in sequence.text)
    first = spelled[item.given[0]]
    own_space = loaded.tokenizer.leading_space and not item.context and first.startswith(b" ")
    return size - own_space


_QUALITY_OPTIONS = ScoreOptions(model=None, bos=True, eos=True, detail=Detail.NONE)


@dataclass(frozen=True, slots=True)
class QualityItem:
    """A text to assess.

    Attributes:
        parameter: its name in the request, for messages.
        name: the caller's name for it, if any.
        text: not empty.
    """

    parameter: str
    name: str | None
    text: str

    def score_item(self) -> ScoreItem:
        """Convert to an item to score, without a context."""
        return ScoreItem(self.parameter, self.text, "")


class TextQuality(NamedTuple):
    """Quality of a text.

    Attributes:
        name: the caller's name for it.
        num_words: words between white space.
        score: score by the model.
        against: score by the model of comparison; None without one.
    """

    name: str | None
    num_words: int
    score: SequenceScore
    against: SequenceScore | None

    @property
    def bits_per_word(self) -> float | None:
        """−log2 of the probability per word, the end of the text counted as a word."""
        return bits_per_unit(self.score.logprob, self.num_words + 1)

    @property
    def difference(self) -> float | None:
        """Bits per word minus those of the model of comparison: lower means closer to the first model's data."""
        base = None if self.against is None else bits_per_unit(self.against.logprob, self.num_words + 1)
        bits = self.bits_per_word
        return None if bits is None or base is None else bits - base


QualityOutcome = TextQuality | InvalidInputError
"""Outcome of a line; an error for an invalid one."""


def quality(
    loaded: LoadedModel, against: LoadedModel | None, items: Sequence[QualityItem], limits: Limits
) -> Work[Any, list[TextQuality]]:
    """Score texts with one model or two; a use case.

    Raises:
        InvalidInputError: a text has nothing to score, or is too long.
    """
    scored = [item.score_item() for item in items]
    own = yield from score(loaded, scored, _QUALITY_OPTIONS, limits)
    compared: Sequence[SequenceScore | None] = [None] * len(own)
    if against is not None:
        compared = yield from score(against, scored, _QUALITY_OPTIONS, limits)
    return [
        TextQuality(item.name, count_words(item.text), first, second)
        for item, first, second in zip(items, own, compared, strict=True)
    ]


def quality_lines(
    loaded: LoadedModel,
    against: LoadedModel | None,
    lines: Iterator[QualityItem | InvalidInputError],
    limits: Limits,
) -> Work[list[QualityOutcome], None]:
    """Assess a stream of texts; an invalid one does not stop the rest.

    Yields:
        Events: outcomes of the next lines, in order; an error for an invalid line.
    """
    while batch := list(islice(lines, LINES_PER_BATCH)):
        scored = [line.score_item() if isinstance(line, QualityItem) else line for line in batch]
        own = yield from _score_batch(loaded, scored, limits)
        compared: Sequence[SequenceScore | InvalidInputError | None] = [None] * len(own)
        if against is not None:
            compared = yield from _score_batch(against, scored, limits)
        yield [_outcome(line, a, b) for line, a, b in zip(batch, own, compared, strict=True)]


def _outcome(
    line: QualityItem | InvalidInputError,
    own: SequenceScore | InvalidInputError,
    against: SequenceScore | InvalidInputError | None,
) -> QualityOutcome:
    if isinstance(line, InvalidInputError):
        return line
    if isinstance(own, InvalidInputError):
        return own
    if isinstance(against, InvalidInputError):
        return against
    return TextQuality(line.name, count_words(line.text), own, against)


def _score_batch(
    loaded: LoadedModel, items: Iterable[ScoreItem | InvalidInputError], limits: Limits
) -> Work[Any, list[SequenceScore | InvalidInputError]]:
    """Collect the events of `score_lines` for one model; pass its model calls on."""
    work = score_lines(loaded, items, _QUALITY_OPTIONS, limits)
    outcomes: list[SequenceScore | InvalidInputError] = []
    answer: Any = None
    while True:
        try:
            event = work.send(answer)
        except StopIteration:
            return outcomes
        if isinstance(event, list):
            outcomes += event
            answer = None
        else:
            answer = yield event
