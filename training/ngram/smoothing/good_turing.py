"""Good–Turing smoothing with Katz's back-off."""

from collections.abc import Iterator, Sequence

import numpy as np

from models.arrays import Float64s, Int32s, Int64s
from models.kernels.compilation import kernel
from models.ngram.build import NGrams
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, OrderCounts
from training.ngram.smoothing.interpolation import Smoothed, attach_backoffs, uniform_distribution

MAX_DISCOUNTED = 5
"""Highest discounted count; higher ones are reliable."""

_CANCELLED = 1e-6  # a smaller difference from 1 lost too many digits
FALLBACK_RATIOS = [(r - 0.5) / r for r in range(1, MAX_DISCOUNTED + 1)]
"""Ratios if counts of counts allow no estimate: reduce low counts by ½."""


def good_turing(observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG001 - a smoothing's signature
    """Estimate a Katz back-off: p(w|h) = d(c(hw)) c(hw) / c(h) for words seen after h, else α(h) p(w|h').

    d(c) is a ratio from the Good–Turing estimate; see `discount_ratios`. α(h) makes
    the probabilities after h sum to 1; below the unigrams, unseen words share the mass
    equally. If words remain but no mass is freed, as all counts after h are high, h is
    counted once more, for a new word. If no word remains, nothing is discounted.

    Source: Katz (1987), "Estimation of probabilities from sparse data for the language model
    component of a speech recognizer"; Chen and Goodman (1998), sections 2.2 and 2.4.
    """
    ratios: list[list[float]] = []
    fallback_orders: list[int] = []

    def estimate() -> Iterator[tuple[NGrams, Float64s, Float64s]]:
        lower = uniform_distribution(observations.vocab_size)
        # the unigrams list every word
        lower_prefixes, unlisted = np.zeros(1, np.int32), np.zeros(1)
        for k, order in enumerate(observations.orders(), start=1):
            found = discount_ratios(order.counts_of_counts)
            if found is None:
                fallback_orders.append(k)
            ratios.append(found or FALLBACK_RATIOS)
            kept_shares = np.array([0.0, *ratios[-1], 1.0])
            if k == 1:
                probs, backoffs = _unigrams(order.counts, kept_shares), np.ones(1)
            else:
                probs, backoffs, unlisted = _back_off(order, kept_shares, lower_prefixes, lower, unlisted)
            lower, lower_prefixes = probs, order.ngrams.prefixes
            yield order.ngrams, probs, backoffs

    return attach_backoffs(estimate()), {"discount_ratios": ratios, "fallback_orders": fallback_orders}


def discount_ratios(counts_of_counts: Sequence[int] | Int64s) -> list[float] | None:
    """Compute discount ratios d_1, …, d_k of counts 1, 2, …, k; None without estimate.

    r* = (r + 1) n_{r+1} / n_r and d_r = (r*/r − s) / (1 − s) with s = (k + 1) n_{k+1} / n_1. k is the
    highest value, from `MAX_DISCOUNTED` down to 2, for which all d_r are between 0 and 1.

    Args:
        counts_of_counts: n-grams with the count 0, 1, 2, … 6.
    """
    n = [int(count) for count in counts_of_counts]
    for k in range(MAX_DISCOUNTED, 1, -1):
        if 0 in n[1 : k + 1]:
            continue
        share = (k + 1) * n[k + 1] / n[1]
        if share >= 1:
            continue
        ratios = [((r + 1) * n[r + 1] / (r * n[r]) - share) / (1 - share) for r in range(1, k + 1)]
        if all(0 < ratio < 1 for ratio in ratios):
            return ratios
    return None


def _unigrams(counts: Int32s, kept_shares: Float64s) -> Float64s:
    """Compute all words' probabilities [V]; unseen words share the freed mass equally."""
    reduced = counts * kept_shares[np.minimum(counts, len(kept_shares) - 1)]
    total, freed = float(counts.sum()), float((counts - reduced).sum())
    never_seen = counts == 0
    never_seen[BOS] = False
    remaining = int(never_seen.sum())
    if remaining == 0:
        return counts / total
    if freed == 0:
        total, freed = total + 1.0, 1.0
    probs: Float64s = reduced / total
    probs[never_seen] = freed / total / remaining
    return probs


@kernel()
def _back_off(
    order: OrderCounts,
    kept_shares: Float64s,
    lower_prefixes: Int32s,
    lower: Float64s,
    lower_unlisted: Float64s,
) -> tuple[Float64s, Float64s, Float64s]:
    """Compute probabilities of one order [n], and back-off weights and mass of unlisted words by context [m].

    `lower_unlisted` is that mass by context of the order below.
    """
    (_, prefixes, suffixes), counts, totals = order.ngrams, order.counts, order.totals
    probs = np.empty(len(counts), np.float64)
    backoffs, unlisted = np.ones(len(totals), np.float64), np.zeros(len(totals), np.float64)
    highest = len(kept_shares) - 1
    for i in range(len(counts)):  # in a separate loop, scattered reads overlap
        probs[i] = lower[suffixes[i]]
    begin = 0
    while begin < len(counts):  # by context: its n-grams are probs[begin:end]
        context = prefixes[begin]
        listed, taken, lower_listed = 0.0, 0.0, 0.0  # Σ c, Σ (1 − d) c, Σ p(w|h')
        end = begin
        while end < len(counts) and prefixes[end] == context:
            listed += counts[end]
            taken += counts[end] * (1.0 - kept_shares[min(counts[end], highest)])
            lower_listed += probs[end]
            end += 1
        remaining = 1.0 - lower_listed
        if remaining < _CANCELLED:
            remaining = _remaining_mass(suffixes[begin:end], lower_prefixes, lower, lower_unlisted)
        if remaining <= 0.0:
            backoffs[context] = 0.0
            for i in range(begin, end):
                probs[i] = counts[i] / listed
        else:
            total, freed = float(totals[context]), totals[context] - listed + taken
            if freed <= 0.0:
                total, freed = total + 1.0, 1.0
            unlisted[context] = freed / total
            backoffs[context] = unlisted[context] / remaining
            for i in range(begin, end):
                probs[i] = counts[i] * kept_shares[min(counts[i], highest)] / total
        begin = end
    return probs, backoffs, unlisted


@kernel()
def _remaining_mass(
    listed: Int32s, lower_prefixes: Int32s, lower: Float64s, lower_unlisted: Float64s
) -> float:
    """Sum the shorter context's probabilities of words unlisted after the longer, term by term.

    `listed` has the suffixes of the longer context's listed n-grams, in order. They are n-grams
    of the shorter context, whose unlisted words are also unlisted after the longer.
    """
    context = lower_prefixes[listed[0]]
    i = listed[0]
    while i > 0 and lower_prefixes[i - 1] == context:
        i -= 1
    mass: float = lower_unlisted[context]
    passed = 0
    while i < len(lower_prefixes) and lower_prefixes[i] == context:
        if passed < len(listed) and listed[passed] == i:
            passed += 1
        else:
            mass += lower[i]
        i += 1
    return mass
