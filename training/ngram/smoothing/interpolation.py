"""Smoothing: interface, interpolation, additive, Witten–Bell, Jelinek–Mercer, and Good–Turing with Katz's back-off.

    p(w|h) = (1 − μ(h)) (c(hw) − D(c(hw))) / c(h) + γ(h) p(w|h')

h' is h without its first word; the order below the unigrams is the uniform distribution over all
words except `<s>`. c(h) is the sum of the counts after h, μ(h) the fixed share of the order below,
and D the discount of a count. γ(h) is the total mass of the order below: μ(h), the discounts, and
the counts of pruned n-grams. It is also the back-off weight of h, so words unlisted after h have
exactly the probability γ(h) p(w|h'). γ is 1 for contexts without a following word.

Expectation maximisation fits Jelinek–Mercer's interpolation weights on held-out text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from models.arrays import Float32s, Float64s, Int32s, Int64s
from models.errors import InputError
from models.kernels.compilation import kernel
from models.kernels.threads import THREADS, run_slices
from models.language_model import BOS
from models.ngram.build import NGrams, NGramWeights
from training.corpus import EncodedCorpus
from training.ngram.counts import Matches, Observations, OrderCounts, match_counts

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

MAX_BUCKETS = 31
"""Powers of two below the largest int32 count."""

_MAX_LAMBDA = 1.0 - 1e-6
_TOLERANCE = 1e-5
_MAX_STEPS = 500

MAX_DISCOUNTED = 5
"""Highest discounted count; higher ones are reliable."""

_CANCELLED = 1e-6  # a smaller difference from 1 lost too many digits
FALLBACK_RATIOS = [(r - 0.5) / r for r in range(1, MAX_DISCOUNTED + 1)]
"""Ratios if counts of counts allow no estimate: reduce low counts by ½."""


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
    middles = np.linspace(0, size, THREADS.most + 1).astype(np.int64)[1:-1]
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


@dataclass(frozen=True, slots=True)
class JelinekMercer:
    """Linear interpolation: p(w|h) = λ(h) c(hw) / c(h) + (1 − λ(h)) p(w|h').

    All contexts of one length share λ, or all whose counts c(h) are in one
    bucket: 1, 2 to 3, 4 to 7, …; the last bucket is open. λ stays just
    below 1, so words not in the held-out text keep a probability.

    Source: Jelinek and Mercer (1980), "Interpolated estimation of Markov source parameters from
    sparse data"; buckets by count: Bahl, Jelinek and Mercer (1983); Chen and Goodman (1998), section 2.3.

    Args:
        buckets: from 1 to `MAX_BUCKETS`.
    """

    buckets: int = 1

    def __call__(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:
        """Estimate a model."""
        text = require_held_out(held_out, key="ngram.smoothing", what="the weights of jelinek-mercer")
        vocab_size = observations.vocab_size
        matches = list(match_counts(observations.orders(), text, vocab_size=vocab_size))
        lambdas = fit_lambdas(matches, self.buckets, vocab_size)
        of_order = iter(lambdas)

        def level(order: OrderCounts) -> Level:
            return np.zeros(4), 1.0 - next(of_order)[_bucket_of(order.totals, self.buckets)]

        orders = interpolate(observations.orders(), level)
        found = [row.tolist() if self.buckets > 1 else float(row[0]) for row in lambdas]
        return orders, {"lambdas": found}


def fit_lambdas(matches: Sequence[Matches], buckets: int, vocab_size: int) -> Float64s:
    """Fit the weights [orders, buckets] that maximise the held-out likelihood, by EM from ½.

    At each order, a token is generated by that order or the one below. λ becomes the
    expected share of a bucket's tokens generated by the order; every step increases
    the likelihood. A bucket without held-out tokens gets the previous one's weight.

    Source: Dempster, Laird and Rubin (1977); Chen and Goodman (1998), section 4.1.

    Args:
        matches: matches of held-out text by order from 1.
        buckets: number of buckets per order.
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
    """Relative frequencies of one order at the tokens with seen contexts."""

    def __init__(self, matches: Matches, buckets: int) -> None:
        self.tokens = np.flatnonzero(matches.totals)
        totals = matches.totals[self.tokens]
        self.buckets = _bucket_of(totals, buckets)
        self.reached = np.bincount(self.buckets, minlength=buckets) > 0
        self.frequencies: Float64s = matches.counts[self.tokens] / totals
        self.pruned: Float64s = matches.pruned[self.tokens] / totals


def _em_step(orders: Sequence[_Evidence], lambdas: Float64s, uniform_prob: float) -> Float64s:
    """Run one step of EM; return the new weights [orders, buckets]."""
    num_tokens = len(orders[0].tokens)  # a unigram's empty context is always seen
    probs = np.full(num_tokens, uniform_prob)
    found = []  # by order, own probabilities, and those interpolated with the order below
    for order, row in zip(orders, lambdas, strict=True):
        lower = probs[order.tokens]
        own = order.frequencies + order.pruned * lower
        probs[order.tokens] = total = lower + row[order.buckets] * (own - lower)
        found.append((own, total))
    reaching = np.ones(num_tokens)  # posterior of reaching an order from the highest
    updated = np.empty_like(lambdas)
    for k in reversed(range(len(orders))):
        order, (own, total) = orders[k], found[k]
        weights, here = lambdas[k][order.buckets], reaching[order.tokens]
        stopped = np.bincount(order.buckets, here * weights * own / total, minlength=lambdas.shape[1])
        reached = np.bincount(order.buckets, here, minlength=lambdas.shape[1])
        # the share that stops, by bucket; unchanged without tokens
        shares = np.divide(stopped, reached, out=lambdas[k].copy(), where=reached > 0)
        # below 1: unseen words keep a probability
        updated[k] = np.minimum(shares, _MAX_LAMBDA)
        reaching[order.tokens] = here * (1.0 - weights * order.frequencies / total)
    return updated


def _bucket_of(totals: Int32s, buckets: int) -> Int64s:
    """Return each context's bucket by its count; arbitrary for unseen ones."""
    exponents = np.frexp(np.maximum(totals, 1))[1].astype(np.int64) - 1
    return np.minimum(exponents, buckets - 1)


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
