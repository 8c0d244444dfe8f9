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

_MAX_DISTINCT_WORDS = 0x110000  # characters there are


def words_as_characters(texts: Iterable[Sequence[str]]) -> Steps[list[str]]:
    """Texts of words as strings, in which a character stands for a word, the same one in all of them.

    There is a stop after every bounded piece.

    Raises:
        InvalidInputError: there are more distinct words than characters.
    """
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


@dataclass(frozen=True, slots=True)
class ErrorRate(Metric):
    """Word or character error rate; statistics are errors and reference units.

    Words are what stands between white space; characters are code points, spaces between words included, white
    space at the ends aside. Edits count against the reference that needs fewest; of references that need equally
    many the longest counts, as the rate is then lowest. An empty reference counts as one unit.

    Attributes:
        name: `wer` or `cer`.
        num_references: of each input, for the signature only; None where it varies.
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
