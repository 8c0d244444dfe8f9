"""How probable texts are by word and byte, under one model or two, to filter corpora by."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from models.errors import InvalidInputError
from models.scoring import bits_per_unit, count_words
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.use_cases.limits import Limits
from service.use_cases.score import Detail, ScoreItem, ScoreOptions, SequenceScore, score, score_lines

_LINES_PER_BATCH = 256
_QUALITY_OPTIONS = ScoreOptions(model=None, bos=True, eos=True, detail=Detail.NONE)


@dataclass(frozen=True, slots=True)
class QualityItem:
    """A text.

    Attributes:
        parameter: its name in the request, for messages.
        name: the caller's for it; None if it has none.
        text: not empty.
    """

    parameter: str
    name: str | None
    text: str

    def score_item(self) -> ScoreItem:
        """The text as it is scored: between `<s>` and `</s>`."""
        return ScoreItem(self.parameter, self.text, "")


class TextQuality(NamedTuple):
    """What came out for a text.

    Attributes:
        name: the caller's for it.
        num_words: between white space.
        score: what the model says.
        against: what the model says that it is compared with; None if there is none.
    """

    name: str | None
    num_words: int
    score: SequenceScore
    against: SequenceScore | None

    @property
    def bits_per_word(self) -> float | None:
        """−log2 of the probability for each word, the end of the text counted as one."""
        return bits_per_unit(self.score.logprob, self.num_words + 1)

    @property
    def difference(self) -> float | None:
        """Bits per word less those of the other model: the lower, the more the text is like the first one's."""
        other = None if self.against is None else bits_per_unit(self.against.logprob, self.num_words + 1)
        own = self.bits_per_word
        return None if own is None or other is None else own - other


QualityOutcome = TextQuality | InvalidInputError
"""What became of a line; an error if it is wrong."""


def quality(
    loaded: LoadedModel, against: LoadedModel | None, items: Sequence[QualityItem], limits: Limits
) -> Work[Any, list[TextQuality]]:
    """Score texts with one model or two; a use case.

    Raises:
        InvalidInputError: a text has nothing to score, or is too long.
    """
    scored = [item.score_item() for item in items]
    own = yield from score(loaded, scored, _QUALITY_OPTIONS, limits)
    others: Sequence[SequenceScore | None] = [None] * len(own)
    if against is not None:
        others = yield from score(against, scored, _QUALITY_OPTIONS, limits)
    return [
        TextQuality(item.name, count_words(item.text), first, second)
        for item, first, second in zip(items, own, others, strict=True)
    ]


def quality_lines(
    loaded: LoadedModel,
    against: LoadedModel | None,
    lines: Iterator[QualityItem | InvalidInputError],
    limits: Limits,
) -> Work[list[QualityOutcome], None]:
    """Score a stream of texts; a wrong one does not stop the others.

    Yields:
        Events: what became of the next lines, in order; an error where a line is wrong.
    """
    while batch := list(islice(lines, _LINES_PER_BATCH)):
        scored = [line.score_item() if isinstance(line, QualityItem) else line for line in batch]
        own = yield from _score_batch(loaded, scored, limits)
        others: Sequence[SequenceScore | InvalidInputError | None] = [None] * len(own)
        if against is not None:
            others = yield from _score_batch(against, scored, limits)
        yield [_outcome(line, one, other) for line, one, other in zip(batch, own, others, strict=True)]


def _outcome(
    line: QualityItem | InvalidInputError,
    own: SequenceScore | InvalidInputError,
    other: SequenceScore | InvalidInputError | None,
) -> QualityOutcome:
    if isinstance(line, InvalidInputError):
        return line
    if isinstance(own, InvalidInputError):
        return own
    if isinstance(other, InvalidInputError):
        return other
    return TextQuality(line.name, count_words(line.text), own, other)


def _score_batch(
    loaded: LoadedModel, items: Iterable[ScoreItem | InvalidInputError], limits: Limits
) -> Work[Any, list[SequenceScore | InvalidInputError]]:
    """What becomes of each text with one model: the events of `score_lines` are kept, its questions passed on."""
    work = score_lines(loaded, items, _QUALITY_OPTIONS, limits)
    outcomes: list[SequenceScore | InvalidInputError] = []
    answer: Any = None
    while True:
        try:
            told = work.send(answer)
        except StopIteration:
            return outcomes
        if isinstance(told, list):
            outcomes += told
            answer = None
        else:
            answer = yield told
