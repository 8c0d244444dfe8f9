"""What is re-ranked: lists of candidates, as a recogniser or translator gave them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
