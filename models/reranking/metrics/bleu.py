"""BLEU: the geometric mean of word n-gram precisions with a brevity penalty (Papineni et al. 2002)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.reranking.metrics.interface import Statistics, check_references
from models.reranking.metrics.ngrams import IntArray, NgramCounts, count_ngrams_in_steps, word_units
from models.reranking.metrics.signatures import bleu_signature
from models.reranking.metrics.tokenizer_13a import tokenize_13a
from models.reranking.tuning.steps import Steps, map_in_steps, run_steps

BLEU_ORDER = 4


@dataclass(frozen=True, slots=True)
class Bleu:
    """BLEU with sacrebleu's defaults; statistics are both lengths, then shared and all n-grams by order.

    Attributes:
        num_references: of each input, for the signature only; None where it varies.
    """

    num_references: int | None = 1

    name = "bleu"
    higher_is_better = True

    @property
    def signature(self) -> str:
        """What sacrebleu prints."""
        return bleu_signature(self.num_references)

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Counts of each text [C, 10] against all references at once.

        Raises:
            InvalidInputError: there is no reference.
        """
        check_references(references)
        counts = run_steps(count_word_ngrams([*texts, *references]))
        all_texts = np.arange(len(texts) + len(references))
        one_group = np.array([0, len(references)])
        return bleu_statistics(counts, all_texts[: len(texts)], all_texts[len(texts) :], one_group)[:, 0]

    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        """Percent [...]; 0 where a text is too short to have an n-gram of every order."""
        scores, orders = _effective_bleu(totals)
        return np.where(orders == BLEU_ORDER, scores, 0.0)


def sentence_bleu(totals: Statistics) -> npt.NDArray[np.float64]:
    """BLEU of single sentences, over the orders that the text has n-grams of, as sacrebleu's `sentence_bleu`.

    Args:
        totals: statistics of each sentence [..., 10].

    Returns:
        Percent [...].
    """
    return _effective_bleu(totals)[0]


def _effective_bleu(totals: Statistics) -> tuple[npt.NDArray[np.float64], IntArray]:
    """BLEU over the orders that the texts have n-grams of, and how many those are.

    An order without a shared n-gram counts half, a quarter … of one (smoothing of mteval-v13a.pl; Chen & Cherry
    2014, method 3); without any shared word the score is 0.
    """
    length, reference_length = totals[..., 0], totals[..., 1]
    shared, all_ngrams = totals[..., 2 : 2 + BLEU_ORDER], totals[..., 2 + BLEU_ORDER :]
    present = np.logical_and.accumulate(all_ngrams > 0, axis=-1)
    halvings = np.cumsum(present & (shared == 0), axis=-1)
    precisions = np.where(shared > 0, shared, 0.5**halvings) / np.maximum(all_ngrams, 1)
    orders = present.sum(axis=-1)
    mean_log = np.where(present, np.log(precisions), 0.0).sum(axis=-1) / np.maximum(orders, 1)
    brevity = np.minimum(0.0, 1 - reference_length / np.maximum(length, 1))
    return np.where(shared.any(axis=-1), 100 * np.exp(brevity + mean_log), 0.0), orders


def count_word_ngrams(texts: Sequence[str]) -> Steps[NgramCounts]:
    """Count the word n-grams of texts, as far as BLEU looks at them, with a stop after every bounded piece."""
    tokens = yield from map_in_steps(texts, tokenize_13a, size=len)
    return (yield from count_ngrams_in_steps(*word_units(tokens), BLEU_ORDER))


def bleu_statistics(
    counts: NgramCounts, texts: IntArray, references: IntArray, groups: IntArray
) -> Statistics:
    """Counts of each text against each group of references.

    Args:
        counts: of all of them.
        texts: numbers of texts [C].
        references: numbers of texts, group by group [M].
        groups: where each group begins in `references`, and the end [G + 1].

    Returns:
        [C, G, 10]: the text's length in words, the closest in the group, shared n-grams and all by order.
    """
    shared = counts.matches(texts, references, groups)
    lengths = np.broadcast_to(counts.lengths[texts][:, None], shared.shape[:2])
    closest = _closest_lengths(counts.lengths[texts], counts.lengths[references], groups)
    in_text = np.broadcast_to(counts.totals(texts)[:, None], shared.shape)
    return np.concatenate([lengths[..., None], closest[..., None], shared, in_text], axis=-1)


def _closest_lengths(lengths: IntArray, of_references: IntArray, groups: IntArray) -> IntArray:
    """In each group the reference length closest to each text's, the shorter of two as close [C, G]."""
    bound = 2 * max(of_references.max(initial=0), lengths.max(initial=0)) + 1
    distance = np.abs(lengths[:, None] - of_references)
    # distance and length as one number, so that one minimum finds both
    closest: IntArray = np.minimum.reduceat(distance * bound + of_references, groups[:-1], axis=1) % bound
    return closest
