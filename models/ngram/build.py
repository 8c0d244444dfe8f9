"""Build an automaton from n-grams and weights; rank its arcs, quantise and verify it.

`build_automaton` separates serving from estimators and file formats: it takes n-grams in
lexicographic order with the index of each prefix among the shorter n-grams. `list_ngrams` is its
inverse.

Quantisation stores probabilities and back-offs as eight-bit codes, in less than two thirds of the
size. Each code stands for the mean of the values nearest to it, by Lloyd's algorithm in one
dimension (Lloyd 1982, "Least squares quantization in PCM"). Minus infinity, 0 and the probability
of `<unk>` stay exact.

`verify_automaton` checks every value of a file before kernels use it as an index.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import Float32s, Int32s, Int64s, UInt8s, UInt32s, index_ranges
from models.errors import InputError
from models.kernels.compilation import kernel
from models.language_model import UNK
from models.ngram.automaton import Automaton, reject, word_ids
from models.ngram.scoring import (
    U,
    automaton_kernel,
    compile_kernels,
    link_states,
    log10_backoff_of,
    log10_prob_of,
    word_at,
)

MAX_UNRANKED_ARCS = 128
"""Rankings of states with more arcs are in the file; others are computed on demand."""


_BLOCK = 1 << 20
"""States examined at once, and arcs ranked at once; one state may have more arcs."""

NUM_CODES = 256
MAX_QUANTISED_WORDS = 1 << 24
_HISTOGRAM_BINS = 1 << 16
_MAX_ITERATIONS = 100

MAX_NGRAMS = 2**32 - 1
MAX_STATES = 2**31 - 1
"""Limits of the integer types for arcs (n-grams) and links (contexts, with the empty one)."""

MAX_LOG10_BACKOFF = 300.0
"""Limit of the total back-off to the empty context, close to a double's range."""

_MASS_TOLERANCE = 1e-5
_LEAST_MASS = 1e-30  # close to the smallest number in single precision

_PROBLEMS = (
    "",
    "first_arcs decreases",
    "the arcs of the states of one length do not match the n-grams of the next length",
    "a suffix is not a shorter context",
    "the words of a context are not ascending ids of the vocabulary",
    "a probability is more than 1",
    "a back-off weight is not a number, or the product of a state's and its suffixes' is infinite",
    "ranked_states does not ascend within the states, or ranked_starts within ranked_arcs",
    "ranked_arcs are not the arcs of their state, the most probable first",
    "a state of many arcs is not among ranked_states",
    "ranked_masses are not the sums of the probabilities",
)


class RankedArcs(NamedTuple):
    """Arrays of an `Automaton` whose names begin with `ranked_`."""

    states: Int32s
    starts: UInt32s
    arcs: UInt32s
    masses: Float32s


def rank_arcs(first_arcs: UInt32s, log10_probs: Float32s) -> RankedArcs:
    """Rank the arcs of the empty context and of states with more than `MAX_UNRANKED_ARCS` arcs.

    Ties are ranked by word id.

    Args:
        first_arcs: first arc of each state, then the end [S + 1].
        log10_probs: probability of each arc [A].
    """
    blocks = list(rank_arcs_in_blocks(first_arcs, log10_probs))
    states, starts, arcs, masses = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return RankedArcs(states, np.append(starts, np.uint32(len(arcs))), arcs, masses)


def rank_arcs_in_blocks(first_arcs: UInt32s, log10_probs: Float32s) -> Iterator[RankedArcs]:
    """Rank as `rank_arcs`, in blocks of bounded size; `starts` lack the end."""
    done = 0
    for begin in range(0, len(first_arcs) - 1, _BLOCK):
        sizes = np.diff(first_arcs[begin : begin + _BLOCK + 1])
        is_ranked = sizes > MAX_UNRANKED_ARCS
        is_ranked[0] |= begin == 0
        states = begin + np.flatnonzero(is_ranked)
        groups = np.cumsum(sizes[is_ranked], dtype=np.int64) // _BLOCK
        for group in np.split(states, np.flatnonzero(np.diff(groups)) + 1):
            if len(group):
                yield (ranked := _rank(group, first_arcs, log10_probs, done))
                done += len(ranked.arcs)


def _rank(states: Int64s, first_arcs: UInt32s, log10_probs: Float32s, ranked_before: int) -> RankedArcs:
    """Rank the arcs of some states, after `ranked_before` ranked arcs of earlier states."""
    begins, ends = first_arcs[states].astype(np.int64), first_arcs[states + 1].astype(np.int64)
    sizes = ends - begins
    starts = np.cumsum(sizes) - sizes
    arcs = index_ranges(begins, ends)
    probs = log10_probs[arcs]
    arcs = arcs[np.lexsort((-probs, np.repeat(np.arange(len(states)), sizes)))]
    masses = np.add.reduceat(10.0 ** probs.astype(np.float64), starts)
    return RankedArcs(
        states.astype(np.int32),
        (ranked_before + starts).astype(np.uint32),
        arcs.astype(np.uint32),
        masses.astype(np.float32),
    )


def quantise_automaton(automaton: Automaton) -> Automaton:
    """Return the automaton with eight-bit codes of values and three bytes per word.

    Raises:
        InputError: the vocabulary has more words than fit three bytes.
    """
    if automaton.vocab_size > MAX_QUANTISED_WORDS:
        raise InputError(
            f"the vocabulary has {automaton.vocab_size} words; the limit of a quantised model is {MAX_QUANTISED_WORDS}",
            param="ngram.quantize_bits",
        )
    prob_values, probs = encode_values(automaton.log10_probs, kept=automaton.log10_probs[[UNK]])
    backoff_values, backoffs = encode_values(automaton.log10_backoffs)
    ranked = rank_arcs(automaton.first_arcs, prob_values[probs])
    words = automaton.words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    return automaton._replace(
        words=np.ascontiguousarray(words),
        log10_probs=probs,
        log10_backoffs=backoffs,
        prob_values=prob_values,
        backoff_values=backoff_values,
        ranked_arcs=ranked.arcs,
        ranked_masses=ranked.masses,
    ).frozen()


def encode_values(values: Float32s, *, kept: Float32s | None = None) -> tuple[Float32s, UInt8s]:
    """Return the values of the 256 codes, ascending, and the code of each value [n].

    Args:
        values: values to encode.
        kept: a few values that stay exact, as 0 and minus infinity do.
    """
    special = np.isinf(values) | (values == 0) | np.isin(values, [] if kept is None else kept)
    ordinary = values[~special]
    levels = np.unique(values[special])
    num_free = NUM_CODES - len(levels)
    if len(ordinary):
        levels = np.unique(np.concatenate([levels, _lloyd(ordinary, num_free)]))
    table = np.full(NUM_CODES, levels[-1], np.float32)
    table[: len(levels)] = levels
    finite = np.isfinite(levels)
    first = int(np.argmax(finite))
    bounds = (levels[first:-1].astype(np.float64) + levels[first + 1 :]) / 2
    codes = (first + np.searchsorted(bounds, values)).astype(np.uint8)
    codes[values == -np.inf] = 0
    return table, codes


def _lloyd(values: Float32s, num_levels: int) -> Float32s:
    """Return up to `num_levels` levels for finite values [n], by Lloyd's algorithm on a histogram."""
    if len(values) <= _HISTOGRAM_BINS and len(distinct := np.unique(values)) <= num_levels:
        return distinct
    counts, edges = np.histogram(values, bins=_HISTOGRAM_BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    filled = counts > 0
    counts, centres = counts[filled].astype(np.float64), centres[filled]
    mass = np.concatenate([[0], np.cumsum(counts)])
    moment = np.concatenate([[0], np.cumsum(counts * centres)])
    # optimal density of many levels: cube root of the values'
    spread = np.cumsum(np.cbrt(counts))
    levels = centres[np.searchsorted(spread, (np.arange(num_levels) + 0.5) / num_levels * spread[-1])]
    # O(levels) a round, by prefix sums
    for _ in range(_MAX_ITERATIONS):
        cuts = np.searchsorted(centres, (levels[:-1] + levels[1:]) / 2)
        begins, ends = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(centres)]])
        inside = mass[ends] - mass[begins]
        means = np.divide(moment[ends] - moment[begins], inside, out=levels.copy(), where=inside > 0)
        if np.abs(means - levels).max() < 1e-7:
            break
        levels = means
    single: Float32s = levels.astype(np.float32)
    return single


class NGrams(NamedTuple):
    """N-grams of one order, in lexicographic order of their word ids.

    Unigrams are dense: one per id of the vocabulary. Their prefixes and suffixes are all 0, the
    empty context.

    Attributes:
        words: the last word [n], int32.
        prefixes: index of the prefix (all but the last word) among the n-grams one shorter [n], int32.
        suffixes: likewise of the suffix (all but the first word) [n], int32; −1 if unlisted or unknown.
    """

    words: Int32s
    prefixes: Int32s
    suffixes: Int32s


class NGramWeights(NamedTuple):
    """Weights of the n-grams of one order in a back-off model.

    Attributes:
        log10_probs: probability of the last word given the prefix [n], float32.
        log10_backoffs: back-off weight of the n-gram as a context [n], float32; unused at the highest order.
    """

    log10_probs: Float32s
    log10_backoffs: Float32s


@kernel()
def count_smaller_keys(keys: Int32s, rows: Int32s, num_keys: int) -> Int64s:
    """Count, for each key, the rows with a smaller key [num_keys + 1]."""
    smaller = np.zeros(num_keys + 1, np.int64)  # counts, then their running sums
    for row in rows:
        smaller[keys[row] + 1] += 1
    for key in range(num_keys):
        smaller[key + 1] += smaller[key]
    return smaller


@kernel()
def sort_by_key(keys: Int32s, rows: Int32s, smaller: Int64s, out: Int32s) -> None:
    """Write rows [n] to `out`, sorted by key, stably: one pass of a radix sort.

    `smaller`, from `count_smaller_keys` for the rows in any order, is overwritten.
    """
    for row in rows:
        key = keys[row]
        out[smaller[key]] = row
        smaller[key] += 1


def build_automaton(orders: Sequence[tuple[NGrams, NGramWeights]]) -> Automaton:
    """Build the states and arcs of n-grams.

    Args:
        orders: n-grams and weights of the orders 1, 2, …; the prefix of every n-gram is listed.

    Raises:
        InputError: there are more n-grams than the format can number.
    """
    check_ngram_counts([len(ngrams.words) for ngrams, _ in orders])
    every_order = [ngrams for ngrams, _ in orders]
    starts, firsts, words = number_arcs(every_order)
    log10_probs = np.concatenate([weights.log10_probs for _, weights in orders])
    zero = np.zeros(1, np.float32)
    ranked = rank_arcs(firsts, log10_probs)
    return Automaton(
        order_starts=starts,
        first_arcs=firsts,
        suffixes=suffix_states(every_order[:-1], starts, firsts, words),
        words=words,
        log10_probs=log10_probs,
        log10_backoffs=np.concatenate([zero, *(weights.log10_backoffs for _, weights in orders[:-1])]),
        prob_values=zero[:0],
        backoff_values=zero[:0],
        **{f"ranked_{name}": array for name, array in ranked._asdict().items()},
    ).frozen()


def number_arcs(orders: Sequence[NGrams]) -> tuple[Int64s, UInt32s, Int32s]:
    """Return `order_starts`, `first_arcs` and `words` of the n-grams of the orders 1, 2, …."""
    starts = np.concatenate([[0], np.cumsum([len(ngrams.words) for ngrams in orders])])
    fan_outs = [
        np.bincount(longer.prefixes, minlength=len(shorter.words))
        for shorter, longer in itertools.pairwise(orders)
    ]
    first_arcs = np.zeros(starts[-2] + 2, np.uint32)
    first_arcs[1:] = np.cumsum(np.concatenate([[starts[1]], *fan_outs]))
    return starts, first_arcs, np.concatenate([ngrams.words for ngrams in orders])


def check_ngram_counts(sizes: Sequence[int]) -> None:
    """Check that the file format can number the n-grams, given their counts by order.

    Raises:
        InputError: there are too many.
    """
    for count, most, what in (
        (sum(sizes), MAX_NGRAMS, "n-grams"),
        (1 + sum(sizes[:-1]), MAX_STATES, "n-grams below the highest order"),
    ):
        if count > most:
            raise InputError(
                f"the model would have {count:,} {what}; the limit is {most:,}: lower the order, or prune",
                param="ngram.order",
            )


def suffix_states(
    orders: Sequence[NGrams], order_starts: Int64s, first_arcs: UInt32s, words: Int32s
) -> Int32s:
    """Return the longest proper suffix's state of the empty context, then of each n-gram.

    Suffixes that are −1 are computed.

    Args:
        orders: n-grams of the orders from 1: all, or those below the highest, which are the states [S].
        order_starts: from `number_arcs`, for all orders.
        first_arcs: likewise.
        words: likewise.
    """
    suffixes = np.zeros(1 + sum(len(ngrams.words) for ngrams in orders), np.int32)
    for (shorter, begin), ngrams in zip(itertools.pairwise(order_starts), orders[1:], strict=False):
        states = suffixes[begin + 1 : begin + 1 + len(ngrams.words)]
        np.add(ngrams.suffixes, np.int32(shorter + 1), out=states)
        states[ngrams.suffixes < 0] = -1
    if (suffixes < 0).any():
        link_states(first_arcs, words, suffixes)
    return suffixes


def list_ngrams(automaton: Automaton) -> list[tuple[NGrams, NGramWeights]]:
    """Return the n-grams and weights of every order, the inverse of `build_automaton`.

    Codes are decoded.
    """
    if automaton.quantised:
        automaton = automaton._replace(
            words=word_ids(automaton.words),
            log10_probs=automaton.prob_values[automaton.log10_probs],
            log10_backoffs=automaton.backoff_values[automaton.log10_backoffs],
        ).frozen()
    owners = np.repeat(np.arange(automaton.num_states, dtype=np.int32), np.diff(automaton.first_arcs))
    starts = automaton.order_starts.tolist()
    listed: list[tuple[NGrams, NGramWeights]] = []
    for order, (begin, end) in enumerate(itertools.pairwise(starts), start=1):
        # first state of the length of the prefixes
        shorter = starts[order - 2] + 1 if order > 1 else 0
        longest = order == automaton.order
        suffixes = np.full(end - begin, -1, np.int32) if longest else automaton.suffixes[begin + 1 : end + 1]
        ngrams = NGrams(
            words=automaton.words[begin:end],
            prefixes=owners[begin:end] - np.int32(shorter),
            suffixes=np.maximum(suffixes - np.int32(shorter), np.int32(-1)),
        )
        backoffs = automaton.log10_backoffs[begin + 1 : 1 if longest else end + 1]
        listed.append((ngrams, NGramWeights(automaton.log10_probs[begin:end], backoffs)))
    return listed


def verify_automaton(automaton: Automaton, path: Path) -> None:
    """Check that all indices are within the arrays and all values valid.

    Raises:
        ManifestError: a check fails; the message names it.
    """
    compile_kernels(automaton)
    problem = int(find_problem(automaton))
    if problem:
        reject(path, _PROBLEMS[problem])


@numba.njit(nogil=True)
def _find_rank_problem(automaton: Automaton) -> int:  # noqa: PLR0911 - as below
    before = np.int64(-1)
    starts, first = automaton.ranked_starts, automaton.first_arcs
    for rank in range(len(automaton.ranked_states)):
        state = np.int64(automaton.ranked_states[rank])
        if state <= before or state >= len(automaton.suffixes) or starts[rank] > starts[rank + 1]:
            return 7
        if starts[rank + 1] > len(automaton.ranked_arcs):
            return 7
        before = state
        begin, end = first[state], first[state + 1]
        if starts[rank + 1] - starts[rank] != end - begin or automaton.ranked_states[0] != 0:
            return 8
        mass, last, last_arc = 0.0, np.float32(np.inf), np.int64(-1)
        for index in range(starts[rank], starts[rank + 1]):
            arc = np.int64(automaton.ranked_arcs[index])
            if not begin <= arc < end:
                return 8
            prob = log10_prob_of(automaton, U(arc))
            if prob > last or (prob == last and arc <= last_arc):  # `<=` excludes duplicates
                return 8
            mass, last, last_arc = mass + 10.0 ** np.float64(prob), prob, arc
        if not abs(automaton.ranked_masses[rank] - mass) <= _MASS_TOLERANCE * mass + _LEAST_MASS:
            return 10
    return 0


@numba.njit(nogil=True)
def _has_unranked_state(automaton: Automaton) -> bool:
    """True if a state of many arcs is unranked, or ranked states do not ascend."""
    rank = 0
    for state in range(len(automaton.suffixes)):
        if rank < len(automaton.ranked_states) and automaton.ranked_states[rank] == state:
            rank += 1
        elif automaton.first_arcs[state + 1] - automaton.first_arcs[state] > MAX_UNRANKED_ARCS:
            return True
    return False


@numba.njit(nogil=True)
def _backoff_overflows(automaton: Automaton, state: np.int64) -> bool:
    """True if back-offs from a state to the empty context pass `MAX_LOG10_BACKOFF` or are NaN."""
    charged = np.float64(log10_backoff_of(automaton, U(state)))
    if charged <= 0:  # most states; positive weights of suffixes are checked there
        return False
    while state != 0 and charged <= MAX_LOG10_BACKOFF:
        state = np.int64(automaton.suffixes[state])
        charged += log10_backoff_of(automaton, U(state))
    return not charged <= MAX_LOG10_BACKOFF


@automaton_kernel(types.int64)
def find_problem(automaton: Automaton) -> int:  # noqa: C901, PLR0911 - one pass over the arrays
    """Return the number of the first problem found, or 0.

    NaN fails the conditions as written.
    """
    states, arcs, vocab_size = len(automaton.suffixes), len(automaton.words), automaton.first_arcs[1]
    first, longest = automaton.first_arcs, len(automaton.order_starts) - 1
    for state in range(states):
        if first[state] > first[state + 1] or first[state + 1] > arcs:
            return 1
    for length in range(1, longest):  # also lengths without contexts
        if first[automaton.order_starts[length - 1] + 1] != automaton.order_starts[length]:
            return 2
    length, start = 0, 0  # the state's, and first state of that length
    for state in range(states):
        while length + 1 < longest and state > automaton.order_starts[length]:
            start = automaton.order_starts[length] + 1
            length += 1
        suffix = automaton.suffixes[state]
        if suffix < 0 or (suffix >= start and state > 0) or (state == 0 and suffix != 0):
            return 3
        if _backoff_overflows(automaton, np.int64(state)):
            return 6
        before = np.int64(-1)
        for arc in range(first[state], first[state + 1]):
            word = np.int64(word_at(automaton.words, U(arc)))
            if word <= before or word >= vocab_size:
                return 4
            before = word
    for arc in range(arcs):
        if not log10_prob_of(automaton, U(arc)) <= 1e-6:
            return 5
    return _find_rank_problem(automaton) or (9 if _has_unranked_state(automaton) else 0)
