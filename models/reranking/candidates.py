"""Lists of candidates to re-rank, and a check of their scores."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from models.errors import InputError, check_range
from models.files import count_words

_SCORE = re.compile(
    r"(?:old_|hyp_|asr_)?(?:(?:am|lm|ac|acoustic|language|graph|nn|rnn)(?:_model)?(?:_score)?|score|total|log_?prob)s?"
)
"""Scores of models and decoders; features called posterior or confidence may be probabilities."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Hypothesis with its first-pass features.

    Attributes:
        text: the complete sentence.
        features: features by name, such as `am`; natural logarithms, larger is better, unless weights are
            negative.
        confidences: probability that each word, between white space, is right; empty if unknown.
    """

    text: str
    features: Mapping[str, float] = field(default_factory=dict)
    confidences: tuple[float, ...] = ()


def check_confidences(candidate: Candidate, where: str) -> None:
    """Check that a candidate has no confidences, or one from 0 to 1 for each word.

    Raises:
        InputError: it has not; `where` is the field.
    """
    if not candidate.confidences:
        return
    count, given = count_words(candidate.text), candidate.confidences
    if len(given) != count:
        raise InputError.of(
            where, f"has {len(given)} numbers, but the text has {count} words between white space"
        )
    for index, value in enumerate(given):
        check_range(f"{where}[{index}]", value, 0, 1)


@dataclass(frozen=True, slots=True)
class CandidateList:
    """Hypotheses for one input; at least one.

    Attributes:
        name: the client's id.
        context: text before each candidate; may be empty.
        candidates: hypotheses in first-pass order.
        references: correct texts, if known; several are alternatives.
        continuation: text scored after each candidate, which is then its context (query likelihood);
            None scores the candidates themselves.
        problems: errors of unreadable candidates, which the list lacks.
    """

    name: str | None
    context: str
    candidates: tuple[Candidate, ...]
    references: tuple[str, ...] = ()
    continuation: str | None = None
    problems: tuple[str, ...] = ()


class ScoreRanges:
    """Range of each score over lists, without zeros, as products of probabilities underflow."""

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[float, float]] = {}

    def watch(self, lists: Iterable[CandidateList]) -> Iterator[CandidateList]:
        """Pass lists through and record their scores."""
        for one in lists:
            for candidate in one.candidates:
                for name, value in candidate.features.items():
                    if value:
                        low, high = self._ranges.get(name, (value, value))
                        self._ranges[name] = min(low, value), max(high, value)
            yield one

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each score with values from 0 to 1, not all 1."""
        for name, (low, high) in sorted(self._ranges.items()):
            if 0 < low < 1 and high <= 1 and _SCORE.fullmatch(name.lower()):
                yield (
                    f"all values of {name} lie between {low:.3g} and {high:.3g}, so they look like probabilities; "
                    "natural logarithms are expected: replace each by its logarithm"
                )
