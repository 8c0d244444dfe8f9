"""How probable texts are."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError
from models.vocabulary import EOS, UNK
from service.engine.host import LoadedModel
from service.engine.job import Work
from service.use_cases.limits import Limits
from service.use_cases.sequence_scores import score_all
from service.use_cases.tokens import Sequence, TextOrIds, encode_after

_LINES_PER_STEP = 64


class Detail(StrEnum):
    """How finely a score is reported."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - no secret
    WORD = "word"


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """How all sequences of a request are scored.

    Attributes:
        model: address; None for the default.
        bos: whether `<s>` stands before each.
        eos: whether `</s>` after each is scored too.
        detail: how finely to report.
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
        given: what to score; not empty.
        context: what stands before it; may be empty.
    """

    parameter: str
    given: TextOrIds
    context: TextOrIds


class SequenceScore(NamedTuple):
    """What the model says of one sequence.

    Attributes:
        ids: the scored tokens [T], `</s>` included where it was asked for.
        log_probs: of each [T].
        num_bytes: of the text scored, in UTF-8.
    """

    ids: TokenIds
    log_probs: FloatArray
    num_bytes: int

    @property
    def logprob(self) -> float:
        """The sum, in double precision."""
        return float(self.log_probs.sum(dtype=np.float64))

    @property
    def num_oov(self) -> int:
        """How many of the tokens are `<unk>`."""
        return int(np.count_nonzero(self.ids == UNK))


def score(
    loaded: LoadedModel, items: Iterable[ScoreItem], options: ScoreOptions, limits: Limits
) -> Work[Any, list[SequenceScore]]:
    """Score each sequence given its context.

    Raises:
        InvalidInputError: a sequence has nothing to score, is too long, or has a wrong id.
    """
    sequences: list[Sequence] = []
    sizes: list[int] = []
    for item in items:
        sequences.append(_sequence(loaded, item, options, limits))
        sizes.append(_num_bytes(loaded, item, sequences[-1]))
        if len(sequences) % _LINES_PER_STEP == 0:
            yield None
    scores = yield from score_all(loaded.model, sequences, bos=options.bos)
    return [
        SequenceScore(ids[num_context:], log_probs, size)
        for (ids, num_context), log_probs, size in zip(sequences, scores, sizes, strict=True)
    ]


def score_lines(
    loaded: LoadedModel,
    lines: Iterable[ScoreItem | InvalidInputError],
    options: ScoreOptions,
    limits: Limits,
) -> Work[list[SequenceScore | InvalidInputError], None]:
    """Score a stream of sequences; a wrong one does not stop the others.

    Yields:
        Events: what became of the next lines, in order; an error where a line is wrong.
    """
    pending = iter(lines)
    while batch := list(islice(pending, _LINES_PER_STEP)):
        outcomes: list[SequenceScore | InvalidInputError | None] = []
        sequences: list[Sequence] = []
        sizes: list[int] = []
        for line in batch:
            if isinstance(line, InvalidInputError):
                outcomes.append(line)
                continue
            try:
                sequence = _sequence(loaded, line, options, limits)
            except InvalidInputError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
                sequences.append(sequence)
                sizes.append(_num_bytes(loaded, line, sequence))
        scores = yield from score_all(loaded.model, sequences, bos=options.bos)
        answers = (
            SequenceScore(ids[num_context:], log_probs, size)
            for (ids, num_context), log_probs, size in zip(sequences, scores, sizes, strict=True)
        )
        yield [next(answers) if outcome is None else outcome for outcome in outcomes]


def _sequence(loaded: LoadedModel, item: ScoreItem, options: ScoreOptions, limits: Limits) -> Sequence:
    ids, num_context = encode_after(loaded, item.context, item.given, parameter=item.parameter)
    if options.eos:
        ids = np.append(ids, EOS)
    if len(ids) == num_context:
        raise InvalidInputError(f"{item.parameter} has no token to score", parameter=item.parameter)
    limits.check_length(ids, parameter=item.parameter)
    return Sequence(ids, num_context)


def _num_bytes(loaded: LoadedModel, item: ScoreItem, sequence: Sequence) -> int:
    if isinstance(item.given, str):
        return len(item.given.encode())
    spelled = loaded.tokenizer.token_bytes
    size = sum(len(spelled[i]) for i in sequence.ids[sequence.num_context :])
    first = spelled[item.given[0]]
    own_space = loaded.tokenizer.leading_space and not item.context and first.startswith(b" ")
    return size - own_space
