"""From n-grams with their weights, order by order, to the automaton.

This is the seam between estimators or file formats on one side and serving on the other:
whoever can list n-grams in lexicographic order, with the place of each one's prefix among
the shorter n-grams, gets an automaton; `list_ngrams` is the way back.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.ngram.automaton import Automaton
from models.ngram.linking import link_states
from models.ngram.quantised import dequantise_automaton
from models.ngram.ranked import rank_arcs

MAX_NGRAMS = 2**32 - 1
MAX_STATES = 2**31 - 1
"""Of all orders, and of those below the highest with the empty context: what arcs and links are numbered in."""


class NGrams(NamedTuple):
    """The n-grams of one order, in lexicographic order of their word ids.

    Unigrams are dense: one for each id of the vocabulary. Prefixes and suffixes of unigrams
    are all 0, the empty context.

    Attributes:
        words: the last word [n], int32.
        prefixes: the place, among the n-grams one shorter, of all but the last word [n], int32.
        suffixes: likewise of all but the first word [n], int32; −1 where that is not listed or not known.
    """

    words: npt.NDArray[np.int32]
    prefixes: npt.NDArray[np.int32]
    suffixes: npt.NDArray[np.int32]


class NGramWeights(NamedTuple):
    """What a back-off model knows of the n-grams of one order.

    Attributes:
        log10_probs: of the last word after the others [n], float32.
        log10_backoffs: of the n-gram as a context [n], float32; not read for the highest order.
    """

    log10_probs: npt.NDArray[np.float32]
    log10_backoffs: npt.NDArray[np.float32]


def build_automaton(orders: Sequence[tuple[NGrams, NGramWeights]]) -> Automaton:
    """Turn n-grams into states and arcs.

    Args:
        orders: n-grams and weights of the orders 1, 2, …; the prefix of every n-gram is listed.

    Raises:
        InvalidInputError: there are more n-grams than the file format can number.
    """
    sizes = [len(ngrams.words) for ngrams, _ in orders]
    check_ngram_counts(sizes)
    order_starts = np.concatenate([[0], np.cumsum(sizes)])
    fan_outs = [
        np.bincount(longer.prefixes, minlength=size)
        for (longer, _), size in zip(orders[1:], sizes[:-1], strict=True)
    ]
    first_arcs = np.zeros(order_starts[-2] + 2, dtype=np.uint32)
    first_arcs[1:] = np.cumsum(np.concatenate([[sizes[0]], *fan_outs]))
    words = np.concatenate([ngrams.words for ngrams, _ in orders])
    log10_probs = np.concatenate([weights.log10_probs for _, weights in orders])
    zero = np.zeros(1, dtype=np.float32)
    ranked = rank_arcs(first_arcs, log10_probs)
    automaton = Automaton(
        order_starts=order_starts,
        first_arcs=first_arcs,
        suffixes=_suffix_states([ngrams for ngrams, _ in orders[:-1]], order_starts, first_arcs, words),
        words=words,
        log10_probs=log10_probs,
        log10_backoffs=np.concatenate([zero, *(weights.log10_backoffs for _, weights in orders[:-1])]),
        prob_values=zero[:0],
        backoff_values=zero[:0],
        ranked_states=ranked.states,
        ranked_starts=ranked.starts,
        ranked_arcs=ranked.arcs,
        ranked_masses=ranked.masses,
    )
    return automaton.frozen()


def check_ngram_counts(sizes: Sequence[int]) -> None:
    """Make sure that the file format can number so many n-grams.

    Args:
        sizes: how many there are of each order.

    Raises:
        InvalidInputError: it cannot.
    """
    for count, most, what in (
        (sum(sizes), MAX_NGRAMS, "n-grams"),
        (1 + sum(sizes[:-1]), MAX_STATES, "n-grams below the highest order"),
    ):
        if count > most:
            raise InvalidInputError(
                f"the model would have {count:,} {what}, at most {most:,} are possible: lower the order, or prune",
                parameter="ngram.order",
            )


def _suffix_states(
    orders: Sequence[NGrams],
    order_starts: npt.NDArray[np.int64],
    first_arcs: npt.NDArray[np.uint32],
    words: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """The state of the longest proper suffix of every state [S]; those not given are sought."""
    links = [np.zeros(1 + len(ngrams.words), np.int32) for ngrams in orders[:1]] or [np.zeros(1, np.int32)]
    for shorter_start, ngrams in zip(order_starts, orders[1:], strict=False):
        links.append(
            np.where(ngrams.suffixes < 0, np.int32(-1), ngrams.suffixes + np.int32(shorter_start + 1))
        )
    suffixes = np.concatenate(links)
    if (suffixes < 0).any():
        link_states(first_arcs, words, suffixes)
    return suffixes


def list_ngrams(automaton: Automaton) -> list[tuple[NGrams, NGramWeights]]:
    """The n-grams and weights of every order: what `build_automaton` would make the automaton from.

    Quantised values are listed as the values that their codes stand for.
    """
    if automaton.quantised:
        automaton = dequantise_automaton(automaton)
    owners = np.repeat(np.arange(automaton.num_states, dtype=np.int32), np.diff(automaton.first_arcs))
    starts = automaton.order_starts.tolist()
    listed: list[tuple[NGrams, NGramWeights]] = []
    for order, (begin, end) in enumerate(itertools.pairwise(starts), start=1):
        shorter = starts[order - 2] + 1 if order > 1 else 0  # the first state of the prefixes' length
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
