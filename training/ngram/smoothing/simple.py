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

    V' is the number of words except `<s>`. After an unseen context, every word has the probability
    1 / V'; shorter contexts are not used. So only contexts of full length and contexts that begin with
    `<s>` have estimates. Other contexts exist only as states of the automaton, with the probabilities
    1 / V' and a back-off weight of 1. All words share the mass of pruned n-grams equally.

    As an interpolation, the uniform distribution has the share k V' / (c(h) + k V').

    Source: Lidstone (1920); Chen and Goodman (1998), section 2.1. With k = 1, Laplace's law of succession.

    Args:
        k: added constant, above 0.

    Raises:
        InvalidInputError: k is not a number above 0.
    """

    k: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.k < np.inf:
            raise InvalidInputError(f"ngram.k is {self.k}; it must be above 0", parameter="ngram.k")

    def __call__(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model."""
        added = self.k * (observations.vocab_size - 1)
        k = 0
        begins = np.zeros(1, dtype=np.bool_)  # mask of contexts that begin with <s>; the empty one does not

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


def maximum_likelihood(observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG001 - a smoothing's signature
    """Estimate relative frequencies: p(w|h) = c(hw) / c(h).

    Words that never followed a context have the probability 0 after it. An unseen context is replaced
    by the next shorter context. Pruned n-grams are estimated by the shorter context, with their total
    weight.

    Source: Jelinek (1997), "Statistical methods for speech recognition", section 4.2.
    """
    orders = interpolate(observations.occurrences(), lambda order: (np.zeros(4), np.zeros(len(order.totals))))
    return Smoothed(orders, {})


def witten_bell(observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG001 - likewise
    """Interpolate by the diversity of a context: p(w|h) = (c(hw) + T(h) p(w|h')) / (c(h) + T(h)).

    T(h) is the number of distinct words after h, which equals the number of times a new word occurred.

    Source: Witten and Bell (1991), "The zero-frequency problem", method C; Chen and Goodman (1998), section 2.5.
    """

    def level(order: OrderCounts) -> Level:
        types = order.types.astype(np.float64)
        shares = np.divide(types, order.totals + types, out=np.ones_like(types), where=types > 0)
        return np.zeros(4), shares

    return Smoothed(interpolate(observations.occurrences(), level), {})
