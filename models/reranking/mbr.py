"""Minimum Bayes risk decoding of n-best lists, and word confidences.

The utility of a candidate is its expectation over the posteriors of the list: each candidate in
turn is the reference (Kumar & Byrne 2004; on n-best lists Goel & Byrne 2000, SRILM's `nbest-lattice
-wer`).

For confidences every other candidate is aligned to one by edit distance; a word's confidence is the
posterior mass of the candidates with the same word in this position. This is the confusion network
of SRILM's `nbest-lattice` (Mangu et al. 2000) and of hystoc (Beneš et al. 2023) along one
candidate: as that candidate is the pivot, no network is built, and the order of the others has no
influence.
"""

import importlib
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from models.errors import InvalidInputError
from models.reranking.candidates import Steps, map_in_steps, run_steps
from models.reranking.metrics.error_rate import pairwise_distances, words_as_characters_in_steps


class DistinctCandidates(NamedTuple):
    """C candidates as U distinct ones, in the order in which they first come.

    Attributes:
        first: where each is first among the candidates [U].
        of_candidate: which one each candidate is [C].
        posteriors: the mass of each, 1 together [U].
    """

    first: npt.NDArray[np.int64]
    of_candidate: npt.NDArray[np.int64]
    posteriors: npt.NDArray[np.float64]


def merge_equal_candidates(candidates: Sequence[Hashable], posteriors: npt.ArrayLike) -> DistinctCandidates:
    """Merge equal candidates and normalise their posteriors.

    Args:
        candidates: what is compared, such as texts; at least one.
        posteriors: of each, or weights in proportion to them [C].

    Raises:
        InvalidInputError: there is no candidate, or the posteriors are not one for each, are negative or not
            finite, or sum to 0.
    """
    mass = np.asarray(posteriors, np.float64)
    if not candidates:
        raise InvalidInputError("candidates has 0 entries; it must have at least 1", parameter="candidates")
    if mass.shape != (len(candidates),):
        raise InvalidInputError(
            f"posteriors has the shape {list(mass.shape)}; it must be [{len(candidates)}], one for each candidate",
            parameter="posteriors",
        )
    total = float(mass.sum())
    if not (mass.min() >= 0 and 0 < total < np.inf):
        raise InvalidInputError(
            f"posteriors are from {mass.min()} and sum to {total}; they must be 0 or more, with a finite sum above 0",
            parameter="posteriors",
        )
    number_of: dict[Hashable, int] = {}
    of_candidate = np.array([number_of.setdefault(candidate, len(number_of)) for candidate in candidates])
    first = np.unique(of_candidate, return_index=True)[1]
    of_distinct = np.zeros(len(first))
    np.add.at(of_distinct, of_candidate, mass / total)
    return DistinctCandidates(first, of_candidate, of_distinct)


Utility: TypeAlias = Literal["wer", "chrf", "bleu"]
UTILITIES: tuple[Utility, ...] = get_args(Utility)

_IntArray: TypeAlias = npt.NDArray[np.int64]
_Scores: TypeAlias = npt.NDArray[np.float64]
MAX_COMPARED_WORDS = 8192
"""Of one text: a pair is compared at once, which takes some 15 ms for two of so many."""

_WORD_PAIRS_PER_STEP = 4_000_000
_CHARACTERS_PER_STEP = 100_000
_CHARACTERS_PER_PAIR = 64
"""What a pair costs however short it is."""


class _PairwiseUtilities(NamedTuple):
    """U texts that can be compared with each other.

    Attributes:
        utilities: from numbers of texts [C] and of references [R] to utilities [C, R].
        sizes: of the texts, by which what comparing takes grows [U].
        squared: whether it grows by the size of the reference too.
        most: sizes in a step, or products of sizes, which then takes a millisecond or so.
    """

    utilities: Callable[[_IntArray, _IntArray], _Scores]
    sizes: npt.NDArray[np.floating[Any]]
    squared: bool
    most: int

    def blocks(self) -> Iterator[tuple[_IntArray, _IntArray]]:
        """All pairs of texts and references, in blocks of a step each or one pair."""
        everyone = np.arange(len(self.sizes))
        costs = self.sizes if self.squared else np.ones(len(self.sizes))
        for references in _blocks_by_cost(everyone, costs * self.sizes.sum(), self.most):
            for texts in _blocks_by_cost(everyone, self.sizes * costs[references].sum(), self.most):
                yield texts, references


def _blocks_by_cost(numbers: _IntArray, costs: npt.NDArray[np.float64], most: int) -> Iterator[_IntArray]:
    """Numbers in runs that cost no more than the most, or of one."""
    ends, begin = np.cumsum(costs), 0
    while begin < len(numbers):
        spent = ends[begin] - costs[begin]
        end = max(begin + 1, int(np.searchsorted(ends, spent + most, side="right")))
        yield numbers[begin:end]
        begin = end


def expected_utilities(texts: Sequence[str], posteriors: npt.ArrayLike, utility: str) -> _Scores:
    """Average agreement of each candidate with the list; choose the first of the largest.

    Args:
        texts: the candidates; equal ones count as one, with the mass of all.
        posteriors: of each, or weights in proportion to them [C].
        utility: `wer`, minus the number of word errors; `chrf`, sentence chrF; `bleu`, sentence BLEU, with its
            effective order; both in percent, as sacrebleu has them.

    Returns:
        Expected utility of each candidate, itself included [C]; larger is better.

    Raises:
        InvalidInputError: there is no such utility, no candidate, or `posteriors` is not a distribution of mass.
    """
    return run_steps(expected_utilities_in_steps(texts, posteriors, utility))


def expected_utilities_in_steps(
    texts: Sequence[str], posteriors: npt.ArrayLike, utility: str
) -> Steps[_Scores]:
    """Run `expected_utilities` with a stop after every bounded piece: the work grows with C²."""
    if utility not in _UTILITY_FACTORIES:
        raise InvalidInputError(
            f"utility is {utility!r}; it must be one of {', '.join(UTILITIES)}", parameter="utility"
        )
    distinct = merge_equal_candidates(texts, posteriors)
    distinct_texts = [texts[index] for index in distinct.first]
    compared = yield from _UTILITY_FACTORIES[utility](distinct_texts)
    expected = np.zeros(len(distinct_texts))
    for candidates, references in compared.blocks():
        yield
        expected[candidates] += compared.utilities(candidates, references) @ distinct.posteriors[references]
    return expected[distinct.of_candidate]


def load_ngram_kernels() -> None:
    """Load the compiled code that `chrf` and `bleu` need, which takes a second the first time."""
    importlib.import_module("models.reranking.metrics.ngram_overlap")


def _wer_utilities(texts: Sequence[str]) -> Steps[_PairwiseUtilities]:
    spelled = yield from words_as_characters_in_steps(text.split() for text in texts)
    longest = max(map(len, spelled))
    if longest > MAX_COMPARED_WORDS:
        raise InvalidInputError(
            f"a candidate has {longest} words; where the words of each are compared with those of each, at most "
            f"{MAX_COMPARED_WORDS} are accepted",
            parameter="candidates",
        )

    def utilities(candidates: _IntArray, references: _IntArray) -> _Scores:
        return -pairwise_distances([spelled[i] for i in candidates], [spelled[i] for i in references]).astype(
            np.float64
        )

    # 64 words of the longer text are compared with a word of the other at once
    sizes = np.array([len(text) + 8.0 for text in spelled])
    return _PairwiseUtilities(utilities, sizes, squared=True, most=_WORD_PAIRS_PER_STEP)


def _chrf_utilities(texts: Sequence[str]) -> Steps[_PairwiseUtilities]:
    from models.reranking.metrics import ngram_overlap  # compiles kernels: only where it is asked for

    counts, metric = (yield from ngram_overlap.count_character_ngrams(texts)), ngram_overlap.ChrF()

    def utilities(candidates: _IntArray, references: _IntArray) -> _Scores:
        return metric.score(ngram_overlap.chrf_statistics(counts, candidates, references))

    return _PairwiseUtilities(
        utilities, counts.lengths + float(_CHARACTERS_PER_PAIR), squared=False, most=_CHARACTERS_PER_STEP
    )


def _bleu_utilities(texts: Sequence[str]) -> Steps[_PairwiseUtilities]:
    from models.reranking.metrics import ngram_overlap

    counts = yield from ngram_overlap.count_word_ngrams(texts)

    def utilities(candidates: _IntArray, references: _IntArray) -> _Scores:
        each_alone = np.arange(len(references) + 1)
        return ngram_overlap.sentence_bleu(
            ngram_overlap.bleu_statistics(counts, candidates, references, each_alone)
        )

    return _PairwiseUtilities(
        utilities, counts.lengths + float(_CHARACTERS_PER_PAIR), squared=False, most=_CHARACTERS_PER_STEP
    )


_UTILITY_FACTORIES: dict[str, Callable[[Sequence[str]], Steps[_PairwiseUtilities]]] = {
    "wer": _wer_utilities,
    "chrf": _chrf_utilities,
    "bleu": _bleu_utilities,
}


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
    """Run `word_confidences` with a stop after every bounded piece: aligning long texts takes its time."""
    spans = yield from map_in_steps(texts, _word_spans, size=len)
    spelled = yield from words_as_characters_in_steps([[word for word, _, _ in words] for words in spans])
    distinct = merge_equal_candidates(spelled, posteriors)
    compared_texts = [spelled[index] for index in distinct.first]
    answers = []
    for index in range(len(texts)) if chosen is None else chosen:
        confidences = yield from _agreement_masses(spelled[index], compared_texts, distinct.posteriors)
        answers.append(
            [
                WordPosterior(*span, confidence)
                for span, confidence in zip(spans[index], confidences, strict=True)
            ]
        )
    return answers


def _word_spans(text: str) -> list[tuple[str, int, int]]:
    """Words, and where each starts and ends."""
    return [(match[0], *match.span()) for match in _WORD.finditer(text)]


def _agreement_masses(
    pivot: str, compared_texts: Sequence[str], posteriors: npt.NDArray[np.float64]
) -> Steps[list[float]]:
    """Mass of the others that have each unit of the pivot where an alignment puts it."""
    lost: list[int] = []
    masses: list[float] = []
    aligned = 0
    for compared_text, mass in zip(compared_texts, posteriors.tolist(), strict=True):
        aligned += len(pivot) * len(compared_text)
        if aligned > _ALIGNMENT_CELLS_PER_STEP:
            aligned = 0
            yield
        edits = Levenshtein.editops(pivot, compared_text).as_list()
        indices = [int(index) for kind, index, _ in edits if kind != "insert"]
        lost += indices
        masses += [mass] * len(indices)
    disagreed = np.bincount(np.array(lost, np.int64), masses, minlength=len(pivot))
    agreed: list[float] = np.clip(1.0 - disagreed, 0.0, 1.0).tolist()
    return agreed
