"""Absolute discounting, Kneser–Ney and modified Kneser–Ney: a fixed amount is taken from every count.

    p(w|h) = (c(hw) − D(c(hw))) / Σ_x c(hx) + γ(h) p(w|h')

The three differ in what they count below the highest order, occurrences or different words
before, and in how many discounts they have. γ(h) is what the discounts free, and pruning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from training.corpora.encoded import EncodedCorpus
from training.ngram.matching import match_counts
from training.ngram.observations import Observations, OrderCounts
from training.ngram.smoothing.discounts import (
    FALLBACK_DISCOUNTS,
    SINGLE_FALLBACK_DISCOUNT,
    Discounts,
    modified_discounts,
    single_discount,
)
from training.ngram.smoothing.held_out_discounts import fit_discounts
from training.ngram.smoothing.interface import Smoothed, require_held_out
from training.ngram.smoothing.interpolated import InterpolationLevel, interpolate

DiscountSource: TypeAlias = Literal["counts", "held-out"]
"""Where discounts come from: counts of counts, or the likelihood of held-out text."""


@dataclass(frozen=True, slots=True)
class _Discounting:
    """What the three have in common.

    Args:
        discounts: where the discounts come from. Fitted ones are better where counts of counts
            say little: pieces of words, closed vocabularies, very small texts.
    """

    discounts: DiscountSource = "counts"

    _continuations: ClassVar[bool]
    _num_discounts: ClassVar[Literal[1, 3]]

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:
        """Estimate a model.

        Raises:
            InvalidInputError: discounts are to be fitted and there is no held-out text, or it
                is not of the same vocabulary.
        """
        fitted = self._fit(observations, held_out) if self.discounts == "held-out" else None
        used: list[Discounts] = []
        fallback_orders: list[int] = []

        def level(order: OrderCounts) -> InterpolationLevel:
            k = len(used)
            estimated = fitted[k] if fitted else self._from_counts(order)
            if estimated is None:
                fallback_orders.append(k + 1)
            used.append(
                estimated or (FALLBACK_DISCOUNTS if self._num_discounts == 3 else SINGLE_FALLBACK_DISCOUNT)
            )
            return InterpolationLevel(used[-1].table(), np.zeros(len(order.totals)))

        orders = interpolate(self._orders(observations), level)
        facts = {"discounts_from": self.discounts}
        return Smoothed(orders, facts, tuple(used), tuple(fallback_orders))

    def _orders(self, observations: Observations) -> Iterator[OrderCounts]:
        return observations.continuations() if self._continuations else observations.occurrences()

    def _from_counts(self, order: OrderCounts) -> Discounts | None:
        if self._num_discounts == 3:
            return modified_discounts(order.counts_of_counts)
        return single_discount(order.counts_of_counts)

    def _fit(self, observations: Observations, held_out: EncodedCorpus | None) -> list[Discounts]:
        text = require_held_out(held_out, key="ngram.discounts", what="discounts")
        vocab_size = observations.vocab_size
        matches = match_counts(self._orders(observations), text, vocab_size=vocab_size)
        return fit_discounts(matches, num_discounts=self._num_discounts, vocab_size=vocab_size)


@dataclass(frozen=True, slots=True)
class AbsoluteDiscounting(_Discounting):
    """Absolute discounting, interpolated, with one discount by order: D = n₁ / (n₁ + 2 n₂).

    Source: Ney, Essen and Kneser (1994), "On structuring probabilistic dependences in
    stochastic language modelling"; Chen and Goodman (1998), section 2.6.
    """

    _continuations = False
    _num_discounts = 1


@dataclass(frozen=True, slots=True)
class KneserNey(_Discounting):
    """Kneser–Ney, interpolated, with one discount by order: D = n₁ / (n₁ + 2 n₂).

    Below the highest order c is the number of different words before an n-gram: a word that
    only ever follows one other is probable there and nowhere else.

    Source: Kneser and Ney (1995), "Improved backing-off for m-gram language modeling"; Chen and
    Goodman (1998), section 2.7.
    """

    _continuations = True
    _num_discounts = 1


@dataclass(frozen=True, slots=True)
class ModifiedKneserNey(_Discounting):
    """Kneser–Ney with three discounts by order: for counts of 1, of 2, and of 3 and more.

    Source: Chen and Goodman (1998), section 3; Heafield et al. (2013), "Scalable modified
    Kneser–Ney language model estimation", whose choices at sentence starts, for pruning and
    for the uniform distribution below the unigrams are followed.
    """

    _continuations = True
    _num_discounts = 3
