"""Maximum likelihood, additive (Laplace, add-k) and Witten–Bell estimates."""

from dataclasses import dataclass

import numpy as np

from models.errors import InvalidInputError
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, OrderCounts
from training.ngram.smoothing.interface import Smoothed
from training.ngram.smoothing.interpolation import Level, interpolate


@dataclass(frozen=True, slots=True)
class Additive:
    """Add k to every count: p(w|h) = (c(hw) + k) / (c(h) + k V').

    V' is the number of words but `<s>`. After a context that was never seen every word has
    1 / V'; shorter contexts are not used. So only contexts of full length and those that begin
    with `<s>` have estimates. All shorter ones exist for the automaton's states: they give
    1 / V' and have a back-off weight of 1. The mass of pruned n-grams is shared equally by
    all words.

    As an interpolation that is a share of k V' / (c(h) + k V') for the uniform distribution.

    Source: Lidstone (1920); Chen and Goodman (1998), section 2.1. With k = 1, Laplace's law of succession.

    Args:
        k: added constant, above 0.

    Raises:
        InvalidInputError: k is not a number above 0.
    """

    k: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.k < np.inf:
            raise InvalidInputError(f"ngram.k is {self.k}, it must be above 0", parameter="ngram.k")

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model; held-out text is not used."""
        added = self.k * (observations.vocab_size - 1)
        k = 0
        begins = np.zeros(1, dtype=np.bool_)  # which contexts begin with <s>; the empty one does not

        def level(order: OrderCounts) -> Level:
            nonlocal k, begins
            k += 1
            estimated = np.ones_like(begins) if k == observations.order else begins
            words, prefixes, _ = order.ngrams
            begins = words == BOS if k == 1 else begins[prefixes]
            with np.errstate(over="ignore"):  # k may be tiny or too large for a float
                shares = 1.0 / (1.0 + order.totals / added)
            return np.zeros(4), np.where(estimated, shares, 1.0)

        orders = interpolate(observations.occurrences(), level)
        return Smoothed(orders, {"k": self.k})


class MaximumLikelihood:
    """Relative frequencies: p(w|h) = c(hw) / c(h).

    Words that never followed a context have probability 0 there. For an unseen context, the next
    shorter one is used. Pruned n-grams are estimated by the shorter context, with their total
    weight.

    Source: Jelinek (1997), "Statistical methods for speech recognition", section 4.2.
    """

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model; held-out text is not used."""
        orders = interpolate(
            observations.occurrences(),
            lambda order: (np.zeros(4), np.zeros(len(order.totals))),
        )
        return Smoothed(orders, {})


class WittenBell:
    """Interpolation by the diversity of a context: p(w|h) = (c(hw) + T(h) p(w|h')) / (c(h) + T(h)).

    T(h) is the number of distinct words seen after h, which is how often the next word was new.

    Source: Witten and Bell (1991), "The zero-frequency problem", method C; Chen and Goodman (1998), section 2.5.
    """

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model; held-out text is not used."""
        return Smoothed(interpolate(observations.occurrences(), _level), {})


def _level(order: OrderCounts) -> Level:
    types = order.types.astype(np.float64)
    shares = np.divide(types, order.totals + types, out=np.ones_like(types), where=types > 0)
    return np.zeros(4), shares
