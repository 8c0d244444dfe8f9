"""Count pruning: n-grams that occur too rarely are counted, but not listed.

What a dropped n-gram weighed is not lost: the totals of its context keep it, so it falls to the
context's back-off weight. The thresholds are on occurrences in the text, whatever is smoothed,
and never fall from one order to the next; so whoever is listed has its prefix and its suffix
listed, for they occur at least as often.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.ngram.build import NGrams

BoolArray: TypeAlias = npt.NDArray[np.bool_]


def thresholds_by_order(prune: Sequence[int], *, order: int) -> tuple[int, ...]:
    """One threshold for each order up to `order`: n-grams that occur at most so often are dropped.

    Args:
        prune: thresholds of the orders 1, 2, …; the last holds for all higher orders, none means 0.
        order: the length of the longest n-grams.

    Raises:
        InvalidInputError: they are negative, fall, are too many, or would drop words.
    """
    problem = threshold_problem(prune, order=order)
    if problem is not None:
        raise InvalidInputError(f"ngram.prune {problem}", parameter="ngram.prune")
    given = tuple(prune) or (0,)
    return given + given[-1:] * (order - len(given))


def threshold_problem(prune: Sequence[int], *, order: int) -> str | None:
    """What is wrong with the thresholds, or None."""
    shown = list(prune)
    if len(shown) > order:
        return f"is {shown}, thresholds of {len(shown)} orders, but ngram.order is {order}"
    if shown and shown[0] != 0:
        return f"is {shown}, the first threshold must be 0: words are dropped by tokenizer.min_count"
    if shown != sorted(shown):
        return f"is {shown}, a threshold must not be below the one before"
    return None


def listed_mask(counts: npt.NDArray[np.int32], threshold: int, *, order: int) -> BoolArray | None:
    """Which n-grams of an order stay [n]; None for all, as with unigrams, which are the vocabulary."""
    return None if order == 1 or threshold == 0 else counts > threshold


def keep_listed(
    ngrams: NGrams, *, kept: BoolArray | None, numbers: npt.NDArray[np.int32] | None
) -> tuple[NGrams, npt.NDArray[np.int32] | None]:
    """Drop n-grams and number the rest anew.

    Args:
        ngrams: all n-grams of one order.
        kept: which of them stay [n]; None for all.
        numbers: the new numbers of the order below by the old ones; None where they have not changed.

    Returns:
        The n-grams that stay, and their own new numbers by the old ones; None where nothing has changed.
    """
    words, prefixes, suffixes = ngrams
    if kept is not None:
        words, prefixes, suffixes = words[kept], prefixes[kept], suffixes[kept]
    if numbers is not None:
        prefixes, suffixes = numbers[prefixes], numbers[suffixes]
    renumbered = None if kept is None else np.cumsum(kept, dtype=np.int32) - np.int32(1)
    return NGrams(words, prefixes, suffixes), renumbered
