"""Interpolated modified Kneser–Ney smoothing.

Source: Chen and Goodman (1998), "An empirical study of smoothing techniques for language
modeling", equations 2.23 to 2.26 and section 5.2; Heafield et al. (2013), "Scalable modified
Kneser–Ney language model estimation", whose choices at sentence starts and for the uniform
distribution below the unigrams are followed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.ngram.build import NGrams, Weights
from models.vocabulary import BOS
from training.ngram.counting import CountedNGrams


class Discounts(NamedTuple):
    """What is taken from an n-gram's count if that is 1, 2, or 3 and more."""

    one: float
    two: float
    three_plus: float


FALLBACK = Discounts(0.5, 1.0, 1.5)
"""For an order whose counts of counts allow no estimate, as in tiny texts or closed vocabularies."""


class KneserNey(NamedTuple):
    """The weights of a model and how they came about.

    Attributes:
        weights: probabilities and back-offs, by order from 1.
        discounts: by order from 1.
        fallback_orders: the orders whose discounts could not be estimated.
    """

    weights: tuple[Weights, ...]
    discounts: tuple[Discounts, ...]
    fallback_orders: tuple[int, ...]


def modified_kneser_ney(counted: Sequence[CountedNGrams]) -> KneserNey:
    """Estimate a model: p(w|h) = (a(hw) − D(a(hw))) / Σ_x a(hx) + γ(h) p(w|h').

    h' is h without its first word; below the unigrams stands the uniform distribution over
    all words but `<s>`. γ(h), the mass that discounting frees, is also the back-off weight of h.

    Args:
        counted: n-grams of the orders 1, 2, ….
    """
    discounts: list[Discounts] = []
    fallback_orders: list[int] = []
    log10_probs: list[npt.NDArray[np.float32]] = []
    log10_backoffs: list[npt.NDArray[np.float32]] = []
    num_words = len(counted[0].counts) - 1  # <s> is never predicted
    lower: npt.NDArray[np.float64] = np.full(1, 1.0 / num_words)
    for order, (ngrams, adjusted) in enumerate(_adjusted_counts(counted), start=1):
        estimated = estimate_discounts(adjusted)
        if estimated is None:
            fallback_orders.append(order)
        discounts.append(estimated or FALLBACK)
        lower, backoffs = _interpolate(ngrams, adjusted, discounts[-1], lower)
        if order == 1:
            lower[BOS] = 0.0
        log10_probs.append(_log10(lower))
        log10_backoffs.append(_log10(backoffs))
    # The back-offs found with order k belong to the contexts of order k − 1; the empty
    # context's is never charged, and the longest n-grams are no contexts.
    nothing = np.zeros(0, dtype=np.float32)
    weights = map(Weights, log10_probs, [*log10_backoffs[1:], nothing])
    return KneserNey(tuple(weights), tuple(discounts), tuple(fallback_orders))


def estimate_discounts(adjusted: npt.NDArray[np.int32]) -> Discounts | None:
    """Discounts from how many n-grams have the counts 1 to 4; None where there is no estimate.

    Y = n₁ / (n₁ + 2 n₂); D_j = j − (j + 1) Y n_{j+1} / n_j. There is none if n₁, n₂ or n₃ is 0
    or a D_j is outside [0, j].

    Args:
        adjusted: the counts of one order [n].
    """
    n = [int(np.count_nonzero(adjusted == j)) for j in range(5)]
    if 0 in n[1:4]:
        return None
    y = n[1] / (n[1] + 2 * n[2])
    discounts = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
    if any(not 0 <= discount <= j for j, discount in enumerate(discounts, start=1)):
        return None
    return Discounts(*discounts)


def _adjusted_counts(
    counted: Sequence[CountedNGrams],
) -> Iterator[tuple[NGrams, npt.NDArray[np.int32]]]:
    """The counts to smooth: below the highest order, how many different words precede an n-gram.

    Nothing precedes one that starts with `<s>`: it keeps its count of occurrences.
    """
    for order, (ngrams, counts) in enumerate(counted, start=1):
        adjusted = counts.copy()
        if order < len(counted):
            longer = counted[order].ngrams
            preceding = np.bincount(longer.suffixes, minlength=len(counts)).astype(np.int32)
            adjusted = np.where(preceding > 0, preceding, counts)
        if order == 1:
            adjusted[BOS] = 0
        yield ngrams, adjusted


def _interpolate(
    ngrams: NGrams,
    adjusted: npt.NDArray[np.int32],
    discounts: Discounts,
    lower: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Probabilities of one order [n], and the back-off weights of its contexts, 1 where there is no n-gram."""
    discount = np.array([0.0, *discounts])[np.minimum(adjusted, 3)]
    total = np.bincount(ngrams.prefixes, weights=adjusted, minlength=len(lower))
    freed = np.bincount(ngrams.prefixes, weights=discount, minlength=len(lower))
    backoffs = np.divide(freed, total, out=np.ones(len(lower)), where=total > 0)
    probs = (adjusted - discount) / total[ngrams.prefixes]
    probs += backoffs[ngrams.prefixes] * lower[ngrams.suffixes]
    return probs, backoffs


def _log10(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(divide="ignore"):  # the logarithm of 0 is minus infinity
        return np.log10(values).astype(np.float32)
