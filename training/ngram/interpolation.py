"""Static linear interpolation: several back-off models as one.

The mixture lists the union of its parts' n-grams. Each has the probability Σ_i λ_i p_i(w|h),
where a part that does not list it backs off by itself; back-off weights follow such that
rows sum to what the parts' rows sum to. So a static mixture answers as the dynamic one (all
parts asked at every step) wherever it lists the word, and nearly so elsewhere; and it is an
n-gram model like any other.

Source: Stolcke (2002), "SRILM: an extensible language modeling toolkit", the static
interpolation of `ngram -mix-lm`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError, VocabularyMismatchError
from models.ngram.build import NGrams, NGramWeights
from training.ngram.rows import MIN_LOWER_MASS, BackoffRows, ContextMasses, Orders, from_log10
from training.ngram.smoothing.weights import log10
from training.ngram.trie import DoubleArray, link, lower_probs, suffixes_by_order

IntArray: TypeAlias = npt.NDArray[np.int32]


class _NGramUnion(NamedTuple):
    """All parts' n-grams by order, and the place of each part's n-grams in them, by part and order."""

    ngrams: list[NGrams]
    indices: list[list[IntArray]]


class _PartNGrams(NamedTuple):
    """A part's own n-grams of one order: places in the union, probabilities, back-off weights [n each]."""

    indices: IntArray
    probs: DoubleArray
    backoffs: DoubleArray


class _PartScores(NamedTuple):
    """What a part says of the union's n-grams of one order [n] and of their contexts [m]; see `rows.Contexts`."""

    probs: DoubleArray
    lower: DoubleArray
    lower_unlisted: DoubleArray
    unlisted: DoubleArray


def interpolate_models(
    parts: Sequence[Orders], weights: Sequence[float]
) -> list[tuple[NGrams, NGramWeights]]:
    """Mix back-off models over one vocabulary into one.

    For a word that no part lists after h, Σ_i λ_i p_i(w|h) is Σ_i λ_i α_i(h) p_i(w|h'). One back-off
    weight must do for all such words: α(h) = Σ_i λ_i α_i(h) R_i(h) / Σ_i λ_i R_i(h), where R_i(h) is
    what part i gives to them together after h'.

    Args:
        parts: n-grams and weights of the orders 1, 2, … of each model; the models' orders may differ.
        weights: λ, one a part; positive, summing to 1.

    Returns:
        The mixture's n-grams and weights; suffixes are −1 where they are not listed.

    Raises:
        InvalidInputError: the weights are no distribution over the parts.
        VocabularyMismatchError: the parts' vocabularies differ in size.
    """
    _check(parts, weights)
    ngrams_by_order, places = _unite(parts)
    trie = link(ngrams_by_order)
    rows = [BackoffRows(trie) for _ in parts]
    mixture = BackoffRows(trie)
    answer: list[NGramWeights] = []
    for length, ngrams in enumerate(ngrams_by_order, start=1):
        answers = [
            _score_part(part_rows, ngrams, length, _part_ngrams(part, part_places, length))
            for part_rows, part, part_places in zip(rows, parts, places, strict=True)
        ]
        mixed = _PartScores(*(_weighted_sum(weights, column) for column in zip(*answers, strict=True)))
        if length > 1:
            lower = lower_probs(trie, length, mixture.probs, mixture.backoffs)
            # the two differ where the mixture itself backs off for a suffix that no part lists
            room = mixed.lower_unlisted + np.bincount(
                ngrams.prefixes, mixed.lower - lower, minlength=len(mixed.lower_unlisted)
            )
            backoffs = mixed.unlisted / np.maximum(room, MIN_LOWER_MASS)
            mixture.set_backoffs(length - 1, backoffs)
            answer[-1] = answer[-1]._replace(log10_backoffs=log10(backoffs))
        mixture.set_probs(length, mixed.probs)
        answer.append(NGramWeights(log10(mixed.probs), np.zeros(0, dtype=np.float32)))
    suffixes = suffixes_by_order(trie)
    linked = [ngrams._replace(suffixes=own) for ngrams, own in zip(ngrams_by_order, suffixes, strict=True)]
    return list(zip(linked, answer, strict=True))


def _check(parts: Sequence[Orders], weights: Sequence[float]) -> None:
    if len(parts) != len(weights) or not parts:
        raise InvalidInputError(
            f"{len(parts)} models are to be mixed with {len(weights)} weights", parameter="weights"
        )
    if not all(w > 0 for w in weights) or not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
        raise InvalidInputError(
            f"mixture weights are {list(weights)}; they must be positive and sum to 1", parameter="weights"
        )
    sizes = [len(part[0][0].words) for part in parts]
    if len(set(sizes)) > 1:
        raise VocabularyMismatchError(
            f"models of different vocabularies cannot be mixed: they have {sizes} tokens"
        )


def _unite(parts: Sequence[Orders]) -> _NGramUnion:
    """Merge the parts' n-grams order by order, each as the number of its prefix in the union and its word."""
    vocab_size = len(parts[0][0][0].words)
    ngrams = [parts[0][0][0]]
    places: list[list[IntArray]] = [[ngrams[0].words] for _ in parts]
    for length in range(2, max(map(len, parts)) + 1):
        longer = [
            (part[length - 1][0], own) for part, own in zip(parts, places, strict=True) if len(part) >= length
        ]
        keys = [own[-1][n.prefixes].astype(np.int64) * vocab_size + n.words for n, own in longer]
        merged = _merge_keys(keys)
        suffixes = np.full(len(merged), -1, dtype=np.int32)
        for (one, own), key in zip(longer, keys, strict=True):
            own.append(np.searchsorted(merged, key).astype(np.int32))
            listed = one.suffixes >= 0
            suffixes[own[-1][listed]] = own[-2][one.suffixes[listed]]
        prefixes, words = np.divmod(merged, vocab_size)
        ngrams.append(NGrams(words.astype(np.int32), prefixes.astype(np.int32), suffixes))
    return _NGramUnion(ngrams, places)


def _merge_keys(keys: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """The different values of several rising lists, rising."""
    together = np.sort(np.concatenate(keys), kind="stable")  # which merges the lists
    is_new = np.ones(len(together), dtype=np.bool_)  # pruning may have left no part anything of this order
    is_new[1:] = together[1:] != together[:-1]
    return together[is_new]


def _part_ngrams(part: Orders, places: Sequence[IntArray], length: int) -> _PartNGrams:
    if length > len(part):
        return _PartNGrams(np.zeros(0, dtype=np.int32), np.zeros(0), np.zeros(0))
    weights = part[length - 1][1]
    probs = from_log10(weights.log10_probs)
    return _PartNGrams(
        places[length - 1],
        probs,
        from_log10(weights.log10_backoffs) if length < len(part) else np.ones(len(probs)),
    )


def _score_part(rows: BackoffRows, ngrams: NGrams, length: int, own: _PartNGrams) -> _PartScores:
    """What a part says of the union's n-grams of one length; it is entered into the part's rows, too."""
    nothing = np.zeros(0)
    context = ContextMasses(nothing, nothing, nothing)
    probs = np.zeros(len(ngrams.words))
    if length > 1:
        context = rows.contexts(ngrams, length)
        probs = rows.backoffs[rows.trie.nodes(length - 1)][ngrams.prefixes] * context.lower
    probs[own.indices] = own.probs
    backoffs = np.ones(len(probs))
    backoffs[own.indices] = own.backoffs
    rows.add_order(ngrams, length, probs, left=context.unlisted if length > 1 else 0.0)
    rows.set_backoffs(length, backoffs)
    return _PartScores(probs, *context)


def _weighted_sum(weights: Sequence[float], values: Sequence[DoubleArray]) -> DoubleArray:
    total = weights[0] * values[0]
    for weight, one in zip(weights[1:], values[1:], strict=True):
        total += weight * one
    return total
