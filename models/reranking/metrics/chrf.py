"""chrF: the F-score of character n-grams, white space aside (Popović 2015), as sacrebleu counts it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.reranking.metrics.interface import Statistics, check_references
from models.reranking.metrics.ngrams import IntArray, NgramCounts, character_units, count_ngrams_in_steps
from models.reranking.metrics.signatures import chrf_signature
from models.reranking.tuning.steps import Steps, map_in_steps, run_steps

CHRF_ORDER = 6
CHRF_BETA = 2
"""How many times recall weighs as much as precision."""


@dataclass(frozen=True, slots=True)
class ChrF:
    """chrF2 with sacrebleu's defaults; statistics are n-grams of text, of reference, and shared, by order.

    Attributes:
        num_references: of each input, for the signature only; None where it varies.
    """

    num_references: int | None = 1

    name = "chrf"
    higher_is_better = True

    @property
    def signature(self) -> str:
        """What sacrebleu prints."""
        return chrf_signature(self.num_references)

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Counts of each text [C, 18], against the reference with the best chrF; the first of equals.

        Raises:
            InvalidInputError: there is no reference.
        """
        check_references(references)
        counts = run_steps(count_character_ngrams([*texts, *references]))
        all_texts = np.arange(len(texts) + len(references))
        pairs = chrf_statistics(counts, all_texts[: len(texts)], all_texts[len(texts) :])
        best: Statistics = pairs[np.arange(len(texts)), self.score(pairs).argmax(axis=1)]
        return best

    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        """Percent [...]: F of the means of precision and recall over orders that both sides have."""
        shape = totals.shape[:-1]
        precision, recall, orders = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for n in range(
            CHRF_ORDER
        ):  # one after the other as sacrebleu does: equal to the last bit, so ties are its ties
            in_text, in_reference, shared = np.moveaxis(totals[..., 3 * n : 3 * n + 3], -1, 0)
            both = (in_text > 0) & (in_reference > 0)
            precision += np.where(both, shared / np.maximum(in_text, 1), 0.0)
            recall += np.where(both, shared / np.maximum(in_reference, 1), 0.0)
            orders += both
        precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
        weighed = CHRF_BETA**2 * precision + recall
        return 100 * ((1 + CHRF_BETA**2) * precision * recall / np.where(weighed > 0, weighed, 1.0))


def count_character_ngrams(texts: Sequence[str]) -> Steps[NgramCounts]:
    """Count the character n-grams of texts, as far as chrF looks at them, with a stop after every bounded piece."""
    spelled = yield from map_in_steps(texts, lambda text: "".join(text.split()), size=len)
    return (yield from count_ngrams_in_steps(*character_units(spelled), CHRF_ORDER))


def chrf_statistics(counts: NgramCounts, texts: IntArray, references: IntArray) -> Statistics:
    """Counts of each text against each reference.

    Args:
        counts: of all of them.
        texts: numbers of texts [C].
        references: numbers of texts [R].

    Returns:
        [C, R, 18]: for each order n-grams of the text, of the reference, and shared ones.
    """
    shared = counts.matches(texts, references, np.arange(len(references) + 1))
    in_reference = np.broadcast_to(counts.totals(references), shared.shape)
    # n-grams are not held against a text where the reference is too short to have any
    in_text = np.where(in_reference > 0, counts.totals(texts)[:, None], 0)
    return np.stack([in_text, in_reference, shared], axis=-1).reshape(*shared.shape[:2], 3 * CHRF_ORDER)
