"""Word and character error rate: edits in percent of the reference's words or characters.

Substitutions, deletions and insertions cost 1 each. Sequences are strings, one character per unit:
rapidfuzz compares 64 units at a time (Hyyrö 2003).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from models.errors import InvalidInputError
from models.reranking.candidates import Steps, map_in_steps, run_steps
from models.reranking.metrics.metric import (
    NORMALISERS,
    UNCHANGED,
    Statistics,
    check_references,
    error_rate_signature,
)

_MAX_DISTINCT_WORDS = 0x110000  # characters there are


def words_as_characters(texts: Sequence[Sequence[str]]) -> list[str]:
    """Texts of words as strings, in which a character stands for a word, the same one in all of them.

    Raises:
        InvalidInputError: there are more distinct words than characters.
    """
    return run_steps(words_as_characters_in_steps(texts))


def words_as_characters_in_steps(texts: Iterable[Sequence[str]]) -> Steps[list[str]]:
    """Run `words_as_characters` with a stop after every bounded piece."""
    character_of = _WordCharacters()
    return map_in_steps(texts, lambda words: "".join(map(character_of.__getitem__, words)), size=len)


class _WordCharacters(dict[str, str]):
    """A character for each word, in the order of their requests."""

    def __missing__(self, word: str) -> str:
        if len(self) == _MAX_DISTINCT_WORDS:
            raise InvalidInputError(
                f"the texts of one list have more than {_MAX_DISTINCT_WORDS} distinct words, which is the most that "
                "are compared"
            )
        return self.setdefault(word, chr(len(self)))


def pairwise_distances(texts: Sequence[str], references: Sequence[str]) -> npt.NDArray[np.int32]:
    """Edits that turn each text into each of the others [C, R]."""
    if not texts or not references:
        return np.zeros((len(texts), len(references)), np.int32)
    return cdist(texts, references, scorer=Levenshtein.distance, dtype=np.int32)


def fewest_errors(texts: Sequence[str], references: Sequence[str]) -> Statistics:
    """Edits against the reference that needs fewest, and that reference's length.

    Of references that need equally many the longest counts: the rate is then lowest.

    Returns:
        [C, 2], in units.

    Raises:
        InvalidInputError: there is no reference.
    """
    check_references(references)
    errors = pairwise_distances(texts, references).astype(np.int64)
    lengths = np.fromiter(map(len, references), np.int64, len(references))
    chosen = (errors * (lengths.max() + 1) - lengths).argmin(axis=1)
    return np.stack([errors[np.arange(len(texts)), chosen], lengths[chosen]], axis=1)


def error_rate(totals: Statistics) -> npt.NDArray[np.float64]:
    """Errors in percent of reference units; an empty reference counts as one unit.

    Args:
        totals: errors and reference units [..., 2].
    """
    return 100.0 * totals[..., 0] / np.maximum(totals[..., 1], 1)


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
        """Settings of the count, as `key:value` pairs."""
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
