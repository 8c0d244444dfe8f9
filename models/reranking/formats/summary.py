"""Summary of n-best lists: counts, and error rates where there are references."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from models.reranking.candidates import CandidateList
from models.reranking.metrics import make_metric


@dataclass(slots=True)
class ListSummary:
    """Counts over lists, and error rates where there are references.

    Attributes:
        num_lists: all of them.
        num_candidates: of all lists.
        num_duplicates: candidates with the text of one before them in their list.
        num_single: lists with one text, which nothing can re-rank.
        num_with_references: lists with at least one reference.
        features: candidates that have each feature.
        first_errors, oracle_errors: word errors and reference words, summed over lists with references, of the first
            candidates and of those with the fewest errors [2].
    """

    num_lists: int = 0
    num_candidates: int = 0
    num_duplicates: int = 0
    num_single: int = 0
    num_with_references: int = 0
    features: Counter[str] = field(default_factory=Counter)
    first_errors: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    oracle_errors: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))

    def figures(self) -> dict[str, Any]:
        """The counts by name; `first_wer` and `oracle_wer`, per cent, where there are references."""
        figures: dict[str, Any] = {
            "lists": self.num_lists,
            "candidates": self.num_candidates,
            "duplicates": self.num_duplicates,
            "lists_of_one_text": self.num_single,
            "lists_with_references": self.num_with_references,
            "features": dict(sorted(self.features.items())),
        }
        if self.num_with_references:
            rates = make_metric("wer").score(np.stack([self.first_errors, self.oracle_errors]))
            figures["first_wer"], figures["oracle_wer"] = rates.tolist()
        return figures


def summarise_lists(lists: Iterable[CandidateList]) -> ListSummary:
    """The figures of lists."""
    summary, metric = ListSummary(), make_metric("wer")
    for one in lists:
        texts = [candidate.text for candidate in one.candidates]
        distinct = len(set(texts))
        summary.num_lists += 1
        summary.num_candidates += len(texts)
        summary.num_duplicates += len(texts) - distinct
        summary.num_single += distinct == 1
        summary.features.update(name for candidate in one.candidates for name in candidate.features)
        if one.references:
            summary.num_with_references += 1
            errors = metric.statistics(texts, one.references)
            summary.first_errors += errors[0]
            summary.oracle_errors += errors[errors[:, 0].argmin()]
    return summary
