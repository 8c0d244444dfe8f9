"""How sure a list of candidates is of each word of one of them.

Every other candidate is aligned to it by edit distance, and a word's confidence is the posterior mass of the
candidates that have the same word there. This is the confusion network of SRILM's `nbest-lattice` (Mangu et al.
2000) and of hystoc (Beneš et al. 2023) as far as one candidate passes through it: as that candidate is the pivot,
no network has to be built, and nothing depends on the order in which others are added.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from models.reranking.metrics.edit_distance import words_as_characters_in_steps
from models.reranking.posteriors import merge_equal_candidates
from models.reranking.tuning.steps import Steps, map_in_steps, run_steps

_WORD = re.compile(r"\S+")
_ALIGNMENT_CELLS_PER_STEP = 2_000_000
"""Of the candidate times those of others: what aligning them takes grows so."""


class WordPosterior(NamedTuple):
    """A word of a candidate.

    Attributes:
        word: what stands between white space.
        start: where it starts in the candidate's text, in characters.
        end: where it ends.
        confidence: posterior mass of candidates with this word at this place, from 0 to 1.
    """

    word: str
    start: int
    end: int
    confidence: float


def word_confidences(
    texts: Sequence[str], posteriors: npt.ArrayLike, *, chosen: Sequence[int] | None = None
) -> list[list[WordPosterior]]:
    """Confidence of each word of some candidates.

    Args:
        texts: the candidates.
        posteriors: of each, or weights in proportion to them [C].
        chosen: numbers of the candidates asked about; None asks about all.

    Returns:
        For each chosen candidate its words in order; 1 exactly where all candidates agree.

    Raises:
        InvalidInputError: there is no candidate, or `posteriors` is not a distribution of mass.
    """
    return run_steps(word_confidences_in_steps(texts, posteriors, chosen=chosen))


def word_confidences_in_steps(
    texts: Sequence[str], posteriors: npt.ArrayLike, *, chosen: Sequence[int] | None = None
) -> Steps[list[list[WordPosterior]]]:
    """What `word_confidences` does, with a stop after every bounded piece: aligning long texts takes its time."""
    spans = yield from map_in_steps(texts, _word_spans, size=len)
    spelled = yield from words_as_characters_in_steps([[word for word, _, _ in words] for words in spans])
    distinct = merge_equal_candidates(spelled, posteriors)
    others = [spelled[place] for place in distinct.first]
    answers = []
    for place in range(len(texts)) if chosen is None else chosen:
        confidences = yield from _agreement_masses(spelled[place], others, distinct.posteriors)
        answers.append(
            [
                WordPosterior(*span, confidence)
                for span, confidence in zip(spans[place], confidences, strict=True)
            ]
        )
    return answers


def _word_spans(text: str) -> list[tuple[str, int, int]]:
    """Words, and where each starts and ends."""
    return [(match[0], *match.span()) for match in _WORD.finditer(text)]


def _agreement_masses(
    pivot: str, others: Sequence[str], posteriors: npt.NDArray[np.float64]
) -> Steps[list[float]]:
    """Mass of the others that have each unit of the pivot where an alignment puts it."""
    lost: list[int] = []
    masses: list[float] = []
    aligned = 0
    for other, mass in zip(others, posteriors.tolist(), strict=True):
        aligned += len(pivot) * len(other)
        if aligned > _ALIGNMENT_CELLS_PER_STEP:
            aligned = 0
            yield
        edits = Levenshtein.editops(pivot, other).as_list()
        places = [int(place) for kind, place, _ in edits if kind != "insert"]
        lost += places
        masses += [mass] * len(places)
    disagreed = np.bincount(np.array(lost, np.int64), masses, minlength=len(pivot))
    agreed: list[float] = np.clip(1.0 - disagreed, 0.0, 1.0).tolist()
    return agreed
