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
from models.reranking.candidates import Steps, map_in_steps
from models.reranking.metrics.error_rate import pairwise_distances, words_as_characters


def merge_equal_candidates(
    candidates: Sequence[Hashable], posteriors: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Merge C candidates that are equal into U, in the order in which they first come.

    Args:
        candidates: what is compared, such as texts; at least one.
        posteriors: of each, or weights in proportion to them [C].

    Returns:
        Where each is first among the candidates [U], which one each candidate is [C], and the mass of each, 1
        together [U].
    """
    mass = np.asarray(posteriors, np.float64)
    number_of: dict[Hashable, int] = {}
    of_candidate = np.array([number_of.setdefault(candidate, len(number_of)) for candidate in candidates])
    first = np.unique(of_candidate, return_index=True)[1]
    of_distinct = np.zeros(len(first))
    np.add.at(of_distinct, of_candidate, mass / mass.sum())
    return first, of_candidate, of_distinct


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


def expected_utilities(texts: Sequence[str], posteriors: npt.ArrayLike, utility: Utility) -> Steps[_Scores]:
    """Average agreement of each candidate with the list; choose the first of the largest.

    There is a stop after every bounded piece: the work grows with C².

    Args:
        texts: the candidates; equal ones count as one, with the mass of all; at least one.
        posteriors: of each, or weights in proportion to them [C].
        utility: `wer`, minus the number of word errors; `chrf`, sentence chrF; `bleu`, sentence BLEU, with its
            effective order; both in percent, as sacrebleu has them.

    Returns:
        Expected utility of each candidate, itself included [C]; larger is better.

    Raises:
        InvalidInputError: a text has too many words to be compared.
    """
    first, of_candidate, mass = merge_equal_candidates(texts, posteriors)
    distinct_texts = [texts[index] for index in first]
    if utility == "wer":
        compared = yield from _wer_utilities(distinct_texts)
    else:
        compared = yield from _ngram_utilities(distinct_texts, utility)
    expected = np.zeros(len(distinct_texts))
    for candidates, references in compared.blocks():
        yield
        expected[candidates] += compared.utilities(candidates, references) @ mass[references]
    return expected[of_candidate]


def load_ngram_kernels() -> None:
    """Load the compiled code that `chrf` and `bleu` need, which takes a second the first time."""
    importlib.import_module("models.reranking.metrics.ngram_overlap")


def _wer_utilities(texts: Sequence[str]) -> Steps[_PairwiseUtilities]:
    spelled = yield from words_as_characters(text.split() for text in texts)
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


def _ngram_utilities(texts: Sequence[str], utility: Literal["chrf", "bleu"]) -> Steps[_PairwiseUtilities]:
    from models.reranking.metrics import ngram_overlap  # compiles kernels: only where it is asked for

    count = ngram_overlap.count_character_ngrams if utility == "chrf" else ngram_overlap.count_word_ngrams
    counts, chrf = (yield from count(texts)), ngram_overlap.ChrF()

    def utilities(candidates: _IntArray, references: _IntArray) -> _Scores:
        if utility == "chrf":
            return chrf.score(ngram_overlap.chrf_statistics(counts, candidates, references))
        each_alone = np.arange(len(references) + 1)
        statistics = ngram_overlap.bleu_statistics(counts, candidates, references, each_alone)
        return ngram_overlap.effective_bleu(statistics)[0]

    return _PairwiseUtilities(
        utilities, counts.lengths + float(_CHARACTERS_PER_PAIR), squared=False, most=_CHARACTERS_PER_STEP
    )


_WORD = re.compile(r"\S+")
_ALIGNMENT_CELLS_PER_STEP = 2_000_000
"""Of the candidate times those of others: what aligning them takes grows so."""


class WordPosterior(NamedTuple):
    """A word of a candidate.

    Attributes:
        text: what stands between white space.
        start: where it starts in the candidate's text, in characters.
        end: where it ends.
        confidence: posterior mass of candidates with this word at this place, from 0 to 1.
    """

    text: str
    start: int
    end: int
    confidence: float


def word_confidences(
    texts: Sequence[str], posteriors: npt.ArrayLike, chosen: int
) -> Steps[list[WordPosterior]]:
    """Confidence of each word of a candidate, in order; 1 exactly where all candidates agree.

    There is a stop after every bounded piece: aligning long texts takes its time.

    Args:
        texts: the candidates.
        posteriors: of each, or weights in proportion to them [C].
        chosen: number of the candidate asked about.

    Raises:
        InvalidInputError: there are more distinct words than can be compared.
    """
    spans = yield from map_in_steps(texts, lambda text: [*_WORD.finditer(text)], size=len)
    strings = yield from words_as_characters([match[0] for match in words] for words in spans)
    first, _, mass = merge_equal_candidates(strings, posteriors)
    confidences = yield from _agreement_masses(strings[chosen], [strings[index] for index in first], mass)
    return [
        WordPosterior(match[0], *match.span(), confidence)
        for match, confidence in zip(spans[chosen], confidences, strict=True)
    ]


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
