"""Minimum Bayes risk: the candidate that agrees best with what all of them say.

The utility of a candidate is expected over the posteriors of the list itself: each candidate in turn is
taken to be the reference (Kumar & Byrne 2004; on n-best lists Goel & Byrne 2000, SRILM's `nbest-lattice -wer`).
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.reranking.metrics.edit_distance import distances, words_as_characters
from models.reranking.posteriors import merged
from models.reranking.tuning.steps import Steps, finish

Utility: TypeAlias = Literal["wer", "chrf", "bleu"]
UTILITIES: tuple[Utility, ...] = get_args(Utility)

_IntArray: TypeAlias = npt.NDArray[np.int64]
_Scores: TypeAlias = npt.NDArray[np.float64]
_AgainstSome: TypeAlias = Callable[[_IntArray], Steps[_Scores]]
"""From the numbers of R texts, to be references, to the utility of each of all U texts [U, R], in steps."""

_CHARACTERS_PER_STEP = {"wer": 4_000_000, "chrf": 200_000, "bleu": 400_000}
"""Compared in a step, which then takes a millisecond or so."""
_CHARACTERS_PER_PAIR = 64  # what a pair costs however short it is
_WORDS_PER_STEP = 4_000_000
"""Of texts times those of their references: what aligning long texts takes grows so."""


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
    return finish(utilities_in_steps(texts, posteriors, utility))


def utilities_in_steps(texts: Sequence[str], posteriors: npt.ArrayLike, utility: str) -> Steps[_Scores]:
    """What `expected_utilities` does, with a stop after every bounded piece: the work grows with C²."""
    if utility not in _PREPARED:
        raise InvalidInputError(
            f"utility is {utility!r}; it must be one of {', '.join(UTILITIES)}", parameter="utility"
        )
    distinct = merged(texts, posteriors)
    distinct_texts = [texts[place] for place in distinct.first]
    against_some = _PREPARED[utility](distinct_texts)
    expected = np.zeros(len(distinct_texts))
    of_one_reference = sum(len(text) + _CHARACTERS_PER_PAIR for text in distinct_texts)
    at_once = max(1, _CHARACTERS_PER_STEP[utility] // of_one_reference)
    for begin in range(0, len(distinct_texts), at_once):
        yield
        references = np.arange(begin, min(begin + at_once, len(distinct_texts)))
        utilities = yield from against_some(references)
        expected += utilities @ distinct.posteriors[references]
    return expected[distinct.of_candidate]


def _word_errors(texts: Sequence[str]) -> _AgainstSome:
    spelled = words_as_characters([text.split() for text in texts])
    ends = np.cumsum([len(text) for text in spelled])  # of each text, where all are one after the other

    def against_some(references: _IntArray) -> Steps[_Scores]:
        chosen = [spelled[place] for place in references]
        at_once = _WORDS_PER_STEP // max(1, sum(map(len, chosen)))
        errors, begin, done = np.empty((len(spelled), len(chosen))), 0, 0
        while begin < len(spelled):
            if begin:
                yield
            end = max(begin + 1, int(np.searchsorted(ends, done + at_once, side="right")))
            errors[begin:end] = distances(spelled[begin:end], chosen)
            begin, done = end, int(ends[end - 1])
        return -errors

    return against_some


def _chrf(texts: Sequence[str]) -> _AgainstSome:
    from models.reranking.metrics import chrf  # compiles kernels: only where it is asked for

    counts, everyone, metric = chrf.count_characters(texts), np.arange(len(texts)), chrf.ChrF()

    def against_some(references: _IntArray) -> Steps[_Scores]:
        yield from ()  # what it takes grows with the texts' lengths alone
        return metric.score(chrf.pair_statistics(counts, everyone, references))

    return against_some


def _bleu(texts: Sequence[str]) -> _AgainstSome:
    from models.reranking.metrics import bleu

    counts, everyone = bleu.count_tokens(texts), np.arange(len(texts))

    def against_some(references: _IntArray) -> Steps[_Scores]:
        yield from ()  # likewise
        each_alone = np.arange(len(references) + 1)
        return bleu.sentence_score(bleu.group_statistics(counts, everyone, references, each_alone))

    return against_some


_PREPARED: dict[str, Callable[[Sequence[str]], _AgainstSome]] = {
    "wer": _word_errors,
    "chrf": _chrf,
    "bleu": _bleu,
}
