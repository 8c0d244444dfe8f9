"""Discounts fitted on held-out text, for counts that say little about themselves.

Counts of counts estimate discounts well if rare n-grams are many and chosen by nothing but
chance. Pieces of words, closed vocabularies and texts with rare words replaced are not so:
hardly a piece occurs once. There the discounts that make other text most probable are better.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from training.ngram.matching import Matches
from training.ngram.smoothing.discounts import FALLBACK_DISCOUNTS, SINGLE_FALLBACK_DISCOUNT, Discounts
from training.ngram.smoothing.weights import DoubleArray, uniform_distribution

MIN_DISCOUNT = 1e-3
"""Something is always left for words that neither text has."""

_TOLERANCE = 1e-4  # of a discount, from one round to the next
_MAX_ROUNDS = 100
_MAX_NEWTON_STEPS = 50


def fit_discounts(
    matches: Iterable[Matches], *, num_discounts: Literal[1, 3], vocab_size: int
) -> list[Discounts]:
    """The discounts by order under which held-out text is most probable.

    They are searched for one after the other, in turns, from the fallback's values. A token's
    probability is a linear function of any one of them, so the log-likelihood is concave in
    it, and its one maximum in [`MIN_DISCOUNT`, j] is found by Newton's method.

    Source: discounts as parameters to be optimised: Chen and Goodman (1998), section 4.1.

    Args:
        matches: held-out text against the orders 1, 2, ….
        num_discounts: 3 for counts of 1, 2, and 3 or more; 1 for the same for all.
        vocab_size: V.
    """
    orders = [_Evidence(one_order, num_discounts) for one_order in matches]
    start = FALLBACK_DISCOUNTS if num_discounts == 3 else SINGLE_FALLBACK_DISCOUNT
    found = np.array([start[:num_discounts]] * len(orders))
    for _ in range(_MAX_ROUNDS):
        before = found.copy()
        _improve_discounts(orders, found, float(uniform_distribution(vocab_size)[0]))
        if np.abs(found - before).max() < _TOLERANCE:
            break
    rows = [[float(d) for d in row] * (3 // num_discounts) for row in found]
    return [Discounts(*row) for row in rows]


class _Evidence:
    """What one order says of the held-out tokens [T], by discount.

    Attributes:
        frequencies: counts over totals [T].
        pruned: the share of n-grams that are not listed [T]; 1 where the context was never seen.
        freed: what the order below gains by each discount of 1 [T, D].
        lost: what the n-gram itself loses by it [T, D].
    """

    def __init__(self, matches: Matches, num_discounts: int) -> None:
        seen = matches.totals > 0
        weights: DoubleArray = np.divide(1.0, matches.totals, out=np.zeros(len(seen)), where=seen)
        types = matches.types.astype(np.float64)
        if num_discounts == 1:
            types = types.sum(axis=1, keepdims=True)
        counted_as = np.minimum(matches.counts, num_discounts)[:, None]
        which = (counted_as == np.arange(1, num_discounts + 1)).astype(np.float64)
        self.frequencies: DoubleArray = matches.counts * weights
        self.pruned: DoubleArray = np.where(seen, matches.pruned * weights, 1.0)
        self.freed: DoubleArray = types * weights[:, None]
        self.lost: DoubleArray = which * weights[:, None]


def _improve_discounts(orders: list[_Evidence], discounts: DoubleArray, uniform_prob: float) -> None:
    """One round: every discount [orders, D] in turn takes its best value, the others as they are."""
    backoffs = [e.pruned + e.freed @ d for e, d in zip(orders, discounts, strict=True)]
    lower = np.full(len(backoffs[0]), uniform_prob)
    for k, evidence in enumerate(orders):
        # how much this order's probability counts at the highest, and what is added on the way there
        factor, added = np.ones_like(lower), np.zeros_like(lower)
        for j in range(k + 1, len(orders)):
            factor *= backoffs[j]
            added = added * backoffs[j] + orders[j].frequencies - orders[j].lost @ discounts[j]
        for column in range(discounts.shape[1]):
            slopes = factor * (evidence.freed[:, column] * lower - evidence.lost[:, column])
            own = evidence.frequencies - evidence.lost @ discounts[k]
            backoff = evidence.pruned + evidence.freed @ discounts[k]
            probs = added + factor * (own + backoff * lower)
            discounts[k, column] = _best_discount(probs, slopes, discounts[k, column], highest=column + 1.0)
        backoffs[k] = evidence.pruned + evidence.freed @ discounts[k]
        lower = evidence.frequencies - evidence.lost @ discounts[k] + backoffs[k] * lower


def _best_discount(probs: DoubleArray, slopes: DoubleArray, start: float, *, highest: float) -> float:
    """The discount that maximises Σ log p, where p = probs + slopes · (discount − start) [T].

    The derivative falls throughout; its root is kept between two bounds.
    """
    concerned = slopes != 0
    probs, slopes = probs[concerned], slopes[concerned]

    def derivatives(discount: float) -> tuple[float, float]:
        ratios = slopes / (probs + slopes * (discount - start))
        return float(ratios.sum()), -float((ratios * ratios).sum())

    low, high, discount, following = MIN_DISCOUNT, highest, start, start
    if len(slopes) == 0:
        return start
    if derivatives(low)[0] <= 0:
        return low
    if derivatives(high)[0] >= 0:
        return high
    for _ in range(_MAX_NEWTON_STEPS):
        first, second = derivatives(discount)
        low, high = (discount, high) if first > 0 else (low, discount)
        following = discount - first / second
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - discount) < _TOLERANCE / 10:
            break
        discount = following
    return following
