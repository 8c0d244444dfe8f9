"""Absolute discounting, Kneser–Ney and modified Kneser–Ney subtract a discount from every count.

    p(w|h) = (c(hw) − D(c(hw))) / Σ_x c(hx) + γ(h) p(w|h')

They differ in the counts below the highest order, occurrences or distinct preceding
words, and the number of discounts. γ(h) is the mass freed by discounts and pruning.

Discounts come from counts of counts, or are fitted by held-out likelihood.
Counts of counts estimate them well if rare n-grams are numerous and a random
sample. Fitted discounts are better for subword pieces, closed vocabularies
and texts with replaced rare words, where hardly any token occurs once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from models.arrays import Float64s, Int64s
from training.corpus import EncodedCorpus
from training.ngram.counts import Matches, Observations, OrderCounts, match_counts
from training.ngram.smoothing.interpolation import (
    Level,
    Smoothed,
    interpolate,
    require_held_out,
    uniform_distribution,
)

MIN_DISCOUNT = 1e-3
"""Minimum fitted discount, so words in neither text keep a probability."""

_TOLERANCE = 1e-4  # of a discount, from one round to the next
_MAX_ROUNDS = 100
_MAX_NEWTON_STEPS = 50

DiscountSource: TypeAlias = Literal["counts", "held-out"]
"""Source of discounts: counts of counts or held-out likelihood."""


class Discounts(NamedTuple):
    """Discounts of n-gram counts of 1, 2, and 3 or more."""

    one: float
    two: float
    three_plus: float


FALLBACK_DISCOUNTS = Discounts(0.5, 1.0, 1.5)
"""Discounts if counts of counts allow no estimate: tiny texts, closed vocabularies."""

SINGLE_FALLBACK_DISCOUNT = Discounts(0.5, 0.5, 0.5)
"""Fallback discount for smoothings with one discount."""


def discounts_from_counts(
    counts_of_counts: Sequence[int] | Int64s, *, num_discounts: Literal[1, 3]
) -> tuple[Discounts, bool]:
    """Return one or three discounts, estimated or else constant, and True if estimated.

    One discount for all counts is Y = n₁ / (n₁ + 2 n₂); no estimate if n₁ or n₂ is 0. Three are
    D_j = j − (j + 1) Y n_{j+1} / n_j; no estimate if n₁, n₂ or n₃ is 0 or a D_j is outside [0, j].

    Source: Ney, Essen and Kneser (1994), "On structuring probabilistic dependences in
    stochastic language modelling"; for three discounts, Chen and Goodman (1998), section 3.

    Args:
        counts_of_counts: n-grams with the count 0, 1, 2, 3, 4, ….
        num_discounts: number of discounts.
    """
    n = [int(count) for count in counts_of_counts]
    fallback = FALLBACK_DISCOUNTS if num_discounts == 3 else SINGLE_FALLBACK_DISCOUNT
    if 0 in (n[1:4] if num_discounts == 3 else n[1:3]):
        return fallback, False
    y = n[1] / (n[1] + 2 * n[2])
    if num_discounts == 1:
        return Discounts(y, y, y), True
    discounts = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
    is_valid = all(0 <= discount <= j for j, discount in enumerate(discounts, start=1))
    return (Discounts(*discounts), True) if is_valid else (fallback, False)


def fit_discounts(
    matches: Iterable[Matches], num_discounts: Literal[1, 3], vocab_size: int
) -> list[Discounts]:
    """Fit discounts of maximum held-out likelihood by order.

    Coordinate ascent starts from the fallback discounts. A token's
    probability is linear in each discount, so the log-likelihood is concave
    in it, and Newton's method finds its only maximum in [`MIN_DISCOUNT`, j].

    Source: optimisation of discounts: Chen and Goodman (1998), section 4.1.

    Args:
        matches: matches of held-out text by order from 1.
        num_discounts: 3 for counts of 1, 2, and 3 or more; 1 for all counts.
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
    """Statistics of one order at the held-out tokens [T], by discount.

    Attributes:
        frequencies: counts divided by totals [T].
        pruned: share of unlisted n-grams [T]; 1 for unseen contexts.
        freed: the order below's gain per unit of discount [T, D].
        lost: the n-gram's own loss per unit of discount [T, D].
    """

    def __init__(self, matches: Matches, num_discounts: int) -> None:
        seen = matches.totals > 0
        weights: Float64s = np.divide(1.0, matches.totals, out=np.zeros(len(seen)), where=seen)
        types = matches.types.astype(np.float64)
        if num_discounts == 1:
            types = types.sum(axis=1, keepdims=True)
        counted_as = np.minimum(matches.counts, num_discounts)[:, None]
        which = (counted_as == np.arange(1, num_discounts + 1)).astype(np.float64)
        self.frequencies: Float64s = matches.counts * weights
        self.pruned: Float64s = np.where(seen, matches.pruned * weights, 1.0)
        self.freed: Float64s = types * weights[:, None]
        self.lost: Float64s = which * weights[:, None]


def _improve_discounts(orders: list[_Evidence], discounts: Float64s, uniform_prob: float) -> None:
    """Run one round of coordinate ascent over the discounts [orders, D], in place."""
    backoffs = [e.pruned + e.freed @ d for e, d in zip(orders, discounts, strict=True)]
    lower = np.full(len(backoffs[0]), uniform_prob)
    for k, evidence in enumerate(orders):
        # the highest order's probability is added + factor · this order's
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


def _best_discount(probs: Float64s, slopes: Float64s, start: float, *, highest: float) -> float:
    """Find the discount that maximises Σ log p, where p = probs + slopes · (discount − start) [T].

    The derivative decreases monotonically, so its root stays bracketed.
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
        # the slope falls through its root
        low, high = (discount, high) if first > 0 else (low, discount)
        following = discount - first / second
        if not low < following < high:  # Newton left the bracket: bisect
            following = (low + high) / 2
        if abs(following - discount) < _TOLERANCE / 10:
            break
        discount = following
    return following


@dataclass(frozen=True, slots=True)
class Discounting:
    """Absolute discounting, Kneser–Ney or modified Kneser–Ney, interpolated.

    Absolute discounting: Ney, Essen and Kneser (1994), "On structuring probabilistic dependences in
    stochastic language modelling"; Chen and Goodman (1998), section 2.6. Kneser–Ney: Kneser and Ney (1995),
    "Improved backing-off for m-gram language modeling"; Chen and Goodman (1998), section 2.7. Modified:
    Chen and Goodman (1998), section 3; Heafield et al. (2013), "Scalable modified Kneser–Ney language
    model estimation", which this class follows at sentence starts, for pruning and for the uniform
    distribution below the unigrams.

    Args:
        continuations: True if c, below the highest order, is the number of distinct words before an
            n-gram (Kneser–Ney): a word that always follows one other is probable only after it.
        num_discounts: discounts per order: 3, for counts of 1, of 2, and of 3 and more (modified
            Kneser–Ney); or 1, D = n₁ / (n₁ + 2 n₂).
        discounts: source of the discounts. Fitted discounts are better if counts of counts are
            unreliable: subword pieces, closed vocabularies, tiny texts.
    """

    continuations: bool = True
    num_discounts: Literal[1, 3] = 3
    discounts: DiscountSource = "counts"

    def __call__(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:
        """Estimate a model."""
        counted = partial(observations.orders, continuations=self.continuations)
        vocab_size, fitted = observations.vocab_size, list[Discounts]()
        if self.discounts == "held-out":
            text = require_held_out(held_out, key="ngram.discounts", what="discounts")
            matches = match_counts(counted(), text, vocab_size=vocab_size)
            fitted = fit_discounts(matches, self.num_discounts, vocab_size)
        used: list[list[float]] = []
        fallback_orders: list[int] = []

        def level(order: OrderCounts) -> Level:
            if fitted:
                discounts, is_estimated = fitted[len(used)], True
            else:
                discounts, is_estimated = discounts_from_counts(
                    order.counts_of_counts, num_discounts=self.num_discounts
                )
            used.append(list(discounts))
            if not is_estimated:
                fallback_orders.append(len(used))
            return np.array([0.0, *discounts]), np.zeros(len(order.totals))

        facts = {"discounts": used, "fallback_orders": fallback_orders, "discounts_from": self.discounts}
        return interpolate(counted(), level), facts
