"""Lists of candidates to re-rank, a check of their scores, and computations in bounded steps.

`Steps` is a generator that yields after a bounded amount of work, so its caller can run other work
in between, or stop.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hypothesis.

    Attributes:
        text: the whole sentence.
        features: of the first pass, by name, such as `am`; natural logarithms, larger is better, unless the weights
            say otherwise.
    """

    text: str
    features: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CandidateList:
    """The hypotheses for one input; at least one.

    Attributes:
        name: the caller's id for it.
        context: what stands before each candidate; may be empty.
        candidates: in first-pass order.
        references: what is right, if that is known; several ways to say it may be.
        continuation: what is scored after each candidate, which is then only its context (query likelihood);
            None scores the candidates themselves.
    """

    name: str | None
    context: str
    candidates: tuple[Candidate, ...]
    references: tuple[str, ...] = ()
    continuation: str | None = None


T = TypeVar("T")
R = TypeVar("R")

_CHARACTERS_PER_STEP = 1 << 13
_CHARACTERS_PER_ITEM = 64
"""What even an empty item costs."""

Steps: TypeAlias = Generator[None, None, T]
"""A computation under way: it stops often, and returns its result."""


def run_steps(steps: Steps[T]) -> T:
    """Do all that is left of a computation."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def map_in_steps(
    items: Iterable[T], prepare: Callable[[T], R], *, size: Callable[[T], int]
) -> Steps[list[R]]:
    """Prepare each item, a bounded amount of text a step.

    Args:
        items: each with a context and a text, say.
        prepare: tokenises one.
        size: how many characters, ids or words it has.
    """
    prepared: list[R] = []
    read = 0
    for item in items:
        if read > _CHARACTERS_PER_STEP:
            read = 0
            yield
        read += size(item) + _CHARACTERS_PER_ITEM
        prepared.append(prepare(item))
    return prepared


_SCORE = re.compile(
    r"(?:old_|hyp_|asr_)?(?:(?:am|lm|ac|acoustic|language|graph|nn|rnn)(?:_model)?(?:_score)?|score|total|log_?prob)s?"
)
"""Names of what models and decoders give; what is called a posterior or a confidence may be one."""


class ScoreRanges:
    """Between which numbers the scores of lists lie, by feature; zeros are left out, as products underflow to them."""

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[float, float]] = {}

    def watch(self, lists: Iterable[CandidateList]) -> Iterator[CandidateList]:
        """The same lists, looked at."""
        for one in lists:
            for candidate in one.candidates:
                for name, value in candidate.features.items():
                    if value:
                        low, high = self._ranges.get(name, (value, value))
                        self._ranges[name] = min(low, value), max(high, value)
            yield one

    def warnings(self) -> Iterator[str]:
        """A sentence for each score all of whose values lie above 0 and up to 1, and not all at 1."""
        for name, (low, high) in sorted(self._ranges.items()):
            if 0 < low < 1 and high <= 1 and _SCORE.fullmatch(name.lower()):
                yield (
                    f"all values of {name} lie between {low:.3g} and {high:.3g}, so they look like probabilities; "
                    "natural logarithms are expected: replace each by its logarithm"
                )
