"""Arithmetic shared by interpolated smoothing methods.

    p(w|h) = (1 − μ(h)) (c(hw) − D(c(hw))) / c(h) + γ(h) p(w|h')

h' is h without its first word; the order below the unigrams is the uniform distribution over all words except
`<s>`. c(h) is the sum of the counts after h, μ(h) the fixed share of the order below, and D the discount
of a count. γ(h) is the total mass of the order below: μ(h), the discounts, and the counts of pruned
n-grams. It is also the back-off weight of h, so words that are not listed after h have exactly the
probability γ(h) p(w|h'). γ is 1 for contexts without a following word.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np

from models.arrays import Float32s, Float64s
from models.kernels.compilation import kernel
from models.kernels.threads import run_slices
from models.ngram.build import NGrams, NGramWeights
from models.vocabulary import BOS
from training.ngram.counts import OrderCounts


def uniform_distribution(vocab_size: int) -> Float64s:
    """Return the distribution below the unigrams [1]: one probability for every word except `<s>`."""
    return np.full(1, 1.0 / (vocab_size - 1))


def log10(values: Float64s) -> Float32s:
    """Compute decimal logarithms in float32; the logarithm of 0 is minus infinity."""
    logs = np.empty(len(values), np.float32)
    with np.errstate(divide="ignore"):
        np.log10(values, out=logs)  # in double precision, rounded block by block
    return logs


Level: TypeAlias = tuple[Float64s, Float64s]
"""Interpolation with the order below: D for counts of 0, 1, 2, and 3 or more [4], and μ by context [m].

μ is 1 for contexts whose own counts are ignored.
"""


def interpolate(
    orders: Iterable[OrderCounts], level: Callable[[OrderCounts], Level]
) -> list[tuple[NGrams, NGramWeights]]:
    """Estimate a back-off model from counts.

    Args:
        orders: counts of the orders 1, 2, ….
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
    """Compute the probabilities of one order [n], and the back-off weights of its contexts [m], on all cores."""
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
    """Attach back-off weights to their n-grams: weights estimated with order k belong to order k − 1.

    The weight of the empty context is never used, and the longest n-grams are not contexts.

    Args:
        estimated: n-grams, their probabilities [n] and back-off weights of their contexts [m], by order.
    """
    orders: list[tuple[NGrams, NGramWeights]] = []
    for ngrams, probs, backoffs in estimated:
        if orders:
            shorter, weights = orders[-1]
            orders[-1] = shorter, weights._replace(log10_backoffs=log10(backoffs))
        orders.append((ngrams, NGramWeights(log10(probs), np.zeros(0, dtype=np.float32))))
    return orders


@kernel()
def _interpolate(
    order: OrderCounts, level: Level, lower: Float64s, probs: Float64s, backoffs: Float64s
) -> None:
    """Write the probabilities of n-grams [n], and the back-off weights of their contexts [m].

    The n-grams of a context are adjacent. The freed mass is summed directly, not as a
    difference from 1, so it is exactly 0 if nothing is freed.
    """
    (_, prefixes, suffixes), counts, totals = order.ngrams, order.counts, order.totals
    discounts, lower_shares = level
    for i in range(len(counts)):  # a separate loop lets the scattered reads overlap
        probs[i] = lower[suffixes[i]]
    begin = 0
    while begin < len(counts):  # one context at a time: its n-grams are probs[begin:end]
        context = prefixes[begin]
        listed, taken = np.int64(0), 0.0
        end = begin
        while end < len(counts) and prefixes[end] == context:
            listed += counts[end]
            taken += discounts[min(counts[end], 3)]
            end += 1
        scale, backoff = 0.0, 1.0
        if totals[context] > 0:
            scale = (1.0 - lower_shares[context]) / totals[context]
            backoff = lower_shares[context] + scale * (totals[context] - listed + taken)
        backoffs[context] = backoff
        for i in range(begin, end):
            own = counts[i] - discounts[min(counts[i], 3)]
            probs[i] = scale * own + backoff * probs[i]
        begin = end
