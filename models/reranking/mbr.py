"""Minimum Bayes risk decoding of n-best lists, and word confidences.

A candidate's utility is its expectation over the list's posteriors: each candidate in
turn is the reference (Kumar & Byrne 2004; on n-best lists Goel & Byrne 2000, SRILM's `nbest-lattice
-wer`).

For confidences, every other candidate is aligned to the chosen one by edit distance; a word's
confidence is the posterior mass of candidates with the same word there. This is the
confusion network of SRILM's `nbest-lattice` (Mangu et al. 2000) and of hystoc (Beneš et al. 2023)
along one candidate: with it as the pivot, no network is built, and the order of the
other candidates does not matter.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from models.arrays import Float64s, Int64s, runs_by_cost
from models.calls import Steps, map_in_steps
from models.errors import InputError
from models.files import WORD, split_words
from models.reranking.metrics.metric import pairwise_distances, words_as_characters

Utility: TypeAlias = Literal["wer", "chrf", "bleu"]
UTILITIES: tuple[Utility, ...] = get_args(Utility)

MAX_COMPARED_WORDS = 8192
"""Maximum words of a text; a pair of this size takes one step of some 15 ms."""

_WORD_PAIRS_PER_STEP = 4_000_000
_CHARS_PER_STEP = 100_000
_CHARS_PER_PAIR = 64
"""Fixed cost of a pair, even of short texts."""

_Comparison: TypeAlias = tuple[Callable[[Int64s, Int64s], Float64s], Iterator[tuple[Int64s, Int64s]]]
"""Function from texts [C] and references [R] to utilities [C, R], and blocks of all pairs."""

_ALIGNMENT_CELLS_PER_STEP = 2_000_000
"""Alignment cells per step: words of the candidate times words of the others."""


def merge_equal_candidates(
    candidates: Sequence[Hashable], posteriors: npt.ArrayLike
) -> tuple[Int64s, Int64s, Float64s]:
    """Merge C candidates into U distinct ones, in order of first occurrence.

    Args:
        candidates: hashable values, such as texts; at least one.
        posteriors: posterior of each, or proportional weights [C].

    Returns:
        Index of each distinct candidate's first occurrence [U], distinct index of each candidate [C], and
        normalised mass of each distinct one [U].
    """
    mass = np.asarray(posteriors, np.float64)
    number_of: dict[Hashable, int] = {}
    index = np.array([number_of.setdefault(candidate, len(number_of)) for candidate in candidates])
    first = np.unique(index, return_index=True)[1]
    sums = np.zeros(len(first))
    np.add.at(sums, index, mass / mass.sum())
    return first, index, sums


def _blocks(sizes: Float64s, factors: Float64s, most: int) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield all pairs of U texts and references, in blocks of one step or one pair.

    Args:
        sizes: sizes of the texts [U].
        factors: cost of a comparison with each reference, relative to the text's size [U].
        most: maximum cost per step, about a millisecond.
    """
    everyone = np.arange(len(sizes))
    for references in runs_by_cost(factors * sizes.sum(), most):
        for texts in runs_by_cost(sizes * factors[references].sum(), most):
            yield everyone[texts], everyone[references]


def expected_utilities(texts: Sequence[str], posteriors: npt.ArrayLike, utility: Utility) -> Steps[Float64s]:
    """Compute each candidate's expected utility against the list, in bounded steps.

    The work grows with C². The largest wins, the first of equal ones.

    Args:
        texts: the candidates, at least one; equal ones count as one of their total mass.
        posteriors: posterior of each, or proportional weights [C].
        utility: `wer`, minus the number of word errors; `chrf`, sentence chrF; `bleu`, sentence BLEU of
            effective order; both in percent, as in sacrebleu.

    Returns:
        Expected utility of each candidate, itself included [C]; larger is better.

    Raises:
        InputError: a text has too many words.
    """
    first, of_candidate, mass = merge_equal_candidates(texts, posteriors)
    distinct_texts = [texts[index] for index in first]
    if utility == "wer":
        compare, blocks = yield from _wer_utilities(distinct_texts)
    else:
        compare, blocks = yield from _ngram_utilities(distinct_texts, utility)
    expected = np.zeros(len(distinct_texts))
    for candidates, references in blocks:
        yield
        expected[candidates] += compare(candidates, references) @ mass[references]
    return expected[of_candidate]


def _wer_utilities(texts: Sequence[str]) -> Steps[_Comparison]:
    spelled = yield from words_as_characters(map(split_words, texts))
    longest = max(map(len, spelled))
    if longest > MAX_COMPARED_WORDS:
        raise InputError(
            f"a candidate has {longest} words; comparing the words of all pairs of candidates accepts at most "
            f"{MAX_COMPARED_WORDS}",
            param="candidates",
        )

    def utilities(candidates: Int64s, references: Int64s) -> Float64s:
        errors = pairwise_distances([spelled[i] for i in candidates], [spelled[i] for i in references])
        return -errors.astype(np.float64)

    # the kernel compares 64 words of the longer text with one of the other at once
    sizes = np.array([len(text) + 8.0 for text in spelled])
    return utilities, _blocks(sizes, sizes, _WORD_PAIRS_PER_STEP)


def _ngram_utilities(texts: Sequence[str], utility: Literal["chrf", "bleu"]) -> Steps[_Comparison]:
    # imported on demand because it compiles kernels
    from models.reranking.metrics import ngram_overlap

    count = ngram_overlap.count_character_ngrams if utility == "chrf" else ngram_overlap.count_word_ngrams
    counts, chrf = (yield from count(texts)), ngram_overlap.ChrF("chrf")

    def utilities(candidates: Int64s, references: Int64s) -> Float64s:
        if utility == "chrf":
            return chrf.score(ngram_overlap.chrf_statistics(counts, candidates, references))
        each_alone = np.arange(len(references) + 1)
        statistics = ngram_overlap.bleu_statistics(counts, candidates, references, each_alone)
        return ngram_overlap.effective_bleu(statistics)[0]

    sizes = counts.lengths.astype(np.float64) + _CHARS_PER_PAIR
    return utilities, _blocks(sizes, np.ones(len(sizes)), _CHARS_PER_STEP)


class WordPosterior(NamedTuple):
    """Word of a candidate with its confidence.

    Attributes:
        text: text between white space.
        start: its start in the candidate's text, in characters.
        end: its end.
        confidence: posterior mass of candidates with this word here, from 0 to 1.
    """

    text: str
    start: int
    end: int
    confidence: float


def word_confidences(
    texts: Sequence[str], posteriors: npt.ArrayLike, chosen: int
) -> Steps[list[WordPosterior]]:
    """Compute the confidence of each word of a candidate; exactly 1 if all candidates agree.

    Long texts are aligned in bounded steps.

    Args:
        texts: the candidates.
        posteriors: posterior of each, or proportional weights [C].
        chosen: index of the candidate.

    Raises:
        InputError: too many distinct words.
    """
    spans = yield from map_in_steps(texts, lambda text: [*WORD.finditer(text)], size=len)
    strings = yield from words_as_characters([match[0] for match in words] for words in spans)
    first, _, mass = merge_equal_candidates(strings, posteriors)
    confidences = yield from _agreement_masses(strings[chosen], [strings[index] for index in first], mass)
    return [
        WordPosterior(match[0], *match.span(), confidence)
        for match, confidence in zip(spans[chosen], confidences, strict=True)
    ]


def _agreement_masses(pivot: str, compared_texts: Sequence[str], posteriors: Float64s) -> Steps[list[float]]:
    """Compute, for each unit of the pivot, the mass of texts with the same unit aligned."""
    lost: list[int] = []
    masses: list[float] = []
    aligned = 0
    for form, mass in zip(compared_texts, posteriors.tolist(), strict=True):
        aligned += len(pivot) * len(form)
        if aligned > _ALIGNMENT_CELLS_PER_STEP:
            aligned = 0
            yield
        edits = Levenshtein.editops(pivot, form).as_list()
        indices = [int(index) for kind, index, _ in edits if kind != "insert"]
        lost += indices
        masses += [mass] * len(indices)
    disagreed = np.bincount(np.array(lost, np.int64), masses, minlength=len(pivot))
    agreed: list[float] = np.clip(1.0 - disagreed, 0.0, 1.0).tolist()
    return agreed
