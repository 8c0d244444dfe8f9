"""Levenshtein distances between many short sequences: substitutions, deletions and insertions, each of cost 1.

Sequences are strings, one character a unit: rapidfuzz compares those 64 units at a time (Hyyrö 2003).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from models.errors import InvalidInputError
from models.reranking.metrics.interface import Statistics, check_references
from models.reranking.tuning.steps import Steps, map_in_steps, run_steps

_MAX_DISTINCT_WORDS = 0x110000  # characters there are


def words_as_characters(texts: Sequence[Sequence[str]]) -> list[str]:
    """Texts of words as strings, in which a character stands for a word, the same one in all of them.

    Raises:
        InvalidInputError: there are more distinct words than characters.
    """
    return run_steps(words_as_characters_in_steps(texts))


def words_as_characters_in_steps(texts: Iterable[Sequence[str]]) -> Steps[list[str]]:
    """What `words_as_characters` does, with a stop after every bounded piece."""
    character_of = _WordCharacters()
    return map_in_steps(texts, lambda words: "".join(map(character_of.__getitem__, words)), size=len)


class _WordCharacters(dict[str, str]):
    """A character for each word that was asked about, in the order in which they came."""

    def __missing__(self, word: str) -> str:
        if len(self) == _MAX_DISTINCT_WORDS:
            raise InvalidInputError(
                f"the texts of one list have more than {_MAX_DISTINCT_WORDS} distinct words, which is the most that "
                "are compared"
            )
        return self.setdefault(word, chr(len(self)))


def pairwise_distances(texts: Sequence[str], others: Sequence[str]) -> npt.NDArray[np.int32]:
    """Edits that turn each text into each of the others [C, R]."""
    if not texts or not others:
        return np.zeros((len(texts), len(others)), np.int32)
    return cdist(texts, others, scorer=Levenshtein.distance, dtype=np.int32)


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
