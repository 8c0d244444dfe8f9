"""Relative-entropy pruning of back-off models, and their quantization to eight bits.

Source: Stolcke (1998), "Entropy-based pruning of backoff language models", equations 3 to 8. Without
the n-gram hw the row of h says α'(h) p(w|h') of w, and scales all its unlisted words by α'(h)
instead of α(h). The row's relative entropy, weighted by how often h occurs, is

    D = p(h) { p(w|h) [ln p(w|h) − ln(α'(h) p(w|h'))] + [ln α(h) − ln α'(h)] Σ_{v unlisted} p(v|h) },

and the n-gram is removed if the perplexity would grow by a smaller share than the threshold:
exp(D) − 1 < threshold. Each n-gram is judged alone, against the whole model.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.ngram.build import NGrams, NGramWeights, build_automaton, quantise_automaton
from models.ngram.model import NGramModel
from models.vocabulary import BOS, EOS, Vocabulary
from training.ngram.smoothing.interpolation import log10
from training.ngram.trie import (
    MIN_LOWER_MASS,
    BackoffRows,
    ContextMasses,
    DoubleArray,
    Orders,
    Trie,
    from_log10,
    link,
    lower_probs,
    suffixes_by_order,
)
from training.progress import Progress


def prune_by_entropy(
    orders: Orders, threshold: float, *, history_probs: Sequence[DoubleArray] | None = None
) -> list[tuple[NGrams, NGramWeights]]:
    """Leave out n-grams whose loss raises the perplexity by a smaller share than the threshold.

    Unigrams stay, and so does every n-gram with a longer one that continues it. Kept
    probabilities do not change; back-off weights do, such that every row keeps its sum.

    How often a context comes up is by default what the model says by the chain rule, with
    p(`<s>`) = 1 (SRILM takes that of `</s>`, which is worse for Kneser–Ney models and a little
    better for others). Kneser–Ney models say it badly, as their lower orders are made for
    backing off and not for how often words come up (Chelba et al. 2010, "Study on interaction
    between entropy pruning and Kneser–Ney smoothing"): where there are counts, give
    `history_frequencies` of them.

    Args:
        orders: n-grams and weights of the orders 1, 2, … of any back-off model.
        threshold: the share, at least 0; 0 keeps everything. 1e-8 to 1e-6 are usual.
        history_probs: by order from 1 to the last but one, how probable it is that a word
            comes after each n-gram [n].

    Returns:
        The same for what is kept, without orders that nothing is left of; suffixes are −1 where
        an n-gram's suffix was left out.

    Raises:
        InvalidInputError: the threshold is negative or not finite, or `history_probs` do not fit.
    """
    if not 0 <= threshold < math.inf:
        raise InvalidInputError(
            f"ngram.prune_entropy is {threshold}, it must be at least 0 and finite",
            parameter="ngram.prune_entropy",
        )
    if history_probs is None:
        history_probs = _chain_rule(orders)
    _check_shapes(orders, history_probs)
    if threshold == 0 or len(orders) == 1:
        return list(orders)
    trie = link([ngrams for ngrams, _ in orders])
    contexts = _context_masses(trie, orders)
    kept = _kept_masks(orders, contexts, history_probs, threshold)
    ngrams = _kept_ngrams(trie, orders, kept)
    return list(zip(ngrams, _reweighted(ngrams, orders, contexts, kept), strict=True))


def history_frequencies(counts: Sequence[npt.NDArray[np.integer]]) -> list[DoubleArray]:
    """How often a word comes after each n-gram, as a share of all words of a text.

    A word comes after `<s>` as often as `</s>` comes, whatever count `<s>` itself is given.

    Args:
        counts: how often the n-grams of the orders 1, 2, … occur [n each].

    Returns:
        By order, for all but the highest [n each].
    """
    words = counts[0].sum() - counts[0][BOS]
    shares = [one_order / words for one_order in counts[:-1]]
    if shares:
        shares[0][BOS] = shares[0][EOS]
    return shares


def _chain_rule(orders: Orders) -> list[DoubleArray]:
    """Each n-gram's probability as a text's beginning; all its prefixes are listed."""
    first = from_log10(orders[0][1].log10_probs)
    first[BOS] = 1.0
    probs = [first]
    for ngrams, weights in orders[1:-1]:
        probs.append(probs[-1][ngrams.prefixes] * from_log10(weights.log10_probs))
    return probs


def _check_shapes(orders: Orders, history_probs: Sequence[DoubleArray]) -> None:
    expected = [len(ngrams.words) for ngrams, _ in orders[:-1]]
    given = [len(one_order) for one_order in history_probs[: len(expected)]]
    if given != expected:
        raise InvalidInputError(
            f"history_probs has {given} values by order, the model {expected} contexts",
            parameter="history_probs",
        )


def _context_masses(trie: Trie, orders: Orders) -> list[ContextMasses]:
    """Of the n-grams of the orders 2, 3, …."""
    rows = BackoffRows(trie)
    answer = []
    left: DoubleArray | float = 0.0
    for length, (ngrams, weights) in enumerate(orders, start=1):
        if length > 1:
            answer.append(rows.contexts(ngrams, length))
            left = answer[-1].unlisted
        rows.add_order(ngrams, length, from_log10(weights.log10_probs), left=left)
        if length < len(orders):  # those of the highest order may be missing
            rows.set_backoffs(length, from_log10(weights.log10_backoffs))
    return answer


def _kept_masks(
    orders: Orders, contexts: Sequence[ContextMasses], history_probs: Sequence[DoubleArray], threshold: float
) -> list[npt.NDArray[np.bool_]]:
    """Which n-grams stay, by order up to the highest that any stay of."""
    kept = [np.ones(len(orders[0][0].words), dtype=np.bool_)]
    for (ngrams, weights), context, history in zip(orders[1:], contexts, history_probs, strict=False):
        probs = from_log10(weights.log10_probs)
        kept.append(_reaches_threshold(ngrams.prefixes, probs, context, history, threshold))
    for (ngrams, _), longer, shorter in zip(orders[:0:-1], kept[:0:-1], kept[-2::-1], strict=True):
        shorter[ngrams.prefixes[longer]] = True
    while not kept[-1].any():
        kept.pop()
    return kept


@numba.njit(nogil=True, cache=True)
def _reaches_threshold(
    prefixes: npt.NDArray[np.int32],
    probs: DoubleArray,
    contexts: ContextMasses,
    history_probs: DoubleArray,
    threshold: float,
) -> npt.NDArray[np.bool_]:
    """Whether exp(D) − 1 reaches the threshold [n]."""
    missed = np.ones(len(probs), np.bool_)
    for i in range(len(probs)):
        context, p, lower = prefixes[i], probs[i], contexts.lower[i]
        left, room = contexts.unlisted[context], contexts.lower_unlisted[context]
        scale = (left + p) / (room + lower)  # α'(h)
        entropy = 0.0
        if p > 0:
            if lower * scale == 0:
                continue  # it would become impossible
            entropy += p * math.log(p / (lower * scale))
        if left > 0:
            entropy += left * math.log(left / room / scale)
        missed[i] = math.expm1(history_probs[context] * entropy) >= threshold
    return missed


def _kept_ngrams(trie: Trie, orders: Orders, kept: Sequence[npt.NDArray[np.bool_]]) -> list[NGrams]:
    """The kept n-grams, numbered anew."""
    answer = [orders[0][0]]
    suffixes_of = suffixes_by_order(trie)
    for length in range(2, len(kept) + 1):
        ngrams, keep, shorter = orders[length - 1][0], kept[length - 1], kept[length - 2]
        numbers = np.cumsum(shorter, dtype=np.int32) - 1
        suffixes = suffixes_of[length - 1][keep]
        listed = (suffixes >= 0) & shorter[suffixes]
        answer.append(
            NGrams(
                words=ngrams.words[keep],
                prefixes=numbers[ngrams.prefixes[keep]],
                suffixes=np.where(listed, numbers[suffixes], np.int32(-1)),
            )
        )
    return answer


def _reweighted(
    ngrams: Sequence[NGrams],
    orders: Orders,
    contexts: Sequence[ContextMasses],
    kept: Sequence[npt.NDArray[np.bool_]],
) -> list[NGramWeights]:
    """The kept probabilities, and back-off weights with which rows sum to what they did."""
    rows = BackoffRows(trie := link(ngrams))
    answer: list[NGramWeights] = []
    for length, ((old, weights), keep) in enumerate(zip(orders, kept, strict=False), start=1):
        if length > 1:
            lower = lower_probs(trie, length, rows.probs, rows.backoffs)
            probs = from_log10(weights.log10_probs)
            backoffs = _new_backoffs(old.prefixes, keep, probs, contexts[length - 2], lower)
            rows.set_backoffs(length - 1, backoffs := backoffs[kept[length - 2]])
            answer[-1] = answer[-1]._replace(log10_backoffs=log10(backoffs))
        log10_probs = weights.log10_probs[keep]
        rows.set_probs(length, from_log10(log10_probs))
        answer.append(NGramWeights(log10_probs, np.zeros(0, dtype=np.float32)))
    return answer


def _new_backoffs(
    prefixes: npt.NDArray[np.int32],
    keep: npt.NDArray[np.bool_],
    probs: DoubleArray,
    contexts: ContextMasses,
    lower: DoubleArray,
) -> DoubleArray:
    """Back-off weights of contexts [m] whose n-grams [n] are kept only in part.

    What was left and what there was room for grow by the words that are no longer listed; the
    room also by what the kept words have lost in the shorter context's row. Sums of changes,
    not 1 minus sums: a context that nothing changes for keeps its weight to the last bit.
    """
    gone = ~keep
    size = len(contexts.unlisted)
    left = contexts.unlisted + np.bincount(prefixes[gone], probs[gone], minlength=size)
    room = contexts.lower_unlisted + np.bincount(prefixes[gone], contexts.lower[gone], minlength=size)
    room += np.bincount(prefixes[keep], contexts.lower[keep] - lower, minlength=size)
    backoffs: DoubleArray = left / np.maximum(room, MIN_LOWER_MASS)
    fan_out = np.bincount(prefixes[keep], minlength=size)
    bare = (fan_out == 0) & (np.bincount(prefixes[gone], minlength=size) > 0)
    backoffs[bare] = 1.0  # exactly: it is no context any more
    return backoffs


class CompressionSettings(NamedTuple):
    """What to do to a model that no counts are known of.

    Attributes:
        prune_entropy: n-grams whose loss raises the perplexity by a smaller share are dropped; 0 drops
            none. How often a context comes up is what the model itself says.
        quantise: store probabilities and back-offs in eight bits each.
    """

    prune_entropy: float = 0.0
    quantise: bool = False


NO_COMPRESSION = CompressionSettings()


class CompressedModel(NamedTuple):
    """A model and what was done to it.

    Attributes:
        model: ready to answer or to be saved.
        listed: the n-grams that are left, by order from 1.
        facts: n-grams by order, and how many there were before pruning.
    """

    model: NGramModel
    listed: Sequence[NGrams]
    facts: dict[str, Any]


def compress(
    orders: Orders,
    vocabulary: Vocabulary,
    shrinking: CompressionSettings,
    *,
    normalised: bool = True,
    progress: Progress,
) -> CompressedModel:
    """Build a model of a table's n-grams, with fewer of them and fewer bits if that is wanted.

    Args:
        orders: n-grams and weights of the orders 1, 2, ….
        vocabulary: what their words mean.
        shrinking: what is wanted.
        normalised: whether every distribution sums to 1 before.
        progress: told of each stage.

    Raises:
        InvalidInputError: the threshold is out of range, or there are too many words for eight-bit models.
    """
    before = [len(ngrams.words) for ngrams, _ in orders]
    facts: dict[str, Any] = {"ngrams": before}
    if shrinking.prune_entropy != 0:
        progress.start("pruning n-grams", None)
        orders = prune_by_entropy(orders, shrinking.prune_entropy)
        after = [len(ngrams.words) for ngrams, _ in orders]
        facts = {"ngrams": after + [0] * (len(before) - len(after)), "ngrams_before_pruning": before}
        progress.finish()
    progress.start("building the model", None)
    automaton = build_automaton(orders)
    if shrinking.quantise:
        automaton = quantise_automaton(automaton)
    progress.finish()
    model = NGramModel(automaton, vocabulary, normalised=normalised and not shrinking.quantise)
    return CompressedModel(model, [ngrams for ngrams, _ in orders], facts)
