"""Interface of smoothing methods, discounts by counts of counts, and interpolation with lower orders.

    p(w|h) = (1 − μ(h)) (c(hw) − D(c(hw))) / c(h) + γ(h) p(w|h')

h' is h without its first word; the order below the unigrams is the uniform distribution over all words except
`<s>`. c(h) is the sum of the counts after h, μ(h) the fixed share of the order below, and D the discount
of a count. γ(h) is the total mass of the order below: μ(h), the discounts, and the counts of pruned
n-grams. It is also the back-off weight of h, so words that are not listed after h have exactly the
probability γ(h) p(w|h'). γ is 1 for contexts without a following word.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.kernels.compilation import kernel
from models.kernels.threads import run_slices
from models.ngram.build import NGrams, NGramWeights
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, OrderCounts


class Discounts(NamedTuple):
    """Discounts of n-gram counts of 1, 2, and 3 or more."""

    one: float
    two: float
    three_plus: float


FALLBACK_DISCOUNTS = Discounts(0.5, 1.0, 1.5)
"""Discounts for an order whose counts of counts allow no estimate, as in tiny texts or closed vocabularies."""

SINGLE_FALLBACK_DISCOUNT = Discounts(0.5, 0.5, 0.5)
"""Fallback discount for smoothings with one discount."""


def modified_discounts(counts_of_counts: Sequence[int] | npt.NDArray[np.int64]) -> Discounts | None:
    """Estimate three discounts; None if no estimate exists.

    Y = n₁ / (n₁ + 2 n₂); D_j = j − (j + 1) Y n_{j+1} / n_j. No estimate exists if n₁, n₂ or n₃ is 0
    or a D_j is outside [0, j].

    Source: Chen and Goodman (1998), section 3.

    Args:
        counts_of_counts: number of n-grams with the count 0, 1, 2, 3, 4, ….
    """
    n = [int(count) for count in counts_of_counts]
    if 0 in n[1:4]:
        return None
    y = n[1] / (n[1] + 2 * n[2])
    discounts = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
    if any(not 0 <= discount <= j for j, discount in enumerate(discounts, start=1)):
        return None
    return Discounts(*discounts)


def single_discount(counts_of_counts: Sequence[int] | npt.NDArray[np.int64]) -> Discounts | None:
    """Estimate one discount for all counts, D = n₁ / (n₁ + 2 n₂); None if n₁ or n₂ is 0.

    Source: Ney, Essen and Kneser (1994), "On structuring probabilistic dependences in
    stochastic language modelling".

    Args:
        counts_of_counts: number of n-grams with the count 0, 1, 2, ….
    """
    once, twice = int(counts_of_counts[1]), int(counts_of_counts[2])
    return Discounts(*[once / (once + 2 * twice)] * 3) if once and twice else None


def discounts_from_counts(
    counts_of_counts: Sequence[int] | npt.NDArray[np.int64], *, num_discounts: Literal[1, 3]
) -> tuple[Discounts, bool]:
    """Return one or three discounts, estimated or else constant, and True if they are estimated."""
    three = num_discounts == 3
    found = modified_discounts(counts_of_counts) if three else single_discount(counts_of_counts)
    return found or (FALLBACK_DISCOUNTS if three else SINGLE_FALLBACK_DISCOUNT), found is not None


class Smoothed(NamedTuple):
    """Back-off model by order, and statistics of its estimation.

    Attributes:
        orders: n-grams and weights of the orders 1, 2, …, for `build_automaton`.
        facts: fitted values for the model card: numbers, strings, and lists of numbers and strings.
        discounts: discounts by order from 1; empty for a smoothing without absolute discounts.
        fallback_orders: orders with constant parameters, because their counts allow no estimate.
    """

    orders: Sequence[tuple[NGrams, NGramWeights]]
    facts: Mapping[str, Any]
    discounts: tuple[Discounts, ...] = ()
    fallback_orders: tuple[int, ...] = ()


Smoothing: TypeAlias = Callable[[Observations, EncodedCorpus | None], Smoothed]
"""Smoothing method: estimates a normalised model from a counted text.

Parameters may be fitted on the second, held-out text, which has the same vocabulary. `InvalidInputError` is
raised if the text is required but missing, or has another vocabulary.
"""


def require_held_out(held_out: EncodedCorpus | None, *, key: str, what: str) -> EncodedCorpus:
    """Return the held-out text that a smoothing requires.

    Raises:
        InvalidInputError: there is no held-out text; the message names the recipe's key.
    """
    if held_out is None or held_out.num_sentences == 0:
        raise InvalidInputError(
            f"{key}: {what} are fitted on held-out text, but there is none; give --valid", parameter=key
        )
    return held_out


DoubleArray: TypeAlias = npt.NDArray[np.float64]


def uniform_distribution(vocab_size: int) -> DoubleArray:
    """Return the distribution below the unigrams [1]: one probability for every word except `<s>`."""
    return np.full(1, 1.0 / (vocab_size - 1))


def log10(values: DoubleArray) -> npt.NDArray[np.float32]:
    """Compute decimal logarithms in float32; the logarithm of 0 is minus infinity."""
    logs = np.empty(len(values), np.float32)
    with np.errstate(divide="ignore"):
        np.log10(values, out=logs)  # in double precision, rounded block by block
    return logs


Level: TypeAlias = tuple[DoubleArray, DoubleArray]
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

    def estimate() -> Iterator[tuple[NGrams, DoubleArray, DoubleArray]]:
        lower = None
        for order in orders:
            is_first = lower is None
            lower = uniform_distribution(len(order.counts)) if lower is None else lower
            lower, backoffs = _interpolated(order, *level(order), lower)
            if is_first:
                lower[BOS] = 0.0
            yield order.ngrams, lower, backoffs

    return attach_backoffs(estimate())


def _interpolated(
    order: OrderCounts, discounts: DoubleArray, lower_shares: DoubleArray, lower: DoubleArray
) -> tuple[DoubleArray, DoubleArray]:
    """Compute the probabilities of one order [n], and the back-off weights of its contexts [m], on all cores."""
    prefixes, size = order.ngrams.prefixes, len(order.counts)
    probs, backoffs = np.empty(size), np.ones(len(order.totals))
    middles = np.linspace(0, size, (os.cpu_count() or 1) + 1).astype(np.int64)[1:-1]
    cuts = [
        0,
        *np.searchsorted(prefixes, prefixes[middles] if size else []).tolist(),
        size,
    ]  # between contexts
    run_slices(
        lambda share: _interpolate(
            prefixes[share],
            order.ngrams.suffixes[share],
            order.counts[share],
            order.totals,
            discounts,
            lower_shares,
            lower,
            probs[share],
            backoffs,
        ),
        cuts,
    )
    return probs, backoffs


def attach_backoffs(
    estimated: Iterable[tuple[NGrams, DoubleArray, DoubleArray]],
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
    prefixes: npt.NDArray[np.int32],
    suffixes: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int32],
    totals: npt.NDArray[np.int32],
    discounts: DoubleArray,
    lower_shares: DoubleArray,
    lower: DoubleArray,
    probs: DoubleArray,
    backoffs: DoubleArray,
) -> None:
    """Write the probabilities of n-grams [n], and the back-off weights of their contexts [m].

    The n-grams of a context are adjacent. The freed mass is summed directly, not as a
    difference from 1, so it is exactly 0 if nothing is freed.
    """
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
