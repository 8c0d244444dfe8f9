"""Word and character error rate: edits in percent of the reference's words or characters.

Substitutions, deletions and insertions cost 1 each. Sequences are strings, one character per unit:
rapidfuzz compares 64 units at a time (Hyyrö 2003).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist
from typing_extensions import override

from models.errors import InvalidInputError
from models.reranking.candidates import Steps, map_in_steps, run_steps
from models.reranking.metrics.metric import NORMALISERS, UNCHANGED, Metric, Statistics, check_references

_MAX_DISTINCT_WORDS = 0x110000  # number of code points


def words_as_characters(texts: Iterable[Sequence[str]]) -> Steps[list[str]]:
    """Encode texts as strings with one character per word, consistently over all texts, in bounded steps.

    Used for comparisons of words by string algorithms.

    Raises:
        InvalidInputError: there are more distinct words than characters.
    """
    character_of = _WordCharacters()
    return map_in_steps(texts, lambda words: "".join(map(character_of.__getitem__, words)), size=len)


class _WordCharacters(dict[str, str]):
    """Characters by word, assigned in the order of lookups."""

    def __missing__(self, word: str) -> str:
        if len(self) == _MAX_DISTINCT_WORDS:
            raise InvalidInputError(
                f"the texts of a list have more than {_MAX_DISTINCT_WORDS} distinct words, the maximum for a "
                "comparison"
            )
        return self.setdefault(word, chr(len(self)))


def pairwise_distances(texts: Sequence[str], references: Sequence[str]) -> npt.NDArray[np.int32]:
    """Compute the edit distance of each text from each reference [C, R]."""
    if not texts or not references:
        return np.zeros((len(texts), len(references)), np.int32)
    return cdist(texts, references, scorer=Levenshtein.distance, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ErrorRate(Metric):
    """Word or character error rate; statistics are errors and reference units.

    Words are separated by white space; characters are code points of the stripped text, including spaces between
    words. The errors are those against the reference with the fewest edits, and among equal ones the longest, which
    gives the lowest rate. An empty reference counts as one unit.

    Attributes:
        name: `wer` or `cer`.
        num_references: number of references per input, only for the signature; None if it varies.
        normaliser: one of `NORMALISERS`.
    """

    name: str
    num_references: int | None = 1
    normaliser: str = UNCHANGED

    higher_is_better = False

    @property
    @override
    def signature(self) -> str:
        units = "words" if self.name == "wer" else "characters"
        references = "var" if self.num_references is None else self.num_references
        return f"nrefs:{references}|units:{units}|normaliser:{self.normaliser}"

    @override
    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        check_references(references)
        normalised = map(NORMALISERS[self.normaliser], (*texts, *references))
        if self.name == "wer":
            strings = run_steps(words_as_characters(text.split() for text in normalised))
        else:
            strings = [text.strip() for text in normalised]
        right = strings[len(texts) :]
        errors = pairwise_distances(strings[: len(texts)], right).astype(np.int64)
        lengths = np.fromiter(map(len, right), np.int64, len(right))
        chosen = (errors * (lengths.max() + 1) - lengths).argmin(axis=1)
        return np.stack([errors[np.arange(len(texts)), chosen], lengths[chosen]], axis=1)

    @override
    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        return 100.0 * totals[..., 0] / np.maximum(totals[..., 1], 1)
