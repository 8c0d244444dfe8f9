"""Word error rate: edits in percent of reference words. Words are what stands between white space."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.reranking.metrics.edit_distance import error_rate, fewest_errors, words_as_characters
from models.reranking.metrics.interface import Statistics
from models.reranking.metrics.normalisers import NORMALISERS, UNCHANGED
from models.reranking.metrics.signatures import error_rate_signature


@dataclass(frozen=True, slots=True)
class WordErrorRate:
    """Word error rate; statistics are errors and reference words.

    Attributes:
        num_references: of each input, for the signature only; None where it varies.
        normaliser: one of `NORMALISERS`.
    """

    num_references: int | None = 1
    normaliser: str = UNCHANGED

    name = "wer"
    higher_is_better = False

    @property
    def signature(self) -> str:
        """What is counted, as `key:value` pairs."""
        return error_rate_signature(self.num_references, "words", self.normaliser)

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Errors and reference words of each text [C, 2], against the reference with fewest errors.

        Raises:
            InvalidInputError: there is no reference.
        """
        normalise = NORMALISERS[self.normaliser]
        spelled = words_as_characters([normalise(text).split() for text in (*texts, *references)])
        return fewest_errors(spelled[: len(texts)], spelled[len(texts) :])

    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        """Errors in percent of reference words [...]."""
        return error_rate(totals)
