"""What a path through a lattice is worth: a weighted sum of features, as in `models.reranking.log_linear`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from models.errors import InvalidInputError
from models.lattices.lattice import Scales
from models.reranking.log_linear import MAX_WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class PathWeights:
    """Signed weights of a path's features; their sum is to be large.

    The new model replaces the first pass's where `old_lm` is 0. Interpolating them, w · new + (1 − w) · old at a
    language model's scale of s, is `lm` = s · w and `old_lm` = s · (1 − w).

    Attributes:
        am: of the acoustic score.
        old_lm: of the score by the first pass's language model.
        lm: of the natural-log probability by the new model, end of sentence included.
        words: of the number of words; positive is a bonus, negative a penalty.
        unk: of the number of tokens that are `<unk>` to the new model; negative is a penalty.

    Raises:
        InvalidInputError: a weight is outside its limits.
    """

    am: float = 1.0
    old_lm: float = 0.0
    lm: float = 1.0
    words: float = 0.0
    unk: float = 0.0

    def __post_init__(self) -> None:
        for name, weight in self.as_mapping().items():
            if not abs(weight) <= MAX_WEIGHT:
                raise InvalidInputError(
                    f"weights.{name} is {weight}; it must be from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
                    parameter=f"weights.{name}",
                )

    @classmethod
    def of(cls, given: Mapping[str, float], scales: Scales) -> Self:
        """Given weights; those of the lattice's file where none are given.

        Raises:
            InvalidInputError: there is no such feature, or a weight is outside its limits.
        """
        names = {field.name for field in fields(cls)}
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise InvalidInputError(
                f"weights.{unknown}: a path has no such feature; it has {', '.join(sorted(names))}",
                parameter=f"weights.{unknown}",
            )
        return cls(**{"am": scales.am, "lm": scales.lm, "words": scales.words, **given})

    def as_mapping(self) -> dict[str, float]:
        """Weights by feature."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
