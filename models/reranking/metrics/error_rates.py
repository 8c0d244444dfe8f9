"""Word and character error rate: edits in percent of the reference's words or characters."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from models.reranking.metrics.edit_distance import error_rate, fewest_errors, words_as_characters
from models.reranking.metrics.interface import Statistics
from models.reranking.metrics.normalisers import NORMALISERS, UNCHANGED
from models.reranking.metrics.signatures import error_rate_signature


@dataclass(frozen=True, slots=True)
class ErrorRate(ABC):
    """An error rate; statistics are errors and reference units.

    Attributes:
        num_references: of each input, for the signature only; None where it varies.
        normaliser: one of `NORMALISERS`.
    """

    num_references: int | None = 1
    normaliser: str = UNCHANGED

    name: ClassVar[str]
    units: ClassVar[str]
    higher_is_better: ClassVar[bool] = False

    @property
    def signature(self) -> str:
        """What is counted, as `key:value` pairs."""
        return error_rate_signature(self.num_references, self.units, self.normaliser)

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Errors and reference units of each text [C, 2], against the reference with fewest errors.

        Raises:
            InvalidInputError: there is no reference.
        """
        normalise = NORMALISERS[self.normaliser]
        spelled = self.spelled([normalise(text) for text in (*texts, *references)])
        return fewest_errors(spelled[: len(texts)], spelled[len(texts) :])

    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        """Errors in percent of reference units [...]."""
        return error_rate(totals)

    @staticmethod
    @abstractmethod
    def spelled(texts: Sequence[str]) -> list[str]:
        """Texts with one character for each unit, the same one for equal units."""


class WordErrorRate(ErrorRate):
    """Word error rate; words are what stands between white space."""

    __slots__ = ()
    name = "wer"
    units = "words"

    @staticmethod
    def spelled(texts: Sequence[str]) -> list[str]:
        """Texts with one character for each word."""
        return words_as_characters([text.split() for text in texts])


class CharacterErrorRate(ErrorRate):
    """Character error rate: code points, spaces between words included, white space at the ends aside."""

    __slots__ = ()
    name = "cer"
    units = "characters"

    @staticmethod
    def spelled(texts: Sequence[str]) -> list[str]:
        """The texts without white space at their ends."""
        return [text.strip() for text in texts]
