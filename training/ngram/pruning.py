"""Rows p(·|h) of back-off models over a trie of their n-grams; relative-entropy pruning, eight-bit quantisation.

Estimators and files give n-grams order by order. Pruning or mixing finished
models also needs probabilities after a *shorter* context, possibly several
orders down: in place of an unlisted suffix, the next shorter one is used.

A row lists some words; an unlisted word's probability is the back-off weight times its probability
in the shorter context's row. So the mass of a row's unlisted words is that weight times their mass in
the shorter context's row. Both follow from the listed words, even if a row does not sum to 1.

Source: Stolcke (1998), "Entropy-based pruning of backoff language models", equations 3 to 8. Without
the n-gram hw, the probability of w after h is α'(h) p(w|h'), and the unlisted words after h are scaled
by α'(h) instead of α(h). The relative entropy of this change, weighted by the probability of h, is

    D = p(h) { p(w|h) [ln p(w|h) − ln(α'(h) p(w|h'))] + [ln α(h) − ln α'(h)] Σ_{v unlisted} p(v|h) },

and the n-gram is removed if the relative increase in perplexity is below the threshold:
exp(D) − 1 < threshold. Each n-gram is evaluated alone, against the full model.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import Bools, Float32s, Float64s, Int32s, Int64s, UInt32s
from models.errors import InputError
from models.kernels.compilation import kernel
from models.language_model import BOS, EOS, Vocabulary
from models.ngram.build import (
    NGrams,
    NGramWeights,
    build_automaton,
    number_arcs,
    quantise_automaton,
    suffix_states,
)
from models.ngram.model import NGramModel
from training.ngram.smoothing.interpolation import log10
from training.progress import Progress

Orders: TypeAlias = Sequence[tuple[NGrams, NGramWeights]]
"""A back-off model as n-grams and weights, by order from 1."""

MIN_LOWER_MASS = 1e-9
"""Minimum lower-order mass; less is rounding error of float32 probabilities."""


class Trie(NamedTuple):
    """Nodes by length, then in lexicographic order: 0 is the empty context, then unigrams, bigrams, ….

    Nodes and arcs are the states and arcs of an automaton: arc a leads to node a + 1.

    Attributes:
        starts: first node of each length from 0, then the number of nodes [order + 2], int64.
        first_arcs: first arc of nodes below the highest order, then their end [starts[order] + 1], uint32.
        suffixes: node of the longest listed proper suffix [nodes], int32.
    """

    starts: Int64s
    first_arcs: UInt32s
    suffixes: Int32s

    @property
    def order(self) -> int:
        """Length of the longest n-gram."""
        return len(self.starts) - 2

    def nodes(self, length: int) -> slice:
        """Return the range of nodes with `length` words."""
        return slice(int(self.starts[length]), int(self.starts[length + 1]))


def link(ngrams: Sequence[NGrams]) -> Trie:
    """Build a trie of n-grams by order from 1; the longest listed suffix replaces a suffix of −1."""
    order_starts, first_arcs, words = number_arcs(ngrams)
    suffixes = suffix_states(ngrams, order_starts, first_arcs, words)
    return Trie(np.concatenate([[0], order_starts + 1]), first_arcs, suffixes)


def suffixes_by_order(trie: Trie) -> list[Int32s]:
    """Return each n-gram's suffix as an index into the order below, −1 if unlisted; by order from 1."""
    return [
        np.maximum(trie.suffixes[trie.nodes(length)] - np.int32(trie.starts[length - 1]), np.int32(-1))
        for length in range(1, trie.order + 1)
    ]


@kernel()
def _lower_probs(trie: Trie, length: int, probs: Float64s, backoffs: Float64s) -> Float64s:
    """Back off from the shortened context to that of each n-gram's longest listed suffix."""
    first = trie.starts[length]
    out = np.empty(trie.starts[length + 1] - first, np.float64)  # [n], by node
    for parent in range(trie.starts[length - 1], first):
        for node in range(np.int64(trie.first_arcs[parent]) + 1, np.int64(trie.first_arcs[parent + 1]) + 1):
            suffix = np.int64(trie.suffixes[node])
            found = length - 1  # length of the suffix
            while suffix < trie.starts[found]:
                found -= 1
            context, weight = np.int64(trie.suffixes[parent]), 1.0
            while context >= trie.starts[found]:  # longer than the suffix's own context
                weight *= backoffs[context]
                context = np.int64(trie.suffixes[context])
            out[node - first] = weight * probs[suffix]
    return out


class ContextMasses(NamedTuple):
    """Lower-order and unlisted masses at the contexts [m] of one order's n-grams [n].

    Attributes:
        lower: each n-gram's last word's probability after its context without the first word [n].
        lower_unlisted: a context's unlisted words' mass after it without its first word [m].
        unlisted: mass of the unlisted words after the context itself [m].
    """

    lower: Float64s
    lower_unlisted: Float64s
    unlisted: Float64s


class BackoffRows:
    """Probabilities, back-off weights and row sums of a model, by node below the trie's highest order.

    Args:
        trie: the n-grams; those that the model lacks have the back-off weight 1.
    """

    def __init__(self, trie: Trie) -> None:
        size = int(trie.starts[-2])
        self.trie = trie
        self.probs = np.ones(size)
        self.backoffs = np.ones(size)
        self.sums = np.ones(size)

    def lower_probs(self, length: int) -> Float64s:
        """Compute each n-gram's last word's probability after its context without the first word [n].

        The n-grams have at least 2 words.
        """
        suffixes = self.trie.suffixes[self.trie.nodes(length)]
        if suffixes.size and suffixes.min() < self.trie.starts[length - 1]:
            return _lower_probs(self.trie, length, self.probs, self.backoffs)
        return self.probs[suffixes]

    def contexts(self, ngrams: NGrams, length: int) -> ContextMasses:
        """Compute masses at contexts of n-grams of `length` words from shorter n-grams."""
        if length == 1:  # the unigrams list every word
            return ContextMasses(np.zeros(len(ngrams.words)), np.zeros(1), np.zeros(1))
        nodes = self.trie.nodes(length - 1)
        lower = self.lower_probs(length)
        lower_unlisted = self.sums[self.trie.suffixes[nodes]]
        lower_unlisted -= np.bincount(ngrams.prefixes, lower, minlength=len(lower_unlisted))
        np.maximum(lower_unlisted, MIN_LOWER_MASS, out=lower_unlisted)
        return ContextMasses(lower, lower_unlisted, lower_unlisted * self.backoffs[nodes])

    def add_order(self, ngrams: NGrams, length: int, probs: Float64s, *, left: Float64s) -> None:
        """Add the n-grams of `length` words [n].

        Args:
            ngrams: all n-grams of this length in the trie.
            length: their length; shorter n-grams are already added.
            probs: probabilities of their last words [n].
            left: mass of the unlisted words in the rows of their contexts [m].
        """
        contexts = self.trie.nodes(length - 1)
        listed = np.bincount(ngrams.prefixes, probs, minlength=contexts.stop - contexts.start)
        self.sums[contexts] = listed + left
        self.set_probs(length, probs)

    def set_probs(self, length: int, probs: Float64s) -> None:
        """Set the probabilities of n-grams of `length` words [n]; the highest order is not stored."""
        if length < self.trie.order:
            self.probs[self.trie.nodes(length)] = probs

    def set_backoffs(self, length: int, backoffs: Float64s) -> None:
        """Set the back-off weights of n-grams of `length` words [n]; the highest order has none."""
        if length < self.trie.order:
            self.backoffs[self.trie.nodes(length)] = backoffs


def from_log10(log10: Float32s) -> Float64s:
    """Convert decimal logarithms to probabilities or weights in float64."""
    return np.power(10.0, log10, dtype=np.float64)


def prune_by_entropy(
    orders: Orders, threshold: float, *, history_probs: Sequence[Float64s] | None = None
) -> list[tuple[NGrams, NGramWeights]]:
    """Remove n-grams that raise the perplexity by a share below the threshold.

    Unigrams and prefixes of kept n-grams stay. Kept probabilities do not
    change; back-off weights change to preserve the sum of every row.

    By default, the probability of a context comes from the model by the chain
    rule, with p(`<s>`) = 1. (SRILM uses the probability of `</s>`, which is worse
    for Kneser–Ney models and a little better for others.) Kneser–Ney models
    estimate it badly: their lower orders are designed for back-off, not for
    frequencies (Chelba et al. 2010, "Study on interaction between entropy pruning
    and Kneser–Ney smoothing"). With counts, pass their `history_frequencies`.

    Args:
        orders: n-grams and weights of any back-off model, by order from 1.
        threshold: minimum relative increase in perplexity; 0 keeps all. Usual: 1e-8 to 1e-6.
        history_probs: probability of each n-gram as a word's
            context [n], for all orders except the highest.

    Returns:
        The kept n-grams and their weights, without empty orders; a removed suffix is −1.

    Raises:
        InputError: the threshold is negative or not finite.
    """
    if not 0 <= threshold < math.inf:
        problem = f"is {threshold}; it must be at least 0 and finite"
        raise InputError.of("ngram.prune_entropy", problem)
    if threshold == 0 or len(orders) == 1:
        return list(orders)
    if history_probs is None:
        history_probs = chain = [from_log10(orders[0][1].log10_probs)]
        chain[0][BOS] = 1.0
        for ngrams, weights in orders[1:-1]:  # by the chain rule: all prefixes are listed
            chain.append(chain[-1][ngrams.prefixes] * from_log10(weights.log10_probs))
    trie = link([ngrams for ngrams, _ in orders])
    contexts = _context_masses(trie, orders)
    masks = _kept_masks(orders, contexts, history_probs, threshold)
    kept = _kept_ngrams(trie, orders, masks)
    return list(zip(kept, _reweighted(kept, orders, contexts, masks), strict=True))


def history_frequencies(counts: Sequence[npt.NDArray[np.integer]]) -> list[Float64s]:
    """Compute each n-gram's frequency as a context, as a share of a text's words.

    `<s>` gets the frequency of `</s>`, regardless of its own count.

    Args:
        counts: occurrences of n-grams by order from 1 [n each].

    Returns:
        Frequencies by order, except the highest [n each].
    """
    words = counts[0].sum() - counts[0][BOS]
    shares = [one_order / words for one_order in counts[:-1]]
    if shares:
        shares[0][BOS] = shares[0][EOS]
    return shares


def _context_masses(trie: Trie, orders: Orders) -> list[ContextMasses]:
    """Compute the masses of n-grams by order from 2."""
    rows = BackoffRows(trie)
    answer = []
    for length, (ngrams, weights) in enumerate(orders, start=1):
        answer.append(rows.contexts(ngrams, length))
        rows.add_order(ngrams, length, from_log10(weights.log10_probs), left=answer[-1].unlisted)
        if length < len(orders):  # the highest order may have no back-off weights
            rows.set_backoffs(length, from_log10(weights.log10_backoffs))
    return answer[1:]


def _kept_masks(
    orders: Orders, contexts: Sequence[ContextMasses], history_probs: Sequence[Float64s], threshold: float
) -> list[Bools]:
    """Compute masks of n-grams to keep, by order up to the highest non-empty one."""
    masks = [np.ones(len(orders[0][0].words), np.bool_)]
    for (ngrams, weights), context, history in zip(orders[1:], contexts, history_probs, strict=False):
        probs = from_log10(weights.log10_probs)
        masks.append(_reaches_threshold(ngrams.prefixes, probs, context, history, threshold))
    for (ngrams, _), longer, shorter in zip(orders[:0:-1], masks[:0:-1], masks[-2::-1], strict=True):
        shorter[ngrams.prefixes[longer]] = True  # prefixes of kept n-grams stay
    while not masks[-1].any():  # ends at the unigrams, which are all kept
        masks.pop()
    return masks


@kernel()
def _reaches_threshold(
    prefixes: Int32s, probs: Float64s, contexts: ContextMasses, history_probs: Float64s, threshold: float
) -> Bools:
    """Return a mask of n-grams whose exp(D) − 1 reaches the threshold [n]."""
    keep = np.ones(len(probs), np.bool_)  # [n]
    for i in range(len(probs)):  # by context, so its values stay in the cache
        context, p, lower = prefixes[i], probs[i], contexts.lower[i]
        left, lower_left = contexts.unlisted[context], contexts.lower_unlisted[context]
        scale = (left + p) / (lower_left + lower)  # α'(h)
        entropy = 0.0
        if p > 0:
            if lower * scale == 0:
                continue  # without it, the word would get the probability 0
            entropy += p * math.log(p / (lower * scale))
        if left > 0:
            entropy += left * math.log(left / lower_left / scale)
        keep[i] = math.expm1(history_probs[context] * entropy) >= threshold
    return keep


def _kept_ngrams(trie: Trie, orders: Orders, masks: Sequence[Bools]) -> list[NGrams]:
    """Return the kept n-grams with new indices."""
    answer = [orders[0][0]]
    suffixes_of = suffixes_by_order(trie)
    for length in range(2, len(masks) + 1):
        ngrams, keep, shorter = orders[length - 1][0], masks[length - 1], masks[length - 2]
        numbers = np.cumsum(shorter, dtype=np.int32) - 1
        suffixes = suffixes_of[length - 1][keep]
        listed = (suffixes >= 0) & shorter[suffixes]
        words, prefixes = ngrams.words[keep], numbers[ngrams.prefixes[keep]]
        answer.append(NGrams(words, prefixes, np.where(listed, numbers[suffixes], np.int32(-1))))
    return answer


def _reweighted(
    ngrams: Sequence[NGrams], orders: Orders, contexts: Sequence[ContextMasses], masks: Sequence[Bools]
) -> list[NGramWeights]:
    """Return the kept probabilities, and back-off weights that preserve each row's sum."""
    rows = BackoffRows(link(ngrams))
    answer: list[NGramWeights] = []
    for length, ((old, weights), keep) in enumerate(zip(orders, masks, strict=False), start=1):
        if length > 1:
            lower = rows.lower_probs(length)
            probs = from_log10(weights.log10_probs)
            backoffs = _new_backoffs(old.prefixes, keep, probs, contexts[length - 2], lower)
            rows.set_backoffs(length - 1, backoffs := backoffs[masks[length - 2]])
            answer[-1] = answer[-1]._replace(log10_backoffs=log10(backoffs))
        log10_probs = weights.log10_probs[keep]
        rows.set_probs(length, from_log10(log10_probs))
        answer.append(NGramWeights(log10_probs, np.zeros(0, np.float32)))
    return answer


def _new_backoffs(
    prefixes: Int32s, keep: Bools, probs: Float64s, contexts: ContextMasses, lower: Float64s
) -> Float64s:
    """Compute back-off weights of contexts [m] whose n-grams [n] are partly kept.

    Unlisted masses of the context and the shorter one grow by the removed
    words, the latter also by the losses of kept words in its row. Changes are
    summed, not 1 minus sums, so an unchanged context's weight stays bit-identical.
    """
    dropped, size = ~keep, len(contexts.unlisted)
    removed, listed = prefixes[dropped], prefixes[keep]
    left = contexts.unlisted + np.bincount(removed, probs[dropped], minlength=size)
    lower_left = contexts.lower_unlisted + np.bincount(removed, contexts.lower[dropped], minlength=size)
    lower_left += np.bincount(listed, contexts.lower[keep] - lower, minlength=size)
    backoffs: Float64s = left / np.maximum(lower_left, MIN_LOWER_MASS)
    fan_out, lost = np.bincount(listed, minlength=size), np.bincount(removed, minlength=size)  # [m]
    backoffs[(fan_out == 0) & (lost > 0)] = 1.0  # exactly 1: it is no longer a context
    return backoffs


def compress(
    orders: Orders,
    vocabulary: Vocabulary,
    prune_entropy: float,
    *,
    quantise: bool,
    normalised: bool = True,
    history_probs: Sequence[Float64s] | None = None,
    progress: Progress,
) -> tuple[NGramModel, Sequence[NGrams], dict[str, Any]]:
    """Compress n-grams, and build a model from them.

    Args:
        orders: n-grams and weights by order from 1.
        vocabulary: maps ids to words.
        prune_entropy: relative increase in perplexity below which an n-gram is dropped; 0 drops none.
        quantise: store probabilities and back-off weights in eight bits each.
        normalised: True if distributions sum to 1 before compression.
        history_probs: context probabilities; see `prune_by_entropy`.
        progress: display of the stages.

    Returns:
        The model; the n-grams left by order from 1; facts: their numbers, also before pruning.

    Raises:
        InputError: the threshold is out of range, or too many words for eight-bit models.
    """
    before = [len(ngrams.words) for ngrams, _ in orders]
    facts: dict[str, Any] = {"ngrams": before}
    if prune_entropy != 0:
        with progress.stage("pruning n-grams"):
            orders = prune_by_entropy(orders, prune_entropy, history_probs=history_probs)
            after = [len(ngrams.words) for ngrams, _ in orders]
            facts = {"ngrams": after + [0] * (len(before) - len(after)), "ngrams_before_pruning": before}
    with progress.stage("building the automaton"):
        automaton = build_automaton(orders)
        if quantise:
            automaton = quantise_automaton(automaton)
    model = NGramModel(automaton, vocabulary, normalised=normalised and not quantise)
    return model, [ngrams for ngrams, _ in orders], facts
