"""Error rates and translation metrics as additive counts."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from models.errors import InputError
from models.reranking.candidates import CandidateList
from models.reranking.metrics.metric import NORMALISERS, UNCHANGED, ErrorRate, Metric

METRIC_NAMES = ("wer", "cer", "bleu", "chrf")
_WITH_NORMALISERS = ("wer", "cer")


def make_metric(name: str, *, num_references: int | None = 1, normaliser: str = UNCHANGED) -> Metric:
    """Create a metric by name.

    Args:
        name: one of `METRIC_NAMES`.
        num_references: references per input, only for the signature; None if it varies.
        normaliser: normalisation of texts and references; only for error rates.

    Raises:
        InputError: the metric or normaliser is unknown, or the metric has no normaliser.
    """
    if name not in METRIC_NAMES:
        raise InputError.of("metric", f"is {name!r}; it must be one of {', '.join(METRIC_NAMES)}")
    allowed = tuple(NORMALISERS) if name in _WITH_NORMALISERS else (UNCHANGED,)
    if normaliser not in allowed:
        raise InputError.of(
            "normaliser", f"is {normaliser!r}; for {name} it must be one of {', '.join(allowed)}"
        )
    if name in _WITH_NORMALISERS:
        return ErrorRate(name, num_references, normaliser)
    # imported on demand because it compiles kernels
    from models.reranking.metrics import ngram_overlap

    return (ngram_overlap.Bleu if name == "bleu" else ngram_overlap.ChrF)(name, num_references)


def summarise_lists(lists: Iterable[CandidateList]) -> dict[str, Any]:
    """Count lists, candidates and features by name; with references, word error rates.

    `duplicates` repeat an earlier text of their list, `lists_of_one_text` cannot be re-ranked,
    `features` counts the candidates with each feature. `first_wer` and `oracle_wer`, in percent, are for
    first candidates and those with the fewest errors, over the lists with references.
    """
    names = ("lists", "candidates", "duplicates", "lists_of_one_text", "lists_with_references")
    counts, features, metric = dict.fromkeys(names, 0), Counter[str](), make_metric("wer")
    errors = np.zeros((2, 2), np.int64)
    for one in lists:
        texts = [candidate.text for candidate in one.candidates]
        distinct = len(set(texts))
        counts["lists"] += 1
        counts["candidates"] += len(texts)
        counts["duplicates"] += len(texts) - distinct
        counts["lists_of_one_text"] += distinct == 1
        features.update(name for candidate in one.candidates for name in candidate.features)
        if one.references:
            counts["lists_with_references"] += 1
            of_candidates = metric.statistics(texts, one.references)
            errors += of_candidates[[0, int(of_candidates[:, 0].argmin())]]
    figures: dict[str, Any] = {**counts, "features": dict(sorted(features.items()))}
    if counts["lists_with_references"]:
        figures["first_wer"], figures["oracle_wer"] = metric.score(errors).tolist()
    return figures
