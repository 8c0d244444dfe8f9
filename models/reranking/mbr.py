"""Minimum Bayes risk: the candidate that agrees best with what all of them say.

The utility of a candidate is expected over the posteriors of the list itself: each candidate in turn is
taken to be the reference (Kumar & Byrne 2004; on n-best lists Goel & Byrne 2000, SRILM's `nbest-lattice -wer`).
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.reranking.metrics.edit_distance import pairwise_distances, words_as_characters_in_steps
from models.reranking.posteriors import merge_equal_candidates
from models.reranking.tuning.steps import Steps, run_steps

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
    """How well each candidate agrees with the list on average; choose the first of the largest.

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
    """What `expected_utilities` does, with a stop after every bounded piece: the work grows with C²."""
    if utility not in _UTILITY_FACTORIES:
        raise InvalidInputError(
            f"utility is {utility!r}; it must be one of {', '.join(UTILITIES)}", parameter="utility"
        )
    distinct = merge_equal_candidates(texts, posteriors)
    distinct_texts = [texts[place] for place in distinct.first]
    compared = yield from _UTILITY_FACTORIES[utility](distinct_texts)
    expected = np.zeros(len(distinct_texts))
    for some, references in compared.blocks():
        yield
        expected[some] += compared.utilities(some, references) @ distinct.posteriors[references]
    return expected[distinct.of_candidate]


def load_ngram_kernels() -> None:
    """Load the compiled code that `chrf` and `bleu` need, which takes a second the first time."""
    importlib.import_module("models.reranking.metrics.ngrams")


def _wer_utilities(texts: Sequence[str]) -> Steps[_PairwiseUtilities]:
    spelled = yield from words_as_characters_in_steps(text.split() for text in texts)
    longest = max(map(len, spelled))
    if longest > MAX_COMPARED_WORDS:
        raise InvalidInputError(
            f"a candidate has {longest} words; where the words of each are compared with those of each, at most "
            f"{MAX_COMPARED_WORDS} are accepted",
            parameter="candidates",
        )

    def utilities(some: _IntArray, references: _IntArray) -> _Scores:
        return -pairwise_distances([spelled[i] for i in some], [spelled[i] for i in references]).astype(
            np.float64
        )

    # 64 words of the longer text are compared with a word of the other at once
    sizes = np.array([len(text) + 8.0 for text in spelled])
    return _PairwiseUtilities(utilities, sizes, squared=True, most=_WORD_PAIRS_PER_STEP)


def _chrf_utilities(texts: Sequence[str]) -> Steps[_PairwiseUtilities]:
    from models.reranking.metrics import chrf  # compiles kernels: only where it is asked for

    counts, metric = (yield from chrf.count_character_ngrams(texts)), chrf.ChrF()

    def utilities(some: _IntArray, references: _IntArray) -> _Scores:
        return metric.score(chrf.chrf_statistics(counts, some, references))

    return _PairwiseUtilities(
        utilities, counts.lengths + float(_CHARACTERS_PER_PAIR), squared=False, most=_CHARACTERS_PER_STEP
    )


def _bleu_utilities(texts: Sequence[str]) -> Steps[_PairwiseUtilities]:
    from models.reranking.metrics import bleu

    counts = yield from bleu.count_word_ngrams(texts)

    def utilities(some: _IntArray, references: _IntArray) -> _Scores:
        each_alone = np.arange(len(references) + 1)
        return bleu.sentence_bleu(bleu.bleu_statistics(counts, some, references, each_alone))

    return _PairwiseUtilities(
        utilities, counts.lengths + float(_CHARACTERS_PER_PAIR), squared=False, most=_CHARACTERS_PER_STEP
    )


_UTILITY_FACTORIES: dict[str, Callable[[Sequence[str]], Steps[_PairwiseUtilities]]] = {
    "wer": _wer_utilities,
    "chrf": _chrf_utilities,
    "bleu": _bleu_utilities,
}
