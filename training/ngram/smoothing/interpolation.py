"""Interface of smoothings; arithmetic of the interpolated ones, and those without fitted parameters.

    p(w|h) = (1 − μ(h)) (c(hw) − D(c(hw))) / c(h) + γ(h) p(w|h')

h' is h without its first word; the order below the unigrams is the uniform distribution over all
words except `<s>`. c(h) is the sum of the counts after h, μ(h) the fixed share of the order below,
and D the discount of a count. γ(h) is the total mass of the order below: μ(h), the discounts, and
the counts of pruned n-grams. It is also the back-off weight of h, so words unlisted after h have
exactly the probability γ(h) p(w|h'). γ is 1 for contexts without a following word.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from models.arrays import Float32s, Float64s
from models.errors import InputError
from models.kernels.compilation import kernel
from models.kernels.threads import run_slices
from models.ngram.build import NGrams, NGramWeights
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, OrderCounts

Smoothed: TypeAlias = tuple[Sequence[tuple[NGrams, NGramWeights]], Mapping[str, Any]]
"""N-grams and weights by order from 1, for `build_automaton`, and fitted values; see `NGramEstimate`."""

Smoothing: TypeAlias = Callable[[Observations, EncodedCorpus | None], Smoothed]
"""Smoothing method: estimates a normalised model from a counted text.

Parameters may be fitted on the second, held-out text, which has the same vocabulary.
`InputError` is raised if it is required but missing, or has another vocabulary.
"""

Level: TypeAlias = tuple[Float64s, Float64s]
"""Interpolation with the order below: D of counts 0, 1, 2, and 3 or more [4], and μ by context [m].

μ is 1 for contexts whose own counts are ignored.
"""


def require_held_out(held_out: EncodedCorpus | None, *, key: str, what: str) -> EncodedCorpus:
    """Return a smoothing's required held-out text.

    Raises:
        InputError: no held-out text; the message names the recipe's key.
    """
    if held_out is None or held_out.num_sentences == 0:
        problem = f"{key}: {what} are fitted on held-out text, but there is none; give --valid"
        raise InputError(problem, param=key)
    return held_out


def uniform_distribution(vocab_size: int) -> Float64s:
    """Return the distribution below the unigrams [1]: one probability for all words but `<s>`."""
    return np.full(1, 1.0 / (vocab_size - 1))


def log10(values: Float64s) -> Float32s:
    """Compute decimal logarithms in float32; 0 gives minus infinity."""
    logs = np.empty(len(values), np.float32)
    with np.errstate(divide="ignore"):
        np.log10(values, out=logs)  # in float64, rounded by block
    return logs


def interpolate(
    orders: Iterable[OrderCounts], level: Callable[[OrderCounts], Level]
) -> list[tuple[NGrams, NGramWeights]]:
    """Estimate a back-off model from counts.

    Args:
        orders: counts by order from 1.
        level: returns the interpolation of an order with the order below.
    """

    def estimate() -> Iterator[tuple[NGrams, Float64s, Float64s]]:
        lower = None
        for order in orders:
            is_first = lower is None
            lower = uniform_distribution(len(order.counts)) if lower is None else lower
            lower, backoffs = _interpolated(order, level(order), lower)
            if is_first:
                lower[BOS] = 0.0
            yield order.ngrams, lower, backoffs

    return attach_backoffs(estimate())


def _interpolated(order: OrderCounts, level: Level, lower: Float64s) -> tuple[Float64s, Float64s]:
    """Compute an order's probabilities [n] and its contexts' back-off weights [m], on all cores."""
    prefixes, size = order.ngrams.prefixes, len(order.counts)
    probs, backoffs = np.empty(size), np.ones(len(order.totals))
    middles = np.linspace(0, size, (os.cpu_count() or 1) + 1).astype(np.int64)[1:-1]
    between_contexts = np.searchsorted(prefixes, prefixes[middles] if size else []).tolist()

    def work(share: slice) -> None:
        ngrams = NGrams(*(column[share] for column in order.ngrams))
        part = order._replace(ngrams=ngrams, counts=order.counts[share])
        _interpolate(part, level, lower, probs[share], backoffs)

    run_slices(work, [0, *between_contexts, size])
    return probs, backoffs


def attach_backoffs(
    estimated: Iterable[tuple[NGrams, Float64s, Float64s]],
) -> list[tuple[NGrams, NGramWeights]]:
    """Attach back-off weights to n-grams: those estimated with order k belong to order k − 1.

    The empty context's weight is never used; the longest n-grams are not contexts.

    Args:
        estimated: n-grams, probabilities [n] and back-off weights of contexts [m], by order.
    """
    orders: list[tuple[NGrams, NGramWeights]] = []
    for ngrams, probs, backoffs in estimated:
        if orders:
            shorter, weights = orders[-1]
            orders[-1] = shorter, weights._replace(log10_backoffs=log10(backoffs))
        orders.append((ngrams, NGramWeights(log10(probs), np.zeros(0, np.float32))))
    return orders


@kernel()
def _interpolate(
    order: OrderCounts, level: Level, lower: Float64s, probs: Float64s, backoffs: Float64s
) -> None:
    """Write probabilities of n-grams [n], and back-off weights of their contexts [m].

    The n-grams of a context are adjacent. The freed mass is summed,
    not 1 minus a sum, so it is exactly 0 if nothing is freed.
    """
    (_, prefixes, suffixes), counts, totals = order.ngrams, order.counts, order.totals
    discounts, lower_shares = level
    for i in range(len(counts)):  # in a separate loop, scattered reads overlap
        probs[i] = lower[suffixes[i]]
    begin = 0
    while begin < len(counts):  # by context: its n-grams are probs[begin:end]
        context = prefixes[begin]
        listed, taken = np.int64(0), 0.0
        end = begin
        while end < len(counts) and prefixes[end] == context:
            listed += counts[end]
            taken += discounts[min(counts[end], 3)]
            end += 1
        scale, backoff = 0.0, 1.0  # after an unseen context, the order below
        if totals[context] > 0:
            scale = (1.0 - lower_shares[context]) / totals[context]
            backoff = lower_shares[context] + scale * (totals[context] - listed + taken)
        backoffs[context] = backoff
        for i in range(begin, end):
            own = counts[i] - discounts[min(counts[i], 3)]
            probs[i] = scale * own + backoff * probs[i]
        begin = end


@dataclass(frozen=True, slots=True)
class Additive:
    """Add k to all counts: p(w|h) = (c(hw) + k) / (c(h) + k V').

    V' is the number of words except `<s>`. After an unseen context, every word has the probability
    1 / V'; shorter contexts are not used. So only contexts of full length, or that begin with
    `<s>`, have estimates. Others are only states of the automaton, with probabilities 1 / V'
    and a back-off weight of 1. All words share the mass of pruned n-grams equally.

    As an interpolation, the uniform distribution has the share k V' / (c(h) + k V').

    Source: Lidstone (1920); Chen and Goodman (1998), section 2.1. With k = 1, Laplace's law of succession.

    Args:
        k: added constant, above 0.
    """

    k: float = 0.1

    def __call__(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model."""
        added = self.k * (observations.vocab_size - 1)
        k = 0
        # mask of contexts that begin with <s>; not the empty one
        begins = np.zeros(1, np.bool_)

        def level(order: OrderCounts) -> Level:
            nonlocal k, begins
            k += 1
            estimated = np.ones_like(begins) if k == observations.order else begins
            words, prefixes, _ = order.ngrams
            begins = words == BOS if k == 1 else begins[prefixes]
            with np.errstate(over="ignore"):  # k may be too large or small
                shares = 1.0 / (1.0 + order.totals / added)
            return np.zeros(4), np.where(estimated, shares, 1.0)

        return interpolate(observations.orders(), level), {"k": self.k}


def maximum_likelihood(observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG001 - a smoothing's signature
    """Estimate relative frequencies: p(w|h) = c(hw) / c(h).

    Words never seen after a context have the probability 0. The
    next shorter context replaces an unseen one. It also estimates
    a context's pruned n-grams, with their total weight.

    Source: Jelinek (1997), "Statistical methods for speech recognition", section 4.2.
    """
    orders = interpolate(observations.orders(), lambda order: (np.zeros(4), np.zeros(len(order.totals))))
    return orders, {}


def witten_bell(observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG001 - likewise
    """Interpolate by the diversity of a context: p(w|h) = (c(hw) + T(h) p(w|h')) / (c(h) + T(h)).

    T(h) is the number of distinct words after h: the times that a new word occurred.

    Source: Witten and Bell (1991), "The zero-frequency problem", method C; Chen and Goodman (1998), section 2.5.
    """

    def level(order: OrderCounts) -> Level:
        types = order.types.astype(np.float64)
        shares = np.divide(types, order.totals + types, out=np.ones_like(types), where=types > 0)
        return np.zeros(4), shares

    return interpolate(observations.orders(), level), {}
