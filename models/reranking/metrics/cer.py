"""Character error rate: edits in percent of reference characters, spaces between words included."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.reranking.metrics.edit_distance import error_rate, fewest_errors
from models.reranking.metrics.interface import Statistics
from models.reranking.metrics.normalisers import NORMALISERS, UNCHANGED
from models.reranking.metrics.signatures import error_rate_signature


@dataclass(frozen=True, slots=True)
class CharacterErrorRate:
    """Character error rate; statistics are errors and reference characters, which are code points.

    Attributes:
        num_references: of each input, for the signature only; None where it varies.
        normaliser: one of `NORMALISERS`.
    """

    num_references: int | None = 1
    normaliser: str = UNCHANGED

    name = "cer"
    higher_is_better = False

    @property
    def signature(self) -> str:
        """What is counted, as `key:value` pairs."""
        return error_rate_signature(self.num_references, "characters", self.normaliser)

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Errors and reference characters of each text [C, 2], white space at the ends aside.

        Raises:
            InvalidInputError: there is no reference.
        """
        normalise = NORMALISERS[self.normaliser]
        stripped = [normalise(text).strip() for text in (*texts, *references)]
        return fewest_errors(stripped[: len(texts)], stripped[len(texts) :])

    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        """Errors in percent of reference characters [...]."""
        return error_rate(totals)
