"""Jelinek–Mercer smoothing: relative frequencies of all orders, interpolated.

The interpolation weights are fitted on held-out text by expectation maximisation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, OrderCounts
from training.ngram.held_out import Matches, match_counts
from training.ngram.smoothing.interface import Smoothed, require_held_out
from training.ngram.smoothing.interpolation import (
    DoubleArray,
    Level,
    interpolate,
    uniform_distribution,
)

LongArray: TypeAlias = npt.NDArray[np.int64]

MAX_BUCKETS = 31
"""Number of powers of two below the largest int32 count."""

_MAX_LAMBDA = 1.0 - 1e-6
_TOLERANCE = 1e-5
_MAX_STEPS = 500


@dataclass(frozen=True, slots=True)
class JelinekMercer:
    """Linear interpolation: p(w|h) = λ(h) c(hw) / c(h) + (1 − λ(h)) p(w|h').

    λ is the same for all contexts of a length, or for those whose counts c(h) are in the same
    bucket: 1, 2 to 3, 4 to 7, …; the last bucket is open. λ stays just below 1, so that words
    missing in the held-out text keep a probability.

    Source: Jelinek and Mercer (1980), "Interpolated estimation of Markov source parameters from
    sparse data"; buckets by count: Bahl, Jelinek and Mercer (1983); Chen and Goodman (1998), section 2.3.

    Args:
        buckets: their number, 1 to `MAX_BUCKETS`.

    Raises:
        InvalidInputError: the number of buckets is out of range.
    """

    buckets: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise InvalidInputError(
                f"ngram.buckets is {self.buckets}, it can be 1 to {MAX_BUCKETS}", parameter="ngram.buckets"
            )

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:
        """Estimate a model.

        Raises:
            InvalidInputError: there is no held-out text, or it is not of the same vocabulary.
        """
        text = require_held_out(held_out, key="ngram.smoothing", what="the weights of jelinek-mercer")
        vocab_size = observations.vocab_size
        matches = list(match_counts(observations.occurrences(), text, vocab_size=vocab_size))
        lambdas = fit_lambdas(matches, buckets=self.buckets, vocab_size=vocab_size)
        of_order = iter(lambdas)

        def level(order: OrderCounts) -> Level:
            return np.zeros(4), 1.0 - next(of_order)[_bucket_of(order.totals, self.buckets)]

        orders = interpolate(observations.occurrences(), level)
        found = [row.tolist() if self.buckets > 1 else float(row[0]) for row in lambdas]
        return Smoothed(orders, {"lambdas": found})


def fit_lambdas(matches: Sequence[Matches], *, buckets: int, vocab_size: int) -> DoubleArray:
    """Fit the weights [orders, buckets] that maximise the held-out likelihood, by EM from ½.

    Each token at an order is generated there or by the order below. λ becomes the expected
    share generated there, among all tokens in its bucket; every step makes the text more
    probable. A bucket without held-out tokens takes the weight of the bucket before.

    Source: Dempster, Laird and Rubin (1977); Chen and Goodman (1998), section 4.1.

    Args:
        matches: of held-out text with the orders 1, 2, ….
        buckets: number for each order.
        vocab_size: V.
    """
    orders = [_Evidence(one_order, buckets) for one_order in matches]
    lambdas = np.full((len(orders), buckets), 0.5)
    for _ in range(_MAX_STEPS):
        before = lambdas
        lambdas = _em_step(orders, before, float(uniform_distribution(vocab_size)[0]))
        if np.abs(lambdas - before).max() < _TOLERANCE:
            break
    for evidence, row in zip(orders, lambdas, strict=True):
        for bucket in np.flatnonzero(~evidence.reached[1:]) + 1:
            row[bucket] = row[bucket - 1]
    return lambdas


class _Evidence:
    """Relative frequencies of one order at the tokens whose contexts it has seen."""

    def __init__(self, matches: Matches, buckets: int) -> None:
        self.tokens = np.flatnonzero(matches.totals)
        totals = matches.totals[self.tokens]
        self.buckets = _bucket_of(totals, buckets)
        self.reached = np.bincount(self.buckets, minlength=buckets) > 0
        self.frequencies: DoubleArray = matches.counts[self.tokens] / totals
        self.pruned: DoubleArray = matches.pruned[self.tokens] / totals


def _em_step(orders: Sequence[_Evidence], lambdas: DoubleArray, uniform_prob: float) -> DoubleArray:
    """Run one step of EM; return the new weights [orders, buckets]."""
    num_tokens = len(orders[0].tokens)  # every token has seen unigrams
    probs = np.full(num_tokens, uniform_prob)
    below = []  # by order, the probabilities of the order below
    for order, row in zip(orders, lambdas, strict=True):
        lower = probs[order.tokens]
        own = order.frequencies + order.pruned * lower
        below.append(lower)
        probs[order.tokens] = lower + row[order.buckets] * (own - lower)
    reaching = np.ones(num_tokens)
    updated = np.empty_like(lambdas)
    for k in reversed(range(len(orders))):
        order, lower = orders[k], below[k]
        weights, here = lambdas[k][order.buckets], reaching[order.tokens]
        own = order.frequencies + order.pruned * lower
        total = lower + weights * (own - lower)
        stopped = np.bincount(order.buckets, here * weights * own / total, minlength=lambdas.shape[1])
        reached = np.bincount(order.buckets, here, minlength=lambdas.shape[1])
        # the share that stops, by bucket; unchanged for buckets without tokens
        shares = np.divide(stopped, reached, out=lambdas[k].copy(), where=reached > 0)
        updated[k] = np.minimum(shares, _MAX_LAMBDA)
        reaching[order.tokens] = here * (1.0 - weights * order.frequencies / total)
    return updated


def _bucket_of(totals: npt.NDArray[np.int32], buckets: int) -> LongArray:
    """Return the bucket of each context by its count; arbitrary for unseen contexts."""
    exponents = np.frexp(np.maximum(totals, 1))[1].astype(np.int64) - 1
    return np.minimum(exponents, buckets - 1)
