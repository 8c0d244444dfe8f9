"""How long the n-grams are that a model finds in a text: its hit rates by order."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.scoring import perplexity


class HitRate(NamedTuple):
    """The tokens of a text for which the longest n-gram found has one length.

    Attributes:
        order: that length; 1 for a unigram.
        tokens: how many there are.
        share: of all tokens.
        logprob: their mean natural-log probability; None without any, or where one is impossible.
        perplexity: of them alone; None likewise.
    """

    order: int
    tokens: int
    share: float
    logprob: float | None
    perplexity: float | None


def hit_rates(
    log_probs: npt.NDArray[np.floating[Any]], matched: npt.NDArray[np.integer[Any]], *, order: int
) -> list[HitRate]:
    """Hit rates by order from 1.

    Args:
        log_probs: natural-log probabilities of a text's tokens [N].
        matched: the length of the longest n-gram found for each [N].
        order: of the model.
    """
    tokens = np.bincount(matched, minlength=order + 1)
    totals = np.bincount(matched, log_probs, minlength=order + 1)
    return [
        HitRate(
            order=k,
            tokens=count,
            share=count / max(len(matched), 1),
            logprob=total / count if count and np.isfinite(total) else None,
            perplexity=perplexity(total, count),
        )
        for k, (count, total) in enumerate(zip(tokens.tolist(), totals.tolist(), strict=True))
        if k > 0
    ]
